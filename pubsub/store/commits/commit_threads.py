"""The threads that write and sync the log, and the reactor, as ``CommitStateMachine`` uses them.

A small group is written in the reactor thread: the operating system copies it to memory in
microseconds, and handing it over to a thread takes several times as long. A write can wait for the
disk nevertheless, above all beside a sync. So it is left to the thread while a sync runs, and for
some time after a write that was slow.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import LoopingCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.store.commits.commit_state_machine import CommitStateMachine
from pubsub.store.commits.log_writer import LogWriter
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.disk_remedies import remedy_of
from pubsub.store.worker import Worker

log = Logger()
_Result = TypeVar("_Result")
# After a write in the reactor thread that waited longer than the first of these, the thread writes
# for the second, which is doubled up to the third if the next write here is slow again.
_SLOW_SECONDS = 0.005
_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 64.0
# A write or sync that takes longer than the first of these is logged; looked for at the second.
_STALLED_SECONDS, _WATCH_SECONDS = 10.0, 5.0


class CommitThreads:
    """The outside of ``CommitStateMachine``: the reactor, a thread for writes, one for syncs."""

    commits: CommitStateMachine

    def __init__(self, reactor: Any, at_tick_end: Callable[[Callable[[], None]], object]) -> None:
        self._reactor = reactor
        self.at_tick_end = at_tick_end
        self._paused_until = 0.0
        self._pause = _PAUSE_SECONDS
        self._writes_here = False
        self._stalled = False

    def begin(self, writer: LogWriter) -> None:
        """Write with ``writer``."""
        self._writer = writer
        self._write_thread = Worker("history-writer", 1, self._reactor)
        self._sync_thread = Worker("history-sync", 1, self._reactor)
        self._watch = LoopingCall(self._report_stall)
        self._watch.clock = self._reactor
        self._watch.start(_WATCH_SECONDS, now=False)

    @property
    def stalled_seconds(self) -> float:
        """The time for which a write or a sync has not ended; 0 if there is none."""
        return max(self._write_thread.waiting_seconds, self._sync_thread.waiting_seconds)

    def _report_stall(self) -> None:
        seconds = self.stalled_seconds
        if seconds < _STALLED_SECONDS and self._stalled:
            self._stalled = False
            log.info("history: the disk answers again")
        elif seconds >= _STALLED_SECONDS and not self._stalled:
            self._stalled = True
            log.warn(
                "history: the disk has not ended a write or sync for {seconds} s; check it "
                "(dmesg); acknowledgments, and a stop, wait for it",
                seconds=int(seconds),
            )

    def write(self, group: WriteGroup | None, sync: bool) -> None:
        """See ``Effects``."""
        if group is not None and not sync and self._may_write_here(group):
            self._write_here(group)
            return
        self._write_thread.hand_over(
            partial(self._writer.write, group, sync),
            lambda _: self.commits.wrote(),
            self.commits.write_failed,
        )

    def _may_write_here(self, group: WriteGroup) -> bool:
        return (
            not (self._writes_here or self._sync_thread.pending or self._write_thread.pending)
            and self._writer.is_quick(group)
            and self.seconds() >= self._paused_until
        )

    def _write_here(self, group: WriteGroup) -> None:
        before = self._waited()
        # What is published because of this write is written by the thread, not by a nested call.
        self._writes_here = True
        try:
            self._writer.write(group, False)
        except BaseException:
            self.commits.write_failed(Failure())
        else:
            self._took(self._waited() - before)
            self.commits.wrote()
        finally:
            self._writes_here = False

    def _waited(self) -> float:
        """Return a time in seconds that stands still while this thread runs.

        A garbage collection in the middle of a write is no reason to leave it to another thread.
        """
        return self.seconds() - time.thread_time()

    def _took(self, seconds: float) -> None:
        """Leave writes to the thread for a while if one here has waited long."""
        if seconds <= _SLOW_SECONDS:
            self._pause = _PAUSE_SECONDS
            return
        self._paused_until = self.seconds() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE_SECONDS)

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
        self._watch.stop()
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
            "history: the log cannot be written; publishes are refused until it can: "
            "{reason}{remedy}",
            reason=reason,
            remedy=remedy_of(failure.value) if failure.value is not None else "",
        )
        return reason

    def recovered(self) -> None:
        """See ``Effects``."""
        log.info("history: the log can be written again")
