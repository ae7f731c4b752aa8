"""Reading the history for a client that waits: failures are retried, for a bounded time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, TypeVar

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger

from pubsub.broker.clients.connection_marks import log_fields
from pubsub.errors import HistoryUnavailable

log = Logger()
PAGE_BYTES = 256 * 1024
"""Bytes of payload that are read at a time for one client."""
RETRY_SECONDS = 30.0
"""Seconds for which a read is repeated that fails, and the longest that one read may take."""
_SHORTEST_DELAY, _LONGEST_DELAY = 0.1, 5.0
_Result = TypeVar("_Result")


class WrittenHistory(Protocol):
    """An ``IStore``, as it is waited for."""

    @property
    def trouble(self) -> object:
        """The reason for which nothing can be written; None if there is none."""

    def when_written(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""


class SyncedHistory(Protocol):
    """An ``IStore`` whose disk is waited for."""

    def when_synced(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""


class Labelled(Protocol):
    """A connection, or an outbox with its ``connection``."""

    @property
    def label(self) -> str:
        """The client's name for the log."""


def written(store: WrittenHistory) -> Deferred[bool]:
    """Fires when everything so far is committed: nothing else is read, or outlives the process.

    The result is False if it cannot be written at present.
    """
    done: Deferred[bool] = Deferred()
    store.when_written(done.callback)
    return done


def all_on_disk(store: SyncedHistory) -> Deferred[bool]:
    """Fires with True when everything so far is on the disk of this broker, False if it cannot."""
    done: Deferred[bool] = Deferred()
    store.when_synced(done.callback)
    return done


async def require_written(store: WrittenHistory) -> None:
    """Wait as ``written`` does; raises HistoryUnavailable if nothing can be written at present."""
    if not await written(store):
        raise HistoryUnavailable(str(store.trouble))


async def read_history(
    clock: IReactorTime, client: Labelled, read: Callable[[], Deferred[_Result]]
) -> _Result:
    """Return the result of ``read``, which is called again while it fails.

    Raises its exception when it has failed for RETRY_SECONDS, and TimeoutError if it takes longer
    than that. ``client`` is named in the log.
    """
    ends, delay = clock.seconds() + RETRY_SECONDS, _SHORTEST_DELAY
    while True:
        page = read()
        if not page.called:
            page.addTimeout(RETRY_SECONDS, clock)
        try:
            return await page
        except CancelledError:
            raise
        except Exception as problem:
            if clock.seconds() + delay > ends:
                raise
            log.warn(
                "cannot read the history for {client!r}: {problem}; trying again in {delay:g} s",
                client=client.label,
                problem=problem,
                delay=delay,
                connection=log_fields(getattr(client, "connection", client)),
            )
        await deferLater(clock, delay)
        delay = min(2 * delay, _LONGEST_DELAY)
