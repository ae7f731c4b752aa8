"""The threads that write and sync the log, and the reactor, as ``GroupCommit`` uses them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.store.commit_group import CommitGroup
from pubsub.store.group_commit import GroupCommit
from pubsub.store.log_writer import LogWriter
from pubsub.store.threads import Worker

log = Logger()
_Result = TypeVar("_Result")


class CommitThreads:
    """The outside of ``GroupCommit``: the reactor, and a thread each for writes and for syncs."""

    commits: GroupCommit

    def __init__(self, reactor: Any, at_tick_end: Callable[[Callable[[], None]], object]) -> None:
        self._reactor = reactor
        self.at_tick_end = at_tick_end

    def begin(self, writer: LogWriter) -> None:
        """Write with ``writer``."""
        self._writer = writer
        self._write_thread = Worker("history-writer", 1, self._reactor)
        self._sync_thread = Worker("history-sync", 1, self._reactor)

    def write(self, group: CommitGroup | None, sync: bool) -> None:
        """See ``Effects``."""
        self._write_thread.hand_over(
            partial(self._writer.write, group, sync),
            lambda _: self.commits.wrote(),
            self.commits.write_failed,
        )

    def sync(self) -> None:
        """See ``Effects``."""
        self._sync_thread.hand_over(
            self._writer.sync, lambda _: self.commits.synced(), self.commits.sync_failed
        )

    def run(self, call: Callable[[], _Result]) -> Deferred[_Result]:
        """Run ``call`` in the thread that writes."""
        return self._write_thread.run(call)

    def stop(self) -> None:
        """End the threads."""
        self._write_thread.stop()
        self._sync_thread.stop()

    def call_later(self, seconds: float, call: Callable[[], None]) -> IDelayedCall:
        """See ``Effects``."""
        later: IDelayedCall = self._reactor.callLater(seconds, call)
        return later

    def seconds(self) -> float:
        """See ``Effects``."""
        now: float = self._reactor.seconds()
        return now

    def failed(self, failure: Failure) -> str:
        """See ``Effects``."""
        if not failure.check(sqlite3.Error, OSError):
            log.failure("history: a commit failed", failure)
        reason: str = failure.getErrorMessage()
        log.error(
            "history: the log cannot be written; publishes are refused until it can: {reason}",
            reason=reason,
        )
        return reason

    def recovered(self) -> None:
        """See ``Effects``."""
        log.info("history: the log can be written again")
