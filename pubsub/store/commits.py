"""Group commits: when messages are written to disk, and the callbacks that wait for that.

The reactor thread collects a group. The group is handed to a thread when it is ``interval`` seconds
old or ``nbytes`` large, or at the end of the tick if a client waits for it. Only one group is
written at a time.

A small group is written to the journal, and is committed when it is there. After ``LAG`` seconds
all groups of the journal are written to the file in one transaction, while commits continue. A
large group, or one that has metadata or the end of a topic, is written to the file at once,
together with all groups before it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.broker.limits import Gate
from pubsub.interfaces import Value
from pubsub.store.journal import BLOCK_BYTES, Segment
from pubsub.store.stored_runs import RunRecord, first_offset_of, last_offset_of, nbytes_of
from pubsub.store.threads import Worker
from pubsub.store.writer import Group, Writer

log = Logger()
# Bytes that wait to be written to the file from which on publishers are held.
BACKLOG = 16 * 1024**2
LAG = 0.05
"""Seconds until groups of the journal are written to the file."""
# Seconds after which a failed write is tried again.
RETRY = 0.5


@dataclass(slots=True, eq=False)
class _Filing:
    """A transaction under way: ``segment`` is in the journal, ``group`` is not.

    ``filed`` are the callbacks of ``when_filed``.
    """

    segment: Segment
    group: Group | None
    filed: list[Callable[[], None]] = field(default_factory=list)


class Commits:
    """The group that is collected, and those being written.

    ``at_tick_end`` runs a call at the end of the tick; ``interval`` is in seconds, ``nbytes`` the
    size of a group.
    """

    def __init__(
        self,
        reactor: Any,
        at_tick_end: Callable[[Callable[[], None]], object],
        interval: float,
        nbytes: int,
    ) -> None:
        self.gate = Gate()
        self.committed = 0
        self.filed = 0
        """Every message before this offset is in the file."""
        self.failing: str | None = None
        """The reason why the file cannot be written; None while it can."""
        self.failures = 0
        self.forgotten: dict[str, int] = {}
        """The topics whose end is not in the file yet, with the offset where each ended."""
        self._reactor = reactor
        self._at_tick_end = at_tick_end
        self._interval = interval
        self._nbytes = nbytes
        self._group = Group()
        self._ahead: Group | None = None
        self._segment = Segment(0)
        self._filing: _Filing | None = None
        self._unfiled: list[Callable[[], None]] = []
        self._backlog = 0
        self._timer: IDelayedCall | None = None
        self._lag: IDelayedCall | None = None
        self._retry: IDelayedCall | None = None
        # Set for a while after the journal could not be written: groups go to the file.
        self._journal_pause: IDelayedCall | None = None
        self._settled: Deferred[None] | None = None
        self._due = self._examining = self._held = self._lagging = False
        self._committing = self._closing = False

    def begin(self, writer: Writer, thread: Worker, after_transaction: Callable[[], None]) -> None:
        """Commit with ``writer``, which writes the file in ``thread``.

        ``after_transaction`` is called after each transaction.
        """
        self._writer = writer
        self._thread = thread
        self._journal = Worker("history-journal", 1, self._reactor)
        self._after_transaction = after_transaction

    async def finish(self) -> bool:
        """Commit all groups if possible; return whether nothing is left."""
        self._closing = True
        _cancel(self._retry)
        if self._filing is not None and not self._committing:
            self._commit()
        while True:
            self._due = self._lagging = True
            self._go_on()
            if self._ahead is None and not self._committing:
                break
            self._settled = Deferred()
            await self._settled
        for timer in (self._timer, self._lag, self._journal_pause):
            _cancel(timer)
        self._journal.stop()
        filing = self._filing
        if filing is not None:
            for call in (*filing.filed, *self._unfiled):
                call()
        return not self._group and (filing is None or filing.group is None)

    def _settle(self) -> None:
        """Let ``finish`` continue, as a thread has finished a write."""
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.callback(None)

    # Input

    def add(self, run: RunRecord) -> None:
        """Commit ``run``, which has the next offsets."""
        group = self._group
        group.runs.append(run)
        nbytes = nbytes_of(run)
        group.nbytes += nbytes
        self._backlog += nbytes
        if self._backlog > BACKLOG:
            self.gate.close()
        self._schedule()

    def forget(self, topic: str, offset: int) -> None:
        """Commit the end of a topic at ``offset``."""
        self.forgotten[topic] = offset
        self._group.forgotten.append((topic, offset))
        self._schedule()

    def put(self, table: str, key: str, value: Value | None) -> None:
        """Commit a value of the metadata; None deletes it."""
        self._group.puts[table, key] = value
        self._schedule()

    def hold(self) -> None:
        """Collect all input until ``release`` in one group."""
        self._held = True

    def release(self) -> None:
        """See ``hold``."""
        self._held = False
        self._schedule()

    # Callbacks

    def when_stored(self, call: Callable[[bool], None]) -> None:
        """See ``IStore``."""
        if self.failing is not None:
            call(False)
        elif self._group:
            self._group.waiting.append(call)
            self._commit_at_tick_end()
        elif self._ahead is not None:
            self._ahead.waiting.append(call)
        elif self._filing is not None and self._filing.group is not None:
            self._filing.group.waiting.append(call)
        else:
            call(True)

    def when_filed(self, call: Callable[[], None]) -> None:
        """Call ``call`` when everything that is committed now is in the file."""
        if self._segment:
            self._unfiled.append(call)
            self._lagging = True
            self._go_on()
        elif self._filing is not None:
            self._filing.filed.append(call)
        else:
            call()

    # Scheduling

    def _schedule(self) -> None:
        """Commit the group by the interval or by its size."""
        if self._held:
            return
        if self._group.nbytes >= self._nbytes:
            self._hand_over()
        elif self._timer is None and not self._due:
            self._examine_at_tick_end()

    def _commit_at_tick_end(self) -> None:
        """Commit the group without a timer, as a client waits for it."""
        if not self._due:
            self._due = True
            if self._ahead is None:
                self._examine_at_tick_end()

    def _examine_at_tick_end(self) -> None:
        """Wait for the rest of the tick. If a client waits by then, no timer is needed."""
        if not self._examining:
            self._examining = True
            self._at_tick_end(self._examine)

    def _examine(self) -> None:
        self._examining = False
        if self._due:
            self._hand_over()
        elif self._timer is None and self._group:
            self._timer = self._reactor.callLater(self._interval, self._elapsed)

    def _elapsed(self) -> None:
        """Commit the group after the interval, or earlier if the timer was that of a group before.

        A new timer for each group would cost more than a commit that is early.
        """
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        """Give the group to a thread, or mark it as due until one is free."""
        group, filing = self._group, self._filing
        self._due = False
        if not group:
            return
        # The journal has no gaps: a group is written there only when all groups before it are
        # there or in the file.
        if self._ahead is None and self._small and (filing is None or filing.group is None):
            self._ahead, self._group = group, Group()
            write = partial(self._writer.write_ahead, self._segment, group)
            self._journal.hand_over(write, self._written, self._not_written)
        elif self._ahead is None and filing is None:
            self._group = Group()
            self._file(group)
        else:
            self._due = True

    def _go_on(self) -> None:
        """Start the next write: a thread has become free, or a reader waits for the file."""
        if self._ahead is not None:
            return
        wanted = self._due or self._group.nbytes >= self._nbytes
        alone = not wanted or self._small
        full = self._lagging or self._segment.nbytes >= BLOCK_BYTES
        if alone and full and self._segment and self._filing is None and self.failing is None:
            self._file(None)
        if wanted:
            self._hand_over()

    @property
    def _small(self) -> bool:
        """True if the group is to be written to the journal."""
        return self._group.fits_journal and self._journal_pause is None

    # The journal

    def _written(self, _: None) -> None:
        group, self._ahead = self._ahead, None
        assert group is not None
        self.committed = last_offset_of(group.runs[-1]) + 1
        for call in group.waiting:
            call(True)
        if self._lag is None and not self._closing:
            self._lag = self._reactor.callLater(LAG, self._lagged)
        self._go_on()
        self._settle()

    def _not_written(self, failure: Failure) -> None:
        """Write the group to the file instead, with the messages that were added since."""
        log.error(
            "history: the journal cannot be written; messages go to the file instead: {reason}",
            reason=failure.getErrorMessage(),
        )
        group, self._ahead = self._ahead, None
        assert group is not None
        if not self._closing:
            self._journal_pause = self._reactor.callLater(RETRY, self._use_journal_again)
        if self._segment.stop <= first_offset_of(group.runs[0]):
            # The group is not part of the segment.
            self._group.runs[:0] = group.runs
            self._group.nbytes += group.nbytes
        self._group.direct = True
        if self.failing is None:
            self._group.waiting[:0] = group.waiting
        else:
            for call in group.waiting:
                call(False)
        self._hand_over()
        self._settle()

    def _use_journal_again(self) -> None:
        self._journal_pause = None

    def _lagged(self) -> None:
        self._lag = None
        self._lagging = True
        self._go_on()

    # The file

    def _file(self, group: Group | None) -> None:
        segment = self._segment
        self._filing = _Filing(segment, group, self._unfiled)
        # The segment before is in the file, so that its journal file is free.
        self._segment, self._unfiled, self._lagging = Segment(1 - segment.slot), [], False
        self._commit()

    def _commit(self) -> None:
        assert self._filing is not None
        self._committing = True
        commit = partial(self._writer.commit, self._filing.group, self._filing.segment)
        self._thread.hand_over(commit, self._filed, self._failed)

    def _filed(self, _: None) -> None:
        self._committing = False
        filing, self._filing = self._filing, None
        assert filing is not None
        group, segment = filing.group, filing.segment
        if self.failing is not None:
            log.info("history: the file can be written again")
            self.failing = None
        self._backlog -= segment.nbytes
        if segment:
            self.filed = segment.stop
        if group is not None:
            self._backlog -= group.nbytes
            if group.runs:
                self.filed = last_offset_of(group.runs[-1]) + 1
            for name, offset in group.forgotten:
                if self.forgotten.get(name) == offset:
                    del self.forgotten[name]
        self.committed = max(self.committed, self.filed)
        if self.gate.shut and self._backlog <= BACKLOG // 2:
            self.gate.open()
        self._after_transaction()
        if group is not None:
            for call in group.waiting:
                call(True)
        for when_filed in filing.filed:
            when_filed()
        self._go_on()
        self._settle()

    def _failed(self, failure: Failure) -> None:
        """Report the failure to the publishers that wait, and try again later."""
        self._committing = False
        self.failures += 1
        if self.failing is None:
            if not failure.check(sqlite3.Error, OSError):
                log.failure("history: a commit failed", failure)
            log.error(
                "history: the file cannot be written; publishes are refused until it can: {reason}",
                reason=failure.getErrorMessage(),
            )
        self.failing = failure.getErrorMessage()
        # Publishers are not held for so long: they are refused when they publish again.
        self.gate.open()
        assert self._filing is not None
        for group in (self._filing.group, self._group):
            if group is not None:
                waiting, group.waiting = group.waiting, []
                for call in waiting:
                    call(False)
        if not self._closing:
            self._retry = self._reactor.callLater(RETRY, self._commit)
        self._settle()


def _cancel(call: IDelayedCall | None) -> None:
    if call is not None and call.active():
        call.cancel()
