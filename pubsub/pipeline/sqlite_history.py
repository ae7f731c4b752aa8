"""A history of version 0.1 read from its file. The broker need not run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pubsub.broker.access import RESERVED
from pubsub.pipeline.history import (
    OTHER_HISTORY,
    BatchOrGap,
    DamagedRange,
    ExpiredBefore,
    Rejected,
    TopicSize,
    Unreachable,
    WrongHistory,
)
from pubsub.pipeline.offsets import PartitionBounds
from pubsub.store import arrow
from pubsub.store.block_ranges import epochs, offset_at, read_parcel, topics_in
from pubsub.store.block_reader import read_bounds
from pubsub.store.epochs import continues
from pubsub.store.schema import open_reader

# Payload bytes in one read of the file.
_READ_BYTES = 4 * 1024**2


class SqliteHistory:
    """Implements ``History``. Positions are not stored, as only the broker writes its file."""

    def __init__(self, path: str) -> None:
        self._path = Path(path.removeprefix("file:").removeprefix("sqlite:")).expanduser()
        self._connection: sqlite3.Connection | None = None

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        try:
            if not self._path.is_file():
                raise Rejected(f"{self._path}: the history file does not exist")
            if self._connection is None:
                self._connection = open_reader(self._path)
            yield self._connection
        except sqlite3.OperationalError as error:
            raise Unreachable(f"{self._path}: cannot read the history: {error}") from None
        except (sqlite3.DatabaseError, OSError) as error:
            raise Rejected(f"{self._path}: cannot read the history: {error}") from None

    def bounds(self, timestamp: int | None = None) -> PartitionBounds:
        """See ``History``."""
        with self._opened() as connection:
            first, stop = read_bounds(connection)
            epoch, _ = epochs(connection)[-1]
            found = stop if timestamp is None else offset_at(connection, timestamp)
            return PartitionBounds(first, stop, epoch, found)

    def topics(self, start: int, stop: int) -> list[TopicSize]:
        """See ``History``."""
        with self._opened() as connection:
            found = topics_in(connection, start, stop)
            return [TopicSize(name, *sizes) for name, sizes in found.items()]

    def read(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> Iterator[BatchOrGap]:
        """See ``History``."""
        with self._opened() as connection:
            self._check(connection, start, epoch)
            offset = start
            while offset < stop:
                parcel = read_parcel(connection, offset, stop, topics, _READ_BYTES)
                if parcel.first > offset:
                    yield ExpiredBefore(parcel.first)
                if topics is None:
                    parcel = parcel.of(lambda name: not name.startswith(RESERVED))
                yield from arrow.batches(parcel, headers)
                if parcel.damaged is not None:
                    yield DamagedRange(*parcel.damaged)
                offset = parcel.stop

    def cuts(self, start: int, stop: int) -> list[int]:
        """See ``History``."""
        return []

    def check(self, position: int, epoch: str) -> None:
        """See ``History``."""
        with self._opened() as connection:
            self._check(connection, position, epoch)

    def _check(self, connection: sqlite3.Connection, position: int, epoch: str) -> None:
        known = epochs(connection)
        if position > read_bounds(connection)[1] or not continues(known, epoch, position):
            raise WrongHistory(OTHER_HISTORY.format(f"the history {self._path}", position))

    def report_position(self, reader: str, position: int, epoch: str) -> None:
        """See ``History``; does nothing."""
