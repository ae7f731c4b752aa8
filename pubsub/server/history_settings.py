"""The history that the settings describe: its store, and the memory that it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.application.service import Service

from pubsub.broker.topic_space.durability import Durability
from pubsub.errors import ConfigurationError
from pubsub.store.commits.commit_gate import unsynced_limit
from pubsub.store.log_options import options_of
from pubsub.store.log_store import MEMORY_BYTES, LogStore
from pubsub.store.memory_store import MemoryStore
from pubsub.store.segments.log_directory import check_free
from pubsub.store.shared_store import SharedStore

if TYPE_CHECKING:
    from pathlib import Path

    from twisted.internet.interfaces import IReactorTime

    from pubsub.broker.wall_clock import WallClock
    from pubsub.interfaces import IStore
    from pubsub.wire.reactor_tick import Call


def history_bytes(settings: Mapping[str, Any]) -> int:
    """Return the bytes of memory that the history takes."""
    if settings["store"] is not None:
        return MEMORY_BYTES + unsynced_limit(settings["max-memory"])
    messages, nbytes = settings["history"]
    return nbytes if messages else 0


def check_history(settings: Mapping[str, Any], reserved: int = 0) -> None:
    """Raise ConfigurationError for settings that contradict each other.

    ``reserved`` are the bytes that the history of a broker that runs has had since its start.
    """
    if settings["store"] is None:
        for pattern, durability in settings["durability"]:
            if durability is Durability.SYNC:
                raise ConfigurationError(
                    f"durability: {pattern}=sync needs a history on disk; remove --store memory"
                )
    nbytes = max(history_bytes(settings), reserved)
    if 0 < settings["max-memory"] <= nbytes:
        raise ConfigurationError(
            f"max-memory: the history alone needs {nbytes} bytes; give more memory"
        )


class HistoryCheck(Service):
    """Refuses the history in ``directory`` if another broker uses it, before listeners listen."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def privilegedStartService(self) -> None:
        """Raise StartError if another broker uses it."""
        check_free(self._directory)


def make_store(
    settings: Mapping[str, Any],
    reactor: IReactorTime,
    wall: WallClock,
    tick_end: Callable[[Call], object],
) -> IStore:
    """Return the history."""
    location = settings["store"]
    if location is None:
        return MemoryStore(*settings["history"])
    shares = settings["backplane"] and settings["backplane-history"] == "shared"
    return (SharedStore if shares else LogStore)(
        location.directory,
        reactor,
        options_of(settings),
        tick_end,
        wall.retention_time,
        location.migrate,
    )
