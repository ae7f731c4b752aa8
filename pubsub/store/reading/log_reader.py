"""Reading the log: pages for one subscriber, and ranges in columns.

Synchronous; the broker calls it in threads, other processes as they like. Nothing waits for the
writer, nor the writer for it. Raises OSError.
"""

from __future__ import annotations

from collections.abc import Iterator

from pubsub.broker.routing.batch import Batch, Page
from pubsub.store.catalog.catalog import Catalog
from pubsub.store.reading.joined_runs import decode_joined, joined_cost
from pubsub.store.records.block import Block, decode_block
from pubsub.store.records.block_columns import RUN
from pubsub.store.records.parcel import Parcel, Piece
from pubsub.store.records.record import LOST as LOST_FLAG
from pubsub.store.records.record import Found
from pubsub.store.records.stored_runs import StoredRun
from pubsub.store.records.topic_counts import TopicCounts, add_counts
from pubsub.store.segments.segment import Segment
from pubsub.store.segments.segment_index import LOST, IndexEntry

# Bytes of columns that a message takes beside its payload, so that empty messages count.
_MESSAGE_BYTES = 16
SCAN = 256
"""Entries that one read examines, so that a rare topic does not keep a thread for long."""


class _Walk:
    """The entries to be read of a range of offsets, and how far it has been examined."""

    def __init__(
        self, catalog: Catalog, start: int, stop: int, topics: frozenset[str] | None
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self.first = catalog.first
        self.offset = max(start, self.first)
        self.stop = min(stop, catalog.stop)
        self._examined = 0

    def items(self) -> Iterator[tuple[Found, Block, frozenset[str]] | tuple[int, int]]:
        """Yield records with the topics to be read, and damaged ranges.

        ``offset`` is where the next item begins. The consumer may move it on. It is ``stop`` when
        the range is done, and before that if enough has been examined.
        """
        for segment in self._catalog.from_offset(self.offset):
            if self.offset >= self.stop:
                return
            if segment.base > self.offset:
                # The segment before is missing.
                yield self._damaged(self.offset, segment.base)
            if self._examined >= SCAN:
                return
            self._catalog.use(segment)
            try:
                yield from self._items_of(segment)
            except FileNotFoundError:
                if not self._catalog.is_lost(segment):
                    raise
                yield self._damaged(self.offset, min(segment.stop, self.stop))
            if self._examined > SCAN:
                return
            self.offset = max(self.offset, min(segment.stop, self.stop))
        if self.offset < self.stop:
            # The last segments are missing.
            yield self._damaged(self.offset, self.stop)

    def _items_of(
        self, segment: Segment
    ) -> Iterator[tuple[Found, Block, frozenset[str]] | tuple[int, int]]:
        index = self._catalog.read_errors.index(segment)
        wanted = None if self._topics is None else self._topics | {LOST}
        self._examined += 1
        for number in index.entries_with(wanted, index.entry_at(self.offset)):
            entry = index.entry(number)
            if entry.base >= self.stop:
                return
            if entry.stop <= self.offset:
                continue
            self._examined += 1
            if self._examined > SCAN:
                self.offset = max(self.offset, entry.base)
                return
            contents = index.contents(number)
            names = self._catalog.visible(contents.keys() - {LOST}, entry.stop)
            if self._topics is not None:
                names &= self._topics
            if names or LOST in contents:
                yield from self._items_in(segment, entry, names)

    def _items_in(
        self, segment: Segment, entry: IndexEntry, names: frozenset[str]
    ) -> Iterator[tuple[Found, Block, frozenset[str]] | tuple[int, int]]:
        catalog = self._catalog
        cut = any(catalog.hidden_before(name) > entry.base for name in names)
        for item in catalog.records(segment, entry):
            start, stop = (item.head.base, item.head.stop) if isinstance(item, Found) else item
            if start >= self.stop:
                return
            if stop <= self.offset:
                continue
            if not isinstance(item, Found) or item.head.flags & LOST_FLAG:
                yield self._damaged(max(start, self.offset), stop)
            else:
                shown = catalog.visible(names, stop) if cut else names
                if shown and item.head.sizes[1]:
                    yield item, item.block(), shown
                else:
                    self.offset = min(stop, self.stop)

    def _damaged(self, start: int, stop: int) -> tuple[int, int]:
        self.offset = stop
        return start, stop


def read_page(
    catalog: Catalog,
    offset: int,
    topics: frozenset[str] | None,
    max_bytes: int,
    stop: int | None = None,
    joined: bool = False,
) -> Page:
    """As ``IStore.read``, up to the offset ``stop`` if it is given."""
    walk = _Walk(catalog, offset, catalog.stop if stop is None else stop, topics)
    batches: list[Batch] = []
    damaged: list[tuple[int, int]] = []
    room = max_bytes
    for item in walk.items():
        if len(item) == 2:
            damaged.append(item)
            continue
        found, block, names = item
        runs: Iterator[Batch | StoredRun] = (
            decode_joined(block, names, catalog.hidden_before, walk.offset, walk.stop)
            if joined
            else decode_block(block, names)
        )
        for run in runs:
            if isinstance(run, StoredRun):
                if run.last < walk.offset:
                    continue
                if run.offset >= walk.stop:
                    break
            if room <= 0:
                return Page(batches, walk.offset, tuple(damaged))
            if isinstance(run, StoredRun):
                for shown in run.shown(catalog.hidden_before):
                    batch = shown.batch(walk.offset)
                    batch.run = block.run
                    batches.append(batch)
                room -= run.cost()
                walk.offset = run.last + 1
            else:
                batches.append(run)
                room -= joined_cost(run)
                walk.offset = run.stop
        walk.offset = max(walk.offset, min(found.head.stop, walk.stop))
        if room <= 0:
            break
    return Page(batches, walk.offset, tuple(damaged))


def read_parcel(
    catalog: Catalog, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
) -> Parcel:
    """Return the start of a range: blocks with about ``max_bytes`` of payload, at least one."""
    walk = _Walk(catalog, start, stop, topics)
    begin = walk.offset
    found: list[Piece] = []
    room = max_bytes
    for item in walk.items():
        if len(item) == 2:
            if item[1] > begin:
                end = min(item[1], max(walk.stop, begin))
                walk.offset = end
                return Parcel(begin, end, walk.first, tuple(found), (item[0], end))
            continue
        record, block, names = item
        found.append((block, names))
        room -= len(block.payloads) + _MESSAGE_BYTES * block.count
        walk.offset = min(record.head.stop, walk.stop)
        if room <= 0:
            break
    return Parcel(begin, max(begin, min(walk.offset, walk.stop)), walk.first, tuple(found))


def offset_at(catalog: Catalog, timestamp: int) -> int:
    """Return the offset of the first message at or after ``timestamp`` (µs since the Unix epoch).

    The offset after the last message if there is none.
    """
    first = catalog.first
    for segment in catalog.from_offset(first):
        if segment.last_timestamp < timestamp:
            continue
        catalog.use(segment)
        try:
            found = _offset_in(catalog, segment, timestamp, first)
        except FileNotFoundError:
            if not catalog.is_lost(segment):
                raise
            found = max(segment.base, first)
        if found is not None:
            return found
    return catalog.stop


def _offset_in(catalog: Catalog, segment: Segment, timestamp: int, first: int) -> int | None:
    index = catalog.read_errors.index(segment)
    for number in range(index.entry_at(first), len(index)):
        entry = index.entry(number)
        if entry.last < timestamp or entry.stop <= first:
            continue
        for item in catalog.records(segment, entry):
            if not isinstance(item, Found):
                # A reader that continues from there gets the damage reported.
                return max(item[0], first)
            for start, _, _, _, _, _, stamp, _ in RUN.iter_unpack(item.block().runs):
                offset: int = item.head.base + start
                if stamp >= timestamp and offset >= first:
                    return offset
    return None


def topics_in(catalog: Catalog, start: int, stop: int) -> TopicCounts:
    """Return the topics that have messages from ``start`` to before ``stop``."""
    start, stop = max(start, catalog.first), min(stop, catalog.stop)
    found: TopicCounts = {}
    for segment in catalog.from_offset(start):
        if segment.base >= stop:
            break
        catalog.use(segment)
        try:
            index = catalog.read_errors.index(segment)
        except FileNotFoundError:
            if not catalog.is_lost(segment):
                raise
            index = segment.index_or_damage()
        for number in range(index.entry_at(start), len(index)):
            entry = index.entry(number)
            if entry.base >= stop:
                break
            if entry.stop <= start:
                continue
            names = catalog.visible(index.contents(number).keys() - {LOST}, entry.stop)
            if start <= entry.base and entry.stop <= stop:
                contents = index.contents(number)
                add_counts(found, [(name, contents[name]) for name in names])
            else:
                for item in catalog.records(segment, entry):
                    if isinstance(item, Found) and item.head.sizes[1]:
                        add_counts(found, _count_range(item.block(), names, start, stop))
    return found


def _count_range(
    block: Block, names: frozenset[str], start: int, stop: int
) -> Iterator[tuple[str, tuple[int, int]]]:
    for run in decode_block(block, names):
        for one in run.split():
            low, high = max(start - one.offset, 0), min(stop - one.offset, one.count)
            if high > low:
                yield one.topic, (high - low, one.messages_nbytes(low, high))
