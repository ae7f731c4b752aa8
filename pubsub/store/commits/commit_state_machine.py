"""The states of commits: when groups are written and synced; the callbacks that wait. Sans-IO.

One group is collected while at most one is written, and at most one sync runs beside that.

    event                       effect
    --------------------------  -----------------------------------------------------------------
    input                       collected; written after the interval, when the group is full, or
                                at the end of the tick if a client waits for it
    group due, none written     it is written, maybe at once; with a sync if a client waits for it
    written                     it is committed: callbacks of ``when_written`` are called
    written with a sync         callbacks of ``when_synced`` are called too
    a client waits for the      a sync, unless one runs; after that, another
    disk, or 4 MiB or a second
    of groups are not synced
    synced                      callbacks of ``when_synced`` of the groups that it covers
    write or sync failed        all callbacks are called with False; the step is repeated
                                after half a second, with a sync, until that works
    close                       everything is written and synced; a failure is not retried twice
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall

from pubsub.interfaces import Value
from pubsub.store.commits.commit_calls import call_all
from pubsub.store.commits.commit_effects import Effects
from pubsub.store.commits.commit_figures import CommitFigures
from pubsub.store.commits.commit_gate import MAX_UNWRITTEN, CommitGate
from pubsub.store.commits.unsynced_groups import UnsyncedGroup, UnsyncedGroups
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.records.record import End, Put
from pubsub.store.records.stored_runs import RunRecord, first_offset_of, nbytes_of, run_of

SYNC_BYTES = 4 * 1024**2
"""Bytes that are written and not synced, from which on a sync starts."""
SYNC_SECONDS = 1.0
RETRY_SECONDS = 0.5


class CommitStateMachine:
    """Commits after ``interval`` seconds or ``nbytes`` bytes; ``unsynced``: see ``CommitGate``."""

    def __init__(
        self, effects: Effects, interval: float, nbytes: int, committed: int, unsynced: int
    ) -> None:
        self.gate = CommitGate(unsynced)
        self.committed = committed
        """Every message before this offset is written."""
        self.failing: str | None = None
        """The reason why the log cannot be written; None while it can."""
        self.figures = CommitFigures(effects.seconds())
        self._effects = effects
        self._interval = interval
        self._nbytes = nbytes
        self._group = WriteGroup()
        self._writing: WriteGroup | None = None
        self._unsynced = UnsyncedGroups()
        self._write_runs = self._sync_runs = self._with_sync = False
        self._due = self._examining = self._closing = False
        self._holds = 0
        self._interval_timer: IDelayedCall | None = None
        self._sync_timer: IDelayedCall | None = None
        self._retry_timer: IDelayedCall | None = None
        self._settled: Deferred[None] | None = None

    def reconfigure(self, interval: float, nbytes: int) -> None:
        """Use this interval and this size from the next group on."""
        self._interval = interval
        self._nbytes = nbytes

    # Input

    def add(self, run: RunRecord) -> None:
        """Commit ``run``, which has the next offsets."""
        group, number = self._group, run_of(run)
        if not group.runs:
            group.since = self._effects.seconds()
        elif group.run != number:
            group.cut(first_offset_of(run))
        group.run = number
        group.runs.append(run)
        nbytes = nbytes_of(run)
        group.nbytes += nbytes
        gate = self.gate
        gate.unwritten += nbytes
        gate.unsynced += nbytes
        if (gate.unwritten > MAX_UNWRITTEN or gate.unsynced > gate.most) and self.failing is None:
            gate.close()
        if group.nbytes >= self._nbytes or not (self._examining or self._interval_timer):
            self._schedule()

    def end(self, topic: str, offset: int) -> int:
        """Commit the end of a topic at ``offset``; return its place (see ``WriteGroup.end``)."""
        offset = self._group.end(End(topic, offset))
        self._schedule()
        return offset

    def put(self, table: str, key: str, value: Value | None) -> None:
        """Commit a value of the metadata; None deletes it."""
        self._group.puts[table, key] = Put(table, key, value)
        self._schedule()

    def hold(self, offset: int) -> None:
        """Collect all input until ``release`` in one record; ``offset`` is the next one.

        That may be in a later tick. It may be called again before.
        """
        if not self._holds:
            self._group.hold(offset)
        self._holds += 1

    def release(self) -> None:
        """See ``hold``."""
        self._holds -= 1
        if self._holds:
            return
        self._group.release()
        if self._due:
            # It became due while it was held.
            self._examine_at_tick_end()
        self._schedule()

    # Callbacks

    def when_written(self, call: Callable[[bool], None]) -> None:
        """Call ``call`` with True when all input so far is written, with False if that fails."""
        if self.failing is not None:
            call(False)
        elif self._group:
            self._group.written.append(call)
            self._commit_at_tick_end()
        elif self._writing is not None:
            self._writing.written.append(call)
        else:
            call(True)

    def when_synced(self, call: Callable[[bool], None]) -> None:
        """Call ``call`` with True when all input so far is on disk, with False if that fails."""
        if self.failing is not None:
            call(False)
        elif self._group:
            self._group.synced.append(call)
            self._commit_at_tick_end()
        elif self._writing is not None:
            self._writing.synced.append(call)
        elif self._unsynced:
            self._unsynced.when_synced(call)
            self._go_on()
        else:
            call(True)

    # Scheduling

    def _schedule(self) -> None:
        if self._holds:
            return
        if self._group.nbytes >= self._nbytes:
            self._due = True
            self._go_on()
        elif self._interval_timer is None and not self._due:
            self._examine_at_tick_end()

    def _commit_at_tick_end(self) -> None:
        """Commit the group without a timer, as a client waits for it."""
        if not self._due:
            self._due = True
            if self._writing is None:
                self._examine_at_tick_end()

    def _examine_at_tick_end(self) -> None:
        """Wait for the rest of the tick. If a client waits by then, no timer is needed."""
        if not self._examining:
            self._examining = True
            self._effects.at_tick_end(self._examine)

    def _examine(self) -> None:
        self._examining = False
        if self._due:
            self._go_on()
        elif self._interval_timer is None and self._group:
            self._interval_timer = self._effects.call_later(self._interval, self._elapsed)

    def _elapsed(self) -> None:
        """Commit the group after the interval, or earlier if the timer was that of a group before.

        A new timer for each group would cost more than a commit that is early.
        """
        self._interval_timer = None
        self._due = True
        self._go_on()

    def _go_on(self) -> None:
        """Start the step that is due, unless it runs."""
        if self.failing is not None:
            return
        if not self._holds and not self._write_runs and self._due and self._group:
            self._write()
        self._due = self._due and bool(self._group)
        if not self._sync_runs and not self._with_sync and self._needs_sync():
            self._sync_runs = True
            self._unsynced.cover()
            self._effects.sync()

    def _write(self) -> None:
        self._writing, self._group = self._group, WriteGroup()
        self._due = False
        self._start_write(bool(self._writing.synced))

    def _start_write(self, sync: bool) -> None:
        self._write_runs = True
        self._with_sync = sync
        self._effects.write(self._writing, sync)

    def _needs_sync(self) -> bool:
        if not self._unsynced:
            return False
        return self._closing or self._unsynced.awaited or self._unsynced.nbytes >= SYNC_BYTES

    # Results

    def wrote(self) -> None:
        """The write that was started has ended."""
        group, self._writing = self._writing, None
        self._write_runs = False
        if group is not None:
            self.committed = group.stop(self.committed)
            self.figures.wrote(group, self._effects.seconds())
            self._unsynced.add(group)
        if self._with_sync:
            self._with_sync = False
            self._call_synced(self._unsynced.take_all())
        self._time_sync()
        self._works_again()
        if group is not None:
            waiting, group.written = group.written, []
            call_all(waiting, True)
            self.gate.wrote(group.nbytes)
        self._go_on()
        self._settle()

    def synced(self) -> None:
        """The sync that was started has ended."""
        self._sync_runs = False
        self._call_synced(self._unsynced.take_covered())
        self._time_sync()
        self._go_on()
        self._settle()

    def _call_synced(self, groups: Sequence[UnsyncedGroup]) -> None:
        """Call the functions that wait for these groups, which are on disk."""
        self.figures.synced(groups, self._effects.seconds())
        self.gate.synced(sum(group.nbytes for group in groups))
        for group in groups:
            call_all(group.synced, True)

    def _time_sync(self) -> None:
        """Sync unsynced groups within a second."""
        if self._unsynced and self._sync_timer is None and not self._closing:
            self._sync_timer = self._effects.call_later(SYNC_SECONDS, self._sync_elapsed)

    def _sync_elapsed(self) -> None:
        self._sync_timer = None
        if self._unsynced and not self._sync_runs and not self._with_sync and not self.failing:
            self._sync_runs = True
            self._unsynced.cover()
            self._effects.sync()

    def write_failed(self, reason: Any) -> None:
        """The write that was started has failed; its group stays the one to be written."""
        self._write_runs = self._with_sync = False
        self._fail(reason)

    def sync_failed(self, reason: Any) -> None:
        """The sync that was started has failed."""
        self._sync_runs = False
        self._unsynced.uncover()
        self._fail(reason)

    def _fail(self, reason: Any) -> None:
        self.figures.failures += 1
        if self.failing is None:
            self.failing = self._effects.failed(reason)
        # Publishers are refused from now on, and not held.
        self.gate.open()
        writing = [] if self._writing is None else [self._writing]
        waiting = self._unsynced.take_waiting()
        for group in (*writing, self._group):
            waiting += [*group.written, *group.synced]
            group.written, group.synced = [], []
        call_all(waiting, False)
        if self._retry_timer is None and not self._closing:
            self._retry_timer = self._effects.call_later(RETRY_SECONDS, self._retry)
        self._settle()

    def _retry(self) -> None:
        self._retry_timer = None
        if self._write_runs or self._sync_runs:
            # The other one still runs, and tries again if it fails.
            self._retry_timer = self._effects.call_later(RETRY_SECONDS, self._retry)
            return
        self._start_write(True)

    def _works_again(self) -> None:
        if self.failing is not None and not self._unsynced:
            self.failing = None
            self._due = bool(self._group)
            self._effects.recovered()

    # The end

    async def finish(self) -> bool:
        """Write and sync everything if possible; return whether nothing is left."""
        self._closing = True
        for timer in (self._retry_timer, self._interval_timer, self._sync_timer):
            if timer is not None and timer.active():
                timer.cancel()
        self._retry_timer = self._interval_timer = self._sync_timer = None
        await self._until_settled()
        retried = False
        while self.failing is not None or self._group or self._unsynced:
            if self.failing is None:
                self._due = True
                self._go_on()
            elif retried:
                return False
            else:
                retried = True
                self._start_write(True)
            await self._until_settled()
        return True

    async def _until_settled(self) -> None:
        while self._write_runs or self._sync_runs:
            self._settled = Deferred()
            await self._settled

    def _settle(self) -> None:
        """Let ``finish`` continue."""
        settled, self._settled = self._settled, None
        if settled is not None:
            settled.callback(None)
