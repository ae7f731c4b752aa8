"""``UnsyncedGroups``: the groups that are written and not on disk yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from pubsub.store.commits.write_group import WriteGroup

# Groups whose first messages came within this time are one, in seconds: thousands of them would
# stop the reactor for milliseconds when they are on disk.
_TOGETHER = 0.01


@dataclass(slots=True, eq=False)
class UnsyncedGroup:
    """Groups that were written one after another, and the callbacks that wait for the disk.

    ``since`` is the reactor's time at which the first message of the oldest was added, ``count``
    the number of those with messages, and ``nbytes`` the bytes of these.
    """

    since: float
    count: int
    nbytes: int
    synced: list[Callable[[bool], None]]


class UnsyncedGroups:
    """The groups, oldest first. A sync covers those that were written when it started."""

    def __init__(self) -> None:
        self._groups: deque[UnsyncedGroup] = deque()
        self._covered = 0
        self.nbytes = 0
        """Bytes of their messages."""
        self.awaited = False
        """True if a client waits for the disk with one of them."""

    def __bool__(self) -> bool:
        return bool(self._groups)

    def add(self, group: WriteGroup) -> None:
        """Add a group that was written."""
        self.nbytes += group.nbytes
        if group.synced:
            self.awaited = True
        elif len(self._groups) > self._covered and group.runs:
            newest = self._groups[-1]
            if newest.count and group.since - newest.since < _TOGETHER:
                newest.count += 1
                newest.nbytes += group.nbytes
                return
        count = 1 if group.runs else 0
        self._groups.append(UnsyncedGroup(group.since, count, group.nbytes, group.synced))

    def when_synced(self, call: Callable[[bool], None]) -> None:
        """Call ``call`` when the newest group is on disk."""
        self._groups[-1].synced.append(call)
        self.awaited = True

    def take_waiting(self) -> list[Callable[[bool], None]]:
        """Remove and return all callbacks, to be called with False."""
        waiting = [call for group in self._groups for call in group.synced]
        for group in self._groups:
            group.synced = []
        self.awaited = False
        return waiting

    def cover(self) -> None:
        """A sync starts."""
        self._covered = len(self._groups)

    def uncover(self) -> None:
        """The sync has failed."""
        self._covered = 0

    def take_covered(self) -> list[UnsyncedGroup]:
        """Remove and return the groups that the sync has brought to the disk."""
        return self._take(self._covered)

    def take_all(self) -> list[UnsyncedGroup]:
        """Remove and return all groups, after a write with a sync."""
        return self._take(len(self._groups))

    def _take(self, number: int) -> list[UnsyncedGroup]:
        # A sync that runs covers no others: a write with a sync takes all.
        self._covered = 0
        groups = [self._groups.popleft() for _ in range(number)]
        self.awaited = any(group.synced for group in self._groups)
        self.nbytes -= sum(group.nbytes for group in groups)
        return groups
