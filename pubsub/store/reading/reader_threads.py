"""The threads that read the segments for the broker, and the reports of damage that they meet."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from pubsub.broker.routing.batch import Page
from pubsub.store.catalog.catalog import Catalog
from pubsub.store.reading import log_reader
from pubsub.store.records.parcel import Parcel
from pubsub.store.records.topic_counts import TopicCounts
from pubsub.store.worker import READERS, Worker

log = Logger()
_Result = TypeVar("_Result")
# Segments that upkeep may remove or rewrite during one read.
_REPLACED = 3


class ReaderThreads:
    """Calls ``log_reader`` in threads."""

    def __init__(self, catalog: Catalog, reactor: Any) -> None:
        self._catalog = catalog
        self._worker = Worker("history-reader", READERS, reactor)

    def stop(self) -> None:
        """End the threads, after the reads under way."""
        self._worker.stop()

    def read(
        self,
        offset: int,
        topics: frozenset[str] | None,
        max_bytes: int,
        committed: int,
        joined: bool,
    ) -> Deferred[Page]:
        """See ``IStore``; messages from offset ``committed`` on are not read."""
        read = partial(
            log_reader.read_page, self._catalog, offset, topics, max_bytes, committed, joined
        )
        return self._run(read).addCallback(self._check_page)

    def read_parcel(
        self, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> Deferred[Parcel]:
        """See ``IStore``."""
        read = partial(log_reader.read_parcel, self._catalog, start, stop, topics, max_bytes)
        return self._run(read).addCallback(self._check_parcel)

    def offset_at(self, timestamp: int, committed: int) -> Deferred[int]:
        """See ``IStore``; ``committed`` at most."""
        read = partial(log_reader.offset_at, self._catalog, timestamp)
        return self._run(read).addCallback(min, committed)

    def topics_in(self, start: int, stop: int) -> Deferred[TopicCounts]:
        """See ``IStore``."""
        return self._run(partial(log_reader.topics_in, self._catalog, start, stop))

    def _run(self, read: Callable[[], _Result]) -> Deferred[_Result]:
        """Run ``read``, once more for each segment that upkeep removes under it."""

        def call() -> _Result:
            for _ in range(_REPLACED):
                try:
                    return read()
                except FileNotFoundError:
                    continue
            return read()

        return self._worker.run(call)

    def _check_page(self, page: Page) -> Page:
        for start, stop in page.damaged:
            self._note_damage(start, stop)
        return page

    def _check_parcel(self, parcel: Parcel) -> Parcel:
        if parcel.damaged is not None:
            self._note_damage(*parcel.damaged)
        return parcel

    def _note_damage(self, start: int, stop: int) -> None:
        """Log the damage that a reader has met, unless it is known."""
        if self._catalog.damage.note(start, stop):
            log.error(
                "history: offsets {first} to {last} are damaged and cannot be read",
                first=start,
                last=stop - 1,
            )
