"""``CommitFigures``: the number of groups that were committed, and the time that took."""

from __future__ import annotations

from collections.abc import Sequence

from pubsub.broker.figures.histogram import Histogram
from pubsub.interfaces import CommitWatcher
from pubsub.store.commits.unsynced_groups import UnsyncedGroup
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.records.stored_runs import first_offset_of, last_offset_of


class CommitFigures:
    """The figures from the reactor's time ``now`` on; all times are in seconds."""

    def __init__(self, now: float) -> None:
        self.commits = 0
        """Groups that are written."""
        self.failures = 0
        """Writes and syncs that failed."""
        self.last_commit = now
        """When the last group was written, or this object made."""
        self.watcher: CommitWatcher | None = None
        """Called after each group with messages was written."""
        self.write_times = Histogram()
        """The time from the first message of a group until the group is written."""
        self.sync_times = Histogram()
        """The time from the first message of a group until the group is on disk."""

    def totals(self, now: float) -> dict[str, float]:
        """Return those of ``IStore.figures``."""
        return {
            "commits": self.commits,
            "failures": self.failures,
            "seconds_since_commit": now - self.last_commit,
        }

    def wrote(self, group: WriteGroup, now: float) -> None:
        """Count a group that is written."""
        self.commits += 1
        self.last_commit = now
        if not group.runs:
            return
        seconds = now - group.since
        self.write_times.observe(seconds)
        if self.watcher is not None:
            count = last_offset_of(group.runs[-1]) + 1 - first_offset_of(group.runs[0])
            self.watcher(count, group.nbytes, seconds)

    def synced(self, groups: Sequence[UnsyncedGroup], now: float) -> None:
        """Count groups that are on disk."""
        for group in groups:
            self.sync_times.observe(now - group.since, group.count)
