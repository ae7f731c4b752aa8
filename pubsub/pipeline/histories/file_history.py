"""A history read from its directory, on the machine of the broker. The broker need not run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pubsub.errors import StartError
from pubsub.pipeline.histories.history import (
    OTHER_HISTORY,
    BatchOrGap,
    DamagedRange,
    ExpiredBefore,
    HistoryRefused,
    PartitionBounds,
    TopicSize,
    Unreachable,
    WrongHistory,
)
from pubsub.store.opening.epochs import continues
from pubsub.store.reading import arrow, log_reader
from pubsub.store.reading.log_view import LogView


class FileHistory:
    """Implements ``History``. Positions are not stored, as only the broker writes its history."""

    def __init__(self, path: str) -> None:
        self._path = Path(path.removeprefix("file:").removeprefix("log:")).expanduser()
        self._view: LogView | None = None

    @contextmanager
    def _opened(self) -> Iterator[LogView]:
        try:
            if self._view is None:
                self._view = self._open()
            yield self._view
        except sqlite3.OperationalError as error:
            raise Unreachable(f"{self._path}: cannot read the history: {error}") from None
        except (StartError, sqlite3.DatabaseError, OSError) as error:
            raise HistoryRefused(f"{self._path}: cannot read the history: {error}") from None

    def _open(self) -> LogView:
        if self._path.is_file():
            raise HistoryRefused(
                f"{self._path} is a file, and a history is a directory; a history of version 0.1 "
                "has to be migrated by the broker first"
            )
        if not self._path.is_dir():
            raise HistoryRefused(f"{self._path}: the directory of the history does not exist")
        return LogView(self._path)

    def bounds(self, timestamp: int | None = None) -> PartitionBounds:
        """See ``History``."""
        with self._opened() as view:
            catalog = view.refresh()
            epoch, _ = view.epochs[-1] if view.epochs else ("", 0)
            found = catalog.stop
            if timestamp is not None:
                found = view.read(partial(log_reader.offset_at, timestamp=timestamp))
            return PartitionBounds(catalog.first, catalog.stop, epoch, found)

    def topics(self, start: int, stop: int) -> list[TopicSize]:
        """See ``History``."""
        with self._opened() as view:
            found = view.read(partial(log_reader.topics_in, start=start, stop=stop))
            return [TopicSize(name, *sizes) for name, sizes in found.items()]

    def cuts(self, start: int, stop: int) -> list[int]:
        """See ``History``."""
        with self._opened() as view:
            view.refresh()
            return view.segment_bounds(start, stop)

    def read(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> Iterator[BatchOrGap]:
        """See ``History``."""
        with self._opened() as view:
            self._check(view, start, epoch)
            offset = start
            for parcel in view.parcels(start, stop, topics):
                if parcel.start > offset:
                    yield ExpiredBefore(parcel.start)
                yield from arrow.batches(parcel, headers)
                if parcel.damaged is not None:
                    yield DamagedRange(*parcel.damaged)
                offset = parcel.stop
            if offset < stop:
                raise self._other(stop)

    def check(self, position: int, epoch: str) -> None:
        """See ``History``."""
        with self._opened() as view:
            self._check(view, position, epoch)

    def _check(self, view: LogView, position: int, epoch: str) -> None:
        catalog = view.refresh()
        if position > catalog.stop or not continues(view.epochs, epoch, position):
            raise self._other(position)

    def _other(self, position: int) -> WrongHistory:
        return WrongHistory(OTHER_HISTORY.format(f"the history {self._path}", position))

    def report_position(
        self, reader: str, position: int, epoch: str, quiet: tuple[int, str] | None = None
    ) -> bool:
        """See ``History``; does nothing."""
        return False

    def quiet_until(self, reader: str, start: int, topics: str) -> int | None:
        """See ``History``."""
        return None
