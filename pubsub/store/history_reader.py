"""Reading the durable history: the newest messages from memory, the others from the file.

Threads read the file. The results are combined here with what only the reactor thread knows:
messages that are only in the journal, and topics that have ended, but are still in the file.
Damage is reported here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from pubsub.broker.batch import Page
from pubsub.store.block_ranges import offset_at, read_parcel, topics_in
from pubsub.store.block_reader import read_page
from pubsub.store.commits import Commits
from pubsub.store.epochs import continues
from pubsub.store.memory import parcel_of
from pubsub.store.parcel import Parcel, TopicCounts, add_counts
from pubsub.store.run_log import RunLog
from pubsub.store.stored_runs import topics_of
from pubsub.store.threads import ReaderPool

log = Logger()
_Result = TypeVar("_Result")


class HistoryReader:
    """Answers the queries of ``SqliteStore``.

    ``run_id`` is the number of the broker run, from which message ids are made; ``epochs`` are all
    of the history (see ``block_ranges.epochs``).
    """

    def __init__(
        self,
        run_log: RunLog,
        commits: Commits,
        readers: ReaderPool,
        run_id: int,
        epochs: Sequence[tuple[str, int]],
        first_offset: int,
    ) -> None:
        self.first_offset = first_offset
        """Smallest offset that can still be read; updated by retention."""
        self._log = run_log
        self._commits = commits
        self._readers = readers
        self._run_id = run_id
        self._epochs = epochs

    def read(
        self, offset: int, topics: frozenset[str] | None, max_bytes: int, fresh: bool = False
    ) -> Deferred[Page]:
        """See ``IStore``."""
        if offset >= self._log.first_offset:
            end = None if fresh else self._commits.committed
            return succeed(self._log.read(offset, topics, max_bytes, end))
        return self._run(
            partial(read_page, offset=offset, topics=topics, max_bytes=max_bytes), offset
        ).addCallback(self._check_page, dict(self._commits.forgotten))

    def _check_page(self, page: Page, forgotten: dict[str, int]) -> Page:
        # The file still has topics whose end was not committed when it was read.
        forgotten |= self._commits.forgotten
        batches = [b for b in page.batches if b.offset >= forgotten.get(b.topic, 0)]
        for start, stop in page.damaged:
            _log_damage(start, stop)
        return Page(batches, page.next_offset, page.damaged)

    def read_parcel(
        self, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> Deferred[Parcel]:
        """See ``IStore``: from the file, which is in columns, as far as it has the messages."""
        filed, log = self._commits.filed, self._log
        if start >= max(filed, log.first_offset):
            stop = min(stop, self._commits.committed)
            parcel = parcel_of(log, self._run_id, start, stop, topics, max_bytes)
            return succeed(replace(parcel, first=self.first_offset))
        stop = min(stop, max(filed, log.first_offset))
        return self._run(
            partial(read_parcel, start=start, stop=stop, topics=topics, max_bytes=max_bytes), start
        ).addCallback(self._check_parcel, dict(self._commits.forgotten))

    def _check_parcel(self, parcel: Parcel, forgotten: dict[str, int]) -> Parcel:
        if parcel.damaged is not None:
            _log_damage(*parcel.damaged)
        forgotten |= self._commits.forgotten
        if not forgotten:
            return parcel
        # No block goes on beyond the end of a topic.
        blocks = [
            (block, frozenset(n for n in names if block.base >= forgotten.get(n, 0)))
            for block, names in parcel.blocks
        ]
        return replace(parcel, blocks=tuple(blocks))

    def _run(self, call: Callable[[sqlite3.Connection], _Result], offset: int) -> Deferred[_Result]:
        """Run ``call`` in a thread once the message at ``offset`` is in the file."""
        if offset < self._commits.filed:
            return self._readers.run(call)
        filed: Deferred[None] = Deferred()
        self._commits.when_filed(partial(filed.callback, None))
        return filed.addCallback(lambda _: self._readers.run(call))

    def offset_at(self, timestamp: int) -> Deferred[int]:
        """See ``IStore``."""
        newest = self._memory_start()

        def found(offset: int) -> int:
            if offset < newest:
                return offset
            return min(max(self._log.offset_at(timestamp), newest), self._commits.committed)

        return self._run(partial(offset_at, timestamp=timestamp), newest - 1).addCallback(found)

    def topics_in(self, start: int, stop: int) -> Deferred[TopicCounts]:
        """See ``IStore``."""
        newest = self._memory_start()
        runs = self._log.runs_within(max(start, newest), min(stop, self._commits.committed))
        in_memory = topics_of(run.record() for run in runs)
        return self._run(
            partial(topics_in, start=start, stop=min(stop, newest)), newest - 1
        ).addCallback(lambda found: add_counts(found, in_memory.items()))

    def _memory_start(self) -> int:
        """The offset from which on committed messages are read from memory.

        They may not be in the file yet.
        """
        commits = self._commits
        return min(max(commits.filed, self._log.first_offset), commits.committed)

    def continues(self, epoch: str, offset: int) -> bool:
        """See ``IStore``."""
        return continues(self._epochs, epoch, offset)


def _log_damage(start: int, stop: int) -> None:
    log.error(
        "history: offsets {first} to {last} are damaged and cannot be read",
        first=start,
        last=stop - 1,
    )
