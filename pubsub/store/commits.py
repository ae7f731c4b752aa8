"""When what is given to the durable history gets to disk, and who is told.

The reactor's thread gathers a group. When it has waited for ``interval`` seconds, or is ``nbytes``
large, or if somebody waits for it as soon as the turn ends, it is handed to a thread, one at a
time. A small one goes into the journal, and is committed when it is there; a while later (``LAG``)
all that the journal has got meanwhile goes into the file in one transaction, as commits go on.
A large one, or one that is more than messages, goes into the file at once, with all before it.
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
from pubsub.store.stored_runs import LAST, NBYTES, OFFSET, Kept
from pubsub.store.threads import Worker
from pubsub.store.writer import Group, Writer

log = Logger()
# Bytes that may wait to get into the file before publishers do.
BACKLOG = 16 * 1024**2
LAG = 0.05
"""Seconds until what is in the journal goes into the file as well."""
# Seconds until a transaction that failed is tried again.
RETRY = 0.5


@dataclass(slots=True, eq=False)
class _Filing:
    """On its way into the file: ``segment`` is in the journal, ``group`` is not. ``filed`` are
    those who wait for it to get there."""

    segment: Segment
    group: Group | None
    filed: list[Callable[[], None]] = field(default_factory=list)


class Commits:
    """What is gathered, and what is under way. ``at_tick_end`` is as ``BrokerService``'s."""

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
        """Why the file cannot be written, if it cannot."""
        self.failures = 0
        self.forgotten: dict[str, int] = {}
        """The topics whose end is not in the file yet, by the offset they ended at."""
        self._reactor = reactor
        self._at_turn_end = at_tick_end
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
        # The journal could not be written, and is not tried for a while.
        self._shunned: IDelayedCall | None = None
        self._settled: Deferred[None] | None = None
        self._due = self._looking = self._held = self._lagging = False
        self._committing = self._closing = False

    def begin(self, writer: Writer, thread: Worker, told: Callable[[], None]) -> None:
        """Commit with ``writer``, whose file is written in ``thread``; ``told`` is called after
        each transaction there."""
        self._writer = writer
        self._thread = thread
        self._journal = Worker("history-journal", 1, self._reactor)
        self._told = told

    async def finish(self) -> bool:
        """Commit what is left, as far as it can be; returns whether that was all."""
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
        for timer in (self._timer, self._lag, self._shunned):
            _cancel(timer)
        self._journal.stop()
        filing = self._filing
        if filing is not None:
            for told in (*filing.filed, *self._unfiled):
                told()
        return not self._group and (filing is None or filing.group is None)

    def _settle(self) -> None:
        """A thread has done something."""
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.callback(None)

    # What is given

    def add(self, run: Kept) -> None:
        """Commit ``run``, whose offsets come next."""
        group = self._group
        group.runs.append(run)
        nbytes = run[NBYTES]
        group.nbytes += nbytes
        self._backlog += nbytes
        if self._backlog > BACKLOG:
            self.gate.close()
        self._soon()

    def forget(self, topic: str, offset: int) -> None:
        """The topic ended at ``offset``."""
        self.forgotten[topic] = offset
        self._group.forgotten.append((topic, offset))
        self._soon()

    def put(self, table: str, key: str, value: Value | None) -> None:
        """Keep ``value``, or nothing any more."""
        self._group.puts[table, key] = value
        self._soon()

    def hold(self) -> None:
        """What comes until ``release`` is one group."""
        self._held = True

    def release(self) -> None:
        """See ``hold``."""
        self._held = False
        self._soon()

    # Who waits

    def when_stored(self, call: Callable[[bool], None]) -> None:
        """See IStore."""
        if self.failing is not None:
            call(False)
        elif self._group:
            self._group.waiting.append(call)
            self._hurry()
        elif self._ahead is not None:
            self._ahead.waiting.append(call)
        elif self._filing is not None and self._filing.group is not None:
            self._filing.group.waiting.append(call)
        else:
            call(True)

    def when_filed(self, call: Callable[[], None]) -> None:
        """Call ``call`` once all that is committed is in the file."""
        if self._segment:
            self._unfiled.append(call)
            self._lagging = True
            self._go_on()
        elif self._filing is not None:
            self._filing.filed.append(call)
        else:
            call()

    # When

    def _soon(self) -> None:
        """Something is there to commit."""
        if self._held:
            return
        if self._group.nbytes >= self._nbytes:
            self._hand_over()
        elif self._timer is None and not self._due:
            self._look_at_turn_end()

    def _hurry(self) -> None:
        """Somebody waits for what has gathered."""
        if not self._due:
            self._due = True
            if self._ahead is None:
                self._look_at_turn_end()

    def _look_at_turn_end(self) -> None:
        """This turn may bring more, and somebody who waits: then no timer is needed."""
        if not self._looking:
            self._looking = True
            self._at_turn_end(self._look)

    def _look(self) -> None:
        self._looking = False
        if self._due:
            self._hand_over()
        elif self._timer is None and self._group:
            self._timer = self._reactor.callLater(self._interval, self._elapsed)

    def _elapsed(self) -> None:
        """What has gathered has waited long enough; not as long if the timer was an earlier one's,
        as to set it anew for each group costs more than a commit that comes early."""
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        """Give what has gathered to a thread, as soon as it can go where it belongs."""
        group, filing = self._group, self._filing
        self._due = False
        if not group:
            return
        # The journal has no gaps: nothing goes there before what it has not is in the file.
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
        """A thread has become free, or somebody waits for the file."""
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
        """Does what has gathered go into the journal?"""
        return self._group.few and self._shunned is None

    # The journal

    def _written(self, _: None) -> None:
        group, self._ahead = self._ahead, None
        assert group is not None
        self.committed = group.runs[-1][LAST] + 1
        for call in group.waiting:
            call(True)
        if self._lag is None and not self._closing:
            self._lag = self._reactor.callLater(LAG, self._lagged)
        self._go_on()
        self._settle()

    def _not_written(self, failure: Failure) -> None:
        """It has to go into the file at once, with the messages that have come since."""
        log.error("history: the journal: {reason}", reason=failure.getErrorMessage())
        group, self._ahead = self._ahead, None
        assert group is not None
        if not self._closing:
            self._shunned = self._reactor.callLater(RETRY, self._shun_no_more)
        if self._segment.stop <= group.runs[0][OFFSET]:
            # It did not even get there.
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

    def _shun_no_more(self) -> None:
        self._shunned = None

    def _lagged(self) -> None:
        self._lag = None
        self._lagging = True
        self._go_on()

    # The file

    def _file(self, group: Group | None) -> None:
        segment = self._segment
        self._filing = _Filing(segment, group, self._unfiled)
        # The segment before is in the file, so that its place in the journal is free.
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
            log.info("history: it is written again")
            self.failing = None
        self._backlog -= segment.nbytes
        if segment:
            self.filed = segment.stop
        if group is not None:
            self._backlog -= group.nbytes
            if group.runs:
                self.filed = group.runs[-1][LAST] + 1
            for name, offset in group.forgotten:
                if self.forgotten.get(name) == offset:
                    del self.forgotten[name]
        self.committed = max(self.committed, self.filed)
        if self.gate.shut and self._backlog <= BACKLOG // 2:
            self.gate.open()
        self._told()
        if group is not None:
            for call in group.waiting:
                call(True)
        for told in filing.filed:
            told()
        self._go_on()
        self._settle()

    def _failed(self, failure: Failure) -> None:
        """Nothing could be written: publishers are told, and it is tried again."""
        self._committing = False
        self.failures += 1
        if self.failing is None:
            if not failure.check(sqlite3.Error, OSError):
                log.failure("history: a commit failed", failure)
            log.error(
                "history: it cannot be written and takes nothing more until it can: {reason}",
                reason=failure.getErrorMessage(),
            )
        self.failing = failure.getErrorMessage()
        # Whoever waits here would wait for long; it is refused when it publishes again.
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
