"""What is asked of the durable history: of memory for the newest messages, else of the file.

Threads read the file. What they find there and what the reactor's thread knows better (messages
that are in the journal only, topics that are forgotten, but not yet in the file) is put together
here, and damage is reported.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

from twisted.internet.defer import Deferred, succeed
from twisted.logger import Logger

from pubsub.broker.batch import Page
from pubsub.store.block_ranges import (
    Parcel,
    Topics,
    add_topics,
    continues,
    offset_at,
    read_parcel,
    topics_in,
)
from pubsub.store.block_reader import read_page
from pubsub.store.commits import Commits
from pubsub.store.memory import parcel_of
from pubsub.store.stored_runs import RunLog, topics_of
from pubsub.store.threads import Readers

log = Logger()
_Result = TypeVar("_Result")


class HistoryReader:
    """The half of ``SqliteStore`` that reads; the other half keeps these up to date."""

    first_offset: int
    _log: RunLog
    # The broker's run that message ids come from.
    _number: int
    _readers: Readers
    _epochs: list[tuple[str, int]]
    _commits: Commits

    def read(
        self, offset: int, topics: frozenset[str] | None, max_bytes: int, fresh: bool = False
    ) -> Deferred[Page]:
        """See IStore."""
        if offset >= self._log.first_offset:
            end = None if fresh else self._commits.committed
            return succeed(self._log.read(offset, topics, max_bytes, end))
        return self._run(
            partial(read_page, offset=offset, topics=topics, max_bytes=max_bytes), offset
        ).addCallback(self._report, dict(self._commits.forgotten))

    def _report(self, page: Page, forgotten: dict[str, int]) -> Page:
        # What was forgotten, but not committed when it was read, was in the file still.
        forgotten |= self._commits.forgotten
        batches = [b for b in page.batches if b.offset >= forgotten.get(b.topic, 0)]
        for start, stop in page.damaged:
            _damaged(start, stop)
        return Page(batches, page.next_offset, page.damaged)

    def read_parcel(
        self, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> Deferred[Parcel]:
        """See IStore: from the file, where it is in columns, unless it is not there yet."""
        filed, log = self._commits.filed, self._log
        if start >= max(filed, log.first_offset):
            stop = min(stop, self._commits.committed)
            parcel = parcel_of(log, self._number, start, stop, topics, max_bytes)
            return succeed(replace(parcel, first=self.first_offset))
        stop = min(stop, max(filed, log.first_offset))
        return self._run(
            partial(read_parcel, start=start, stop=stop, topics=topics, max_bytes=max_bytes), start
        ).addCallback(self._check, dict(self._commits.forgotten))

    def _run(self, call: Callable[[sqlite3.Connection], _Result], offset: int) -> Deferred[_Result]:
        """What a thread finds in the file, once what is at ``offset`` has got there."""
        if offset < self._commits.filed:
            return self._readers.run(call)
        filed: Deferred[None] = Deferred()
        self._commits.when_filed(partial(filed.callback, None))
        return filed.addCallback(lambda _: self._readers.run(call))

    def _check(self, parcel: Parcel, forgotten: dict[str, int]) -> Parcel:
        if parcel.damaged is not None:
            _damaged(*parcel.damaged)
        forgotten |= self._commits.forgotten
        if not forgotten:
            return parcel
        # Blocks end where a topic does.
        blocks = [
            (block, frozenset(n for n in names if block.base >= forgotten.get(n, 0)))
            for block, names in parcel.blocks
        ]
        return replace(parcel, blocks=tuple(blocks))

    def offset_at(self, timestamp: int) -> Deferred[int]:
        """See IStore."""
        newest = self._newest()

        def found(offset: int) -> int:
            if offset < newest:
                return offset
            return min(max(self._log.offset_at(timestamp), newest), self._commits.committed)

        return self._run(partial(offset_at, timestamp=timestamp), newest - 1).addCallback(found)

    def topics_in(self, start: int, stop: int) -> Deferred[Topics]:
        """See IStore."""
        newest = self._newest()
        parts = self._log.parts(max(start, newest), min(stop, self._commits.committed))
        recent = topics_of(run.kept() for run in parts)
        return self._run(
            partial(topics_in, start=start, stop=min(stop, newest)), newest - 1
        ).addCallback(add_topics, recent)

    def _newest(self) -> int:
        """From here on what is committed is in memory, and perhaps not in the file."""
        commits = self._commits
        return min(max(commits.filed, self._log.first_offset), commits.committed)

    def continues(self, epoch: str, offset: int) -> bool:
        """See IStore."""
        return continues(self._epochs, epoch, offset)


def _damaged(start: int, stop: int) -> None:
    log.error(
        "history: offsets {first} to {last} are damaged and cannot be read",
        first=start,
        last=stop - 1,
    )
