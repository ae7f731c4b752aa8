"""Copying the metadata in records to SQLite, once the records are on disk.

The records are the original: while SQLite cannot write, they wait in memory and in their segments,
which are not removed or rewritten until they have been applied.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from twisted.logger import Logger

from pubsub.store.metadata.metadata import LogPlace, Metadata, SealedSegment
from pubsub.store.records.record import End, Operation, Put
from pubsub.store.segments.log_directory import METADATA, LogDirectory
from pubsub.store.segments.log_files import write_index
from pubsub.store.segments.open_segment import OpenSegment, WrittenRecords

log = Logger()
# Acknowledgments wait meanwhile, of records that are on disk; a change that fails is tried again.
_LOCKED_SECONDS = 0.5
# Changes that wait, from which on those that later ones replace are removed.
_MOST = 1000


class MetadataCopy:
    """Applies the operations of synced records. One thread at a time calls ``apply``."""

    def __init__(self, directory: LogDirectory, metadata: Metadata) -> None:
        self._directory = directory
        self._metadata = metadata
        metadata.wait_for_locks(_LOCKED_SECONDS)
        self.waiting: tuple[WrittenRecords, ...] = ()
        """Synced records with operations that are not applied, and the last synced ones."""
        self._changes, self._most = 0, _MOST
        self.failing: str | None = None
        """The reason why the metadata cannot be written; None while it can."""

    def add(self, written: Sequence[WrittenRecords]) -> None:
        """Take records that are on disk."""
        before = self.waiting
        if written and before and not before[-1].operations:
            # Only its place was needed. They would add up while SQLite cannot write.
            before = before[:-1]
        self.waiting = (*before, *[one for one in written[:-1] if one.operations], *written[-1:])
        self._changes += sum([len(one.operations) for one in written])
        if self._changes > self._most:
            self._remove_replaced()

    def _remove_replaced(self) -> None:
        """Keep the last change of each value: they would add up while SQLite cannot write.

        All of them are applied at once, so that the others have no effect.
        """
        seen: set[tuple[str, ...]] = set()
        self._changes = 0
        for one in reversed(self.waiting):
            kept: list[Operation] = []
            for operation in reversed(one.operations):
                key = _row_of(operation)
                if key is None or key not in seen:
                    kept.append(operation)
                if key is not None:
                    seen.add(key)
            one.operations = kept[::-1]
            self._changes += len(kept)
        *before, last = self.waiting
        self.waiting = (*[one for one in before if one.operations], last)
        # Each change is looked at a few times, however many rows there are.
        self._most = max(2 * self._changes, _MOST)

    def apply(self, to_seal: Sequence[OpenSegment], stop: int, final: bool) -> bool:
        """Apply waiting changes; return whether the segments ``to_seal`` are recorded as sealed.

        ``stop`` is the offset after the last message. A ``final`` call stores it and the place of
        the last record, even if there are no operations.
        """
        changes = [(one.base, one.operations) for one in self.waiting if one.operations]
        if not self.waiting or not (final or to_seal or changes):
            self.waiting = self.waiting[-1:]
            return False
        last = self.waiting[-1]
        place = LogPlace(*last.segment.segment.place, last.position)
        sealed = [self._finish(one) for one in to_seal]
        try:
            self._metadata.apply(changes, place, stop, last.ceiling, sealed)
        except sqlite3.Error as error:
            self._report(str(error))
            return False
        self.waiting = ()
        self._changes, self._most = 0, _MOST
        self._report(None)
        return True

    def _finish(self, one: OpenSegment) -> SealedSegment:
        """Write the index of a segment that is on disk; it is made again if that fails."""
        write_index(self._directory, one.segment, one.index)
        head, index = one.segment.head, one.index
        return SealedSegment(
            head.base, head.sequence, index.stop, index.end, head.salt, head.created,
            index.last_timestamp,
        )  # fmt: skip

    def _report(self, problem: str | None) -> None:
        before, self.failing = self.failing, problem
        file = self._directory.path / METADATA
        if problem is not None and before is None:
            log.error(
                "history: {file} cannot be written: {problem}; messages are still stored, "
                "and segments are kept until it can",
                file=file,
                problem=problem,
            )
        elif problem is None and before is not None:
            log.info("history: {file} can be written again", file=file)


def _row_of(operation: Operation) -> tuple[str, ...] | None:
    """Return what the operation changes; None if no other one changes that."""
    if isinstance(operation, Put):
        return operation.table, operation.key
    return (operation.topic,) if isinstance(operation, End) else None
