"""A disk whose writes and syncs a test completes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IDelayedCall
from twisted.internet.task import Clock

from pubsub.store.commits.commit_state_machine import (
    RETRY_SECONDS,
    SYNC_BYTES,
    CommitStateMachine,
)
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.records.record import End
from pubsub.store.records.stored_runs import last_offset_of

INTERVAL = 0.01
MAX_UNSYNCED = 48 * 1024**2
SMALL, GROUP, LARGE = 10, 2000, SYNC_BYTES // 2


class Disk:
    """The outside of a ``CommitStateMachine``: the test decides when writes and syncs end, and how.

    ``written`` and ``synced`` are the offsets before which all messages are. If ``at_once`` is not
    None, the next write without a sync has ended when ``write`` returns: well, if it is True.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.commits = CommitStateMachine(self, INTERVAL, GROUP, 0, MAX_UNSYNCED)
        self.writing: tuple[WriteGroup | None, bool] | None = None
        self.syncing: int | None = None
        self.written = self.synced = 0
        self.values: dict[str, bytes] = {}
        self.ended: list[str] = []
        self.tick_end: list[Callable[[], None]] = []
        self.reports: list[str] = []
        self.at_once: bool | None = None
        self._group: WriteGroup | None = None

    # Effects

    def write(self, group: WriteGroup | None, sync: bool) -> None:
        assert self.writing is None, "two writes at once"
        assert self._group is None or group is self._group, "a group that failed was left out"
        assert group is not None or sync, "a write of nothing"
        self.writing = (group, sync)
        works, self.at_once = self.at_once, None
        if works is not None and not sync:
            self.end_write(works)

    def sync(self) -> None:
        assert self.syncing is None, "two syncs at once"
        self.syncing = self.written

    def call_later(self, seconds: float, call: Callable[[], None]) -> IDelayedCall:
        later: IDelayedCall = self.clock.callLater(seconds, call)
        return later

    def seconds(self) -> float:
        return self.clock.seconds()

    def at_tick_end(self, call: Callable[[], None]) -> object:
        self.tick_end.append(call)
        return None

    def failed(self, reason: Any) -> str:
        self.reports.append(f"failed: {reason}")
        return str(reason)

    def recovered(self) -> None:
        self.reports.append("recovered")

    # The test's side

    def end_write(self, works: bool = True) -> None:
        """End the write that runs."""
        assert self.writing is not None
        (group, sync), self.writing = self.writing, None
        if not works:
            self._group = group
            self.commits.write_failed("no space")
            return
        self._group = None
        if group is not None:
            if group.runs:
                self.written = last_offset_of(group.runs[-1]) + 1
            for put in (*[put for _, puts in group.ends for put in puts], *group.puts.values()):
                assert isinstance(put.value, bytes)
                self.values[put.key] = put.value
            self.ended += [end.topic for end, _ in group.ends if isinstance(end, End)]
        if sync:
            self.synced = self.written
        self.commits.wrote()

    def end_sync(self, works: bool = True) -> None:
        """End the sync that runs."""
        assert self.syncing is not None
        covered, self.syncing = self.syncing, None
        if works:
            self.synced = max(self.synced, covered)
            self.commits.synced()
        else:
            self.commits.sync_failed("no disk")

    def tick(self) -> None:
        """End the tick."""
        due, self.tick_end = self.tick_end, []
        for call in due:
            call()

    def settle(self) -> None:
        """Let everything that is under way end well, and time pass, until nothing happens."""
        for _ in range(200):
            self.tick()
            if self.writing is not None:
                self.end_write()
            if self.syncing is not None:
                self.end_sync()
            self.clock.advance(RETRY_SECONDS)
            if not (
                self.tick_end
                or self.clock.getDelayedCalls()
                or self.writing
                or self.syncing is not None
            ):
                return
        raise AssertionError("it never ends")
