"""The options of the log: when messages are committed, and for how long they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pubsub.store.commits.commit_gate import MAX_UNSYNCED, unsynced_limit
from pubsub.store.upkeep.retention_limits import RetentionLimits


@dataclass(frozen=True, slots=True)
class LogOptions:
    """``interval`` seconds and ``nbytes`` bytes bound a group; ``retention`` bounds the history.

    With ``compress`` upkeep compresses segments. Publishers are held while more than ``unsynced``
    bytes are not on disk. ``uncached`` if large writes do not stay in the page cache.
    """

    interval: float = 0.005
    nbytes: int = 1024**2
    retention: tuple[RetentionLimits, ...] = field(
        default=(RetentionLimits("*", 7 * 86_400, 10 * 1024**3),)
    )
    compress: bool = False
    unsynced: int = MAX_UNSYNCED
    uncached: bool = True


def options_of(settings: Mapping[str, Any]) -> LogOptions:
    """Return the options that the broker's settings have."""
    return LogOptions(
        settings["commit-interval"],
        settings["commit-bytes"],
        settings["retention"],
        settings["compression"] == "zstd",
        unsynced_limit(settings["max-memory"]),
        settings["tuning"],
    )
