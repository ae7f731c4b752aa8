"""The durable history, embedded: SQLite in a file, written by one thread and read by others.

The reactor's thread gives out offsets and gathers. When the first message of a group has waited
for ``interval`` seconds, or ``nbytes`` bytes have come together, the group is handed to the
writer's thread, one at a time; if somebody waits, when the turn ends.
What has been committed is reported back, and releases who waits.

The newest runs are in memory as well, whether committed or not: most readers want those. How
what is asked of the history is answered is in ``questions.py``.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.broker.batch import Batch
from pubsub.broker.limits import Gate
from pubsub.errors import HistoryUnavailable, StartError
from pubsub.interfaces import IStore, Value
from pubsub.store.check import Checker, check_tail
from pubsub.store.checkpoint import Checkpoints
from pubsub.store.mark import Mark, mend_end
from pubsub.store.pool import Readers, Worker
from pubsub.store.questions import Questions
from pubsub.store.ranges import epochs
from pubsub.store.reader import read_bounds
from pubsub.store.retention import MICROSECONDS, Limits, Retention
from pubsub.store.runs import LAST, NBYTES, RunLog
from pubsub.store.schema import Lock, begin_epoch
from pubsub.store.tidying import Tidying
from pubsub.store.writer import Group, Writer

log = Logger()
# Bytes that may wait to be committed before publishers do, and of what is kept in memory besides.
BACKLOG = 16 * 1024**2
RECENT = 8 * 1024**2
MEMORY_BYTES = BACKLOG + RECENT
"""What the history takes of the process's memory."""
# Seconds until a commit that failed is tried again.
RETRY = 0.5


@dataclass(frozen=True, slots=True)
class SqliteOptions:
    """``interval`` seconds and ``nbytes`` bytes bound a group; ``retention`` what is kept."""

    interval: float = 0.005
    nbytes: int = 1024**2
    retention: tuple[Limits, ...] = field(default=(Limits("*", 7 * 86_400, 10 * 1024**3),))


@implementer(IStore)
class SqliteStore(Questions):
    """A history in the file at ``path``. ``at_turn_end`` is as ``BrokerService``'s."""

    durable = True

    def __init__(
        self,
        path: Path,
        reactor: Any,
        options: SqliteOptions | None = None,
        at_turn_end: Callable[[Callable[[], None]], object] | None = None,
    ) -> None:
        self.path = path
        self.gate = Gate()
        self.epoch = ""
        self.committed = self.first_offset = 0
        self.failures = 0
        self._reactor = reactor
        self._at_turn_end = at_turn_end or partial(reactor.callLater, 0)
        self._options = options or SqliteOptions()
        self._log = RunLog(2**62, MEMORY_BYTES)
        self._gathering = Group()
        self._writing: Group | None = None
        self._backlog = 0
        self._forgotten: dict[str, int] = {}
        self._timer: IDelayedCall | None = None
        self._retry: IDelayedCall | None = None
        self._due = self._looking = self._held = False
        self._failing: str | None = None
        self._closing = False

    # Life

    def open(self, run: int) -> None:
        """See IStore."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = Lock(self.path)
            try:
                self._writer = Writer(self.path, run, Retention(self._options.retention))
                self._begin(self._writer.connection, self._writer.mark)
            except BaseException:
                self._lock.release()
                raise
        except OSError as error:
            raise StartError(f"history: cannot use {self.path}: {error.strerror}") from None
        except sqlite3.Error as error:
            raise StartError(f"history: cannot use {self.path}: {error}") from None
        self._thread = Worker("history-writer", 1, self._reactor)
        self._checkpoints = Checkpoints(self.path, self._reactor, self._writer, self._thread)
        self._readers = Readers(self.path, self._reactor)
        self._checker = Checker(self._readers, self._reactor, self._unchecked)
        self._checker.start()
        self._tidying = Tidying(
            self._reactor, self._writer, self._thread, lambda: self._failing is None, self._tidied
        )

    def _begin(self, connection: sqlite3.Connection, mark: Mark) -> None:
        (self._clean,) = connection.execute("SELECT clean FROM state").fetchone()
        self._unchecked = 0 if self._clean else check_tail(connection)
        connection.execute("BEGIN IMMEDIATE")
        lost = mend_end(connection, mark.begin(connection), int(time.time() * MICROSECONDS))
        connection.execute("UPDATE state SET clean = 0")
        self.epoch = begin_epoch(connection)
        self._epochs = epochs(connection)
        connection.execute("COMMIT")
        mark.begin(connection)
        if lost is not None:
            log.error(
                "history: offsets {first} to {last} were committed and are not there any more",
                first=lost[0],
                last=lost[1] - 1,
            )
        self.first_offset, self.committed = read_bounds(connection)
        self._log = RunLog(2**62, MEMORY_BYTES, self.committed)
        self._tables: dict[str, list[tuple[str, bytes]]] = {}
        for space, key, value in connection.execute("SELECT space, key, value FROM metadata"):
            self._tables.setdefault(space, []).append((key, value))

    def close(self) -> Deferred[None]:
        """See IStore."""
        return ensureDeferred(self._close())

    async def _close(self) -> None:
        self._closing = True
        self._checker.stop()
        self._tidying.stop()
        _cancel(self._retry)
        stored: Deferred[bool] = Deferred()
        self.when_stored(stored.callback)
        _cancel(self._timer)
        self._hand_over()
        if not await stored:
            log.error(
                "history: {count} messages could not be written and are lost: {reason}",
                count=self.next_offset - self.committed,
                reason=self._failing,
            )
        _cancel(self._timer)
        self._checkpoints.stop()
        try:
            await self._thread.run(self._writer.close)
        except sqlite3.Error as error:
            log.error("history: closing: {reason}", reason=error)
        self._thread.stop()
        self._readers.stop()
        self._lock.release()

    @property
    def summary(self) -> str:
        """See IStore."""
        return (
            f"history: {self.path}, offsets {self.first_offset} to {self.next_offset}, "
            f"epoch {self.epoch}" + ("" if self._clean else "; it was not closed in order")
        )

    @property
    def next_offset(self) -> int:
        """See IStore."""
        return self._log.next_offset

    # Writing

    def append(self, batch: Batch) -> None:
        """See IStore."""
        if self._failing is not None:
            raise HistoryUnavailable(self._failing)
        run = self._log.append(batch)
        assert run is not None
        group = self._gathering
        group.runs.append(run)
        nbytes = run[NBYTES]
        group.nbytes += nbytes
        self._backlog += nbytes
        if self._backlog > BACKLOG:
            self.gate.close()
        self._soon()

    def forget(self, topic: str) -> None:
        """See IStore."""
        self._log.forget(topic)
        self._forgotten[topic] = self.next_offset
        self._gathering.forgotten.append((topic, self.next_offset))
        self._soon()

    def put(self, table: str, key: str, value: Value) -> None:
        """See IStore."""
        self._gathering.puts[table, key] = value
        self._soon()

    def delete(self, table: str, key: str) -> None:
        """See IStore."""
        self._gathering.puts[table, key] = None
        self._soon()

    def items(self, table: str) -> Iterable[tuple[str, bytes]]:
        """See IStore: as it was when the store was opened."""
        return tuple(self._tables.get(table, ()))

    @contextmanager
    def together(self) -> Iterator[None]:
        """See IStore: a group is one transaction, so it stays here until all is in it."""
        if self._failing is not None:
            raise HistoryUnavailable(self._failing)
        self._held = True
        try:
            yield
        finally:
            self._held = False
            self._soon()

    def when_stored(self, call: Callable[[bool], None]) -> None:
        """See IStore."""
        if self._failing is not None:
            call(False)
        elif self._gathering:
            self._gathering.waiting.append(call)
            self._hurry()
        elif self._writing is not None:
            self._writing.waiting.append(call)
        else:
            call(True)

    def _soon(self) -> None:
        """Something is there to commit."""
        if self._held:
            return
        if self._writing is None and self._gathering.nbytes >= self._options.nbytes:
            self._hand_over()
        elif self._timer is None and not self._due:
            self._look_at_turn_end()

    def _hurry(self) -> None:
        """Somebody waits for what has gathered."""
        if not self._due:
            self._due = True
            if self._writing is None:
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
        elif self._timer is None and self._gathering:
            self._timer = self._reactor.callLater(self._options.interval, self._elapsed)

    def _elapsed(self) -> None:
        """What has gathered has waited long enough; not as long if the timer was an earlier one's,
        as to set it anew for each group costs more than a commit that comes early."""
        self._timer = None
        self._hand_over()

    def _hand_over(self) -> None:
        """Give what has gathered to the writer, as soon as it has nothing else to do."""
        group = self._gathering
        self._due = bool(group) and self._writing is not None
        if group and not self._due:
            self._writing, self._gathering = group, Group()
            self._commit()

    def _commit(self) -> None:
        assert self._writing is not None
        commit = partial(self._writer.commit, self._writing)
        self._thread.hand_over(commit, self._committed, self._failed)

    def _committed(self, _: None) -> None:
        group, self._writing = self._writing, None
        assert group is not None
        if self._failing is not None:
            log.info("history: it is written again")
            self._failing = None
        if group.runs:
            self.committed = group.runs[-1][LAST] + 1
        self._backlog -= group.nbytes
        for name, offset in group.forgotten:
            if self._forgotten.get(name) == offset:
                del self._forgotten[name]
        if self.gate.shut and self._backlog <= BACKLOG // 2:
            self.gate.open()
        self._checkpoints.look()
        for call in group.waiting:
            call(True)
        if self._due or self._gathering.nbytes >= self._options.nbytes:
            self._hand_over()

    def _failed(self, failure: Failure) -> None:
        """Nothing of a group could be written: publishers are told, and it is tried again."""
        self.failures += 1
        if self._failing is None:
            if not failure.check(sqlite3.Error, OSError):
                log.failure("history: a commit failed", failure)
            log.error(
                "history: it cannot be written and takes nothing more until it can: {reason}",
                reason=failure.getErrorMessage(),
            )
        self._failing = failure.getErrorMessage()
        # Whoever waits here would wait for long; it is refused when it publishes again.
        self.gate.open()
        for group in (self._writing, self._gathering):
            if group is not None:
                waiting, group.waiting = group.waiting, []
                for call in waiting:
                    call(False)
        if not self._closing:
            self._retry = self._reactor.callLater(RETRY, self._commit)

    def _tidied(self, first: int) -> None:
        self.first_offset = first
        self._checkpoints.look()


def _cancel(call: IDelayedCall | None) -> None:
    if call is not None and call.active():
        call.cancel()
