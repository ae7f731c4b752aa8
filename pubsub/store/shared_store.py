"""``SharedStore``: a history whose messages are replicated to other brokers, and theirs to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from twisted.internet.defer import Deferred

from pubsub.errors import HistoryUnavailable
from pubsub.store.commits.unsynced_commits import UnsyncedCommits
from pubsub.store.log_store import LogStore

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch, Page
    from pubsub.kernel import Senders


class Replication(Protocol):
    """Observes the messages of this broker; see ``SharedHistory``."""

    def trouble(self) -> str | None:
        """Return why no more messages can be stored, None if they can."""

    def appended(self, batch: Batch) -> None:
        """The store has ``batch``, which this run of the broker has numbered."""

    def after_stored(self, call: Callable[[bool], None]) -> Callable[[bool], None]:
        """Return a call for ``when_stored`` of this disk: ``call`` waits for the others too."""

    def commit_on_disk(self) -> None:
        """Messages of an atomic commit may be sent now."""


class Positions(Protocol):
    """Observes all messages; see ``SharedPositions``."""

    def appended(self, batch: Batch) -> None:
        """The store has ``batch``."""


def _before(page: Page, stop: int) -> Page:
    """Return the messages of ``page`` before ``stop``, where a batch begins if it is within it."""
    if page.next_offset <= stop:
        return page
    return replace(
        page, batches=[one for one in page.batches if one.offset < stop], next_offset=stop
    )


class SharedStore(LogStore):
    """``when_stored`` waits for the stream that brokers share, too; ``append`` is bounded by it."""

    replication: Replication | None = None
    positions: Positions | None = None
    _is_together = False

    def open(self, run: int) -> None:
        """See ``IStore``."""
        self._unsynced_commits = UnsyncedCommits(
            self.when_synced, self._reactor.callLater, self._commit_on_disk
        )
        super().open(run)

    def _commit_on_disk(self) -> None:
        if self.replication is not None:
            self.replication.commit_on_disk()

    def close(self) -> Deferred[None]:
        """See ``IStore``."""
        closed = super().close()
        if self._upkeep is not None:
            self._unsynced_commits.close()
        return closed

    @property
    def sendable(self) -> int:
        """The offset before which messages may be sent to the other brokers.

        Those of an atomic commit may when they are on disk, all others at once.
        """
        begins = self._unsynced_commits.begins
        return self.next_offset if begins is None else begins

    def read_sendable(self, offset: int, max_bytes: int) -> Deferred[Page]:
        """As ``read``, of all topics, before ``sendable``."""
        return self.read(offset, None, max_bytes, fresh=True).addCallback(_before, self.sendable)

    @property
    def log_id(self) -> str:
        """The random number of this history, as hexadecimal digits."""
        return self._metadata.state().log_id.hex()

    def append(self, batch: Batch, senders: Senders | None = None) -> None:
        """See ``IStore``."""
        if batch.run or self.replication is None:
            super().append(batch, senders)
        else:
            self._check()
            super().append(batch, senders)
            self.replication.appended(batch)
        if self.positions is not None:
            self.positions.appended(batch)

    def _check(self) -> None:
        if self._is_together or self.atomic_commits.is_continuing:
            return
        if self.replication is not None:
            trouble = self.replication.trouble()
            if trouble is not None:
                raise HistoryUnavailable(trouble)

    @contextmanager
    def together(self) -> Iterator[None]:
        """See ``IStore``."""
        self._check()
        with self._unchecked():
            yield

    @contextmanager
    def importing(self) -> Iterator[None]:
        """As ``together``, for messages of others: these are stored while this broker's wait.

        A record has the messages of one run, so a commit that has begun ends before.
        """
        self.atomic_commits.finish()
        with self._unchecked():
            yield

    @contextmanager
    def _unchecked(self) -> Iterator[None]:
        with super().together():
            self._is_together = True
            try:
                yield
            finally:
                self._is_together = False

    def begin_commit(self, finish: Callable[[], None]) -> None:
        """See ``IStore``."""
        self._check()
        super().begin_commit(finish)
        self._unsynced_commits.begin(self.next_offset)

    def end_commit(self) -> None:
        """See ``IStore``."""
        super().end_commit()
        self._unsynced_commits.end()

    def when_stored(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""
        if self.replication is not None:
            call = self.replication.after_stored(call)
        self.when_synced(call)
