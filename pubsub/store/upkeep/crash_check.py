"""``CrashCheck``: after a crash all records are verified, an entry of an index at a time."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from twisted.logger import Logger

from pubsub.store.catalog.catalog import Catalog, FoundOrGap
from pubsub.store.records.record import Found
from pubsub.store.segments.segment import Segment
from pubsub.store.segments.segment_index import IndexEntry

log = Logger()


class CrashCheck:
    """Verifies the records of ``catalog`` before the offset ``before``; none if that is 0."""

    def __init__(self, catalog: Catalog, before: int) -> None:
        self._catalog = catalog
        self._before = before
        # The last entry that was verified: the place of its segment, and its number.
        self._verified: tuple[tuple[int, int], int] = (0, 0), -1
        self._damaged = 0
        self._steps = self._all()

    def step(self) -> bool:
        """Verify the next entry; return False if there is none. Raises OSError.

        The next call goes on with an entry that raised it.
        """
        try:
            return next(self._steps, None) is not None
        except OSError:
            self._steps = self._all()
            raise

    def _all(self) -> Iterator[bool]:
        if not self._before:
            return
        for segment in self._catalog.segments:
            if segment.base >= self._before or not segment.sealed:
                break
            if segment.place < self._verified[0]:
                continue
            try:
                self._catalog.use(segment)
                index = segment.index_or_damage()
                for number in range(len(index)):
                    if (segment.place, number) > self._verified:
                        self._verify(segment, index.entry(number))
                        self._verified = segment.place, number
                        yield True
            except FileNotFoundError:
                # It was removed meanwhile.
                continue
        log.info("history: the check is complete; damaged records: {count}", count=self._damaged)

    def _verify(self, segment: Segment, entry: IndexEntry) -> None:
        for item in self._records(segment, entry):
            if not isinstance(item, Found):
                self._damaged += 1
                report_damaged(self._catalog, *item)

    def _records(self, segment: Segment, entry: IndexEntry) -> list[FoundOrGap]:
        """Return the records of an entry, and the ranges that the disk does not give."""
        try:
            return list(segment.records(entry))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            log.error("history: {name} cannot be read: {reason}", name=segment.name, reason=error)
        return self._catalog.read_errors.records_at_once(segment, entry)


def report_damaged(catalog: Catalog, start: int, stop: int) -> None:
    """Note and log that a range is damaged, or that a record without messages is."""
    if stop > start:
        catalog.damage.note(start, stop)
        log.error("history: offsets {first} to {last} are damaged", first=start, last=stop - 1)
    else:
        log.error("history: a record of metadata at offset {offset} is damaged", offset=start)
