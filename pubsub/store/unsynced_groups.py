"""``UnsyncedGroups``: the groups that are written and not on disk yet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from pubsub.store.commit_group import CommitGroup


class UnsyncedGroups:
    """The groups, oldest first. A sync covers those that were written when it started."""

    def __init__(self) -> None:
        self._groups: deque[CommitGroup] = deque()
        self._covered = 0
        self.nbytes = 0
        """Bytes of their messages."""
        self.awaited = False
        """True if a client waits for the disk with one of them."""

    def __bool__(self) -> bool:
        return bool(self._groups)

    def __iter__(self) -> Iterator[CommitGroup]:
        return iter(self._groups)

    def add(self, group: CommitGroup) -> None:
        """Add a group that was written."""
        self._groups.append(group)
        self.nbytes += group.nbytes
        self.awaited = self.awaited or bool(group.synced)

    def when_synced(self, call: Callable[[bool], None]) -> None:
        """Call ``call`` when the newest group is on disk."""
        self._groups[-1].synced.append(call)
        self.awaited = True

    def cover(self) -> None:
        """A sync starts."""
        self._covered = len(self._groups)

    def uncover(self) -> None:
        """The sync has failed."""
        self._covered = 0

    def take_covered(self) -> list[CommitGroup]:
        """Remove and return the groups that the sync has brought to the disk."""
        return self._take(self._covered)

    def take_all(self) -> list[CommitGroup]:
        """Remove and return all groups, after a write with a sync."""
        return self._take(len(self._groups))

    def _take(self, number: int) -> list[CommitGroup]:
        # A sync that runs covers the same groups.
        self._covered = max(self._covered - number, 0)
        groups = [self._groups.popleft() for _ in range(number)]
        self.awaited = any(group.synced for group in self._groups)
        self.nbytes -= sum(group.nbytes for group in groups)
        return groups
