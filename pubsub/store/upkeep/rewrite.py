"""Rewriting segments: small records become large ones, expired messages are left out, and records
are compressed if that is configured.

Messages keep their offsets. The new segment takes the place of the old ones in one step; a crash
before that leaves a file that is removed at the next start, and a crash after it leaves old files,
which are removed because a newer segment holds their offsets.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence

from pubsub.store.catalog.catalog import Catalog
from pubsub.store.commits.log_writer import SEGMENT_BYTES
from pubsub.store.metadata.metadata import SealedSegment
from pubsub.store.records.block import Block, decode_block, encode_block
from pubsub.store.records.record import LOST as LOST_FLAG
from pubsub.store.records.record import Found
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.segments.segment import UNREADABLE, Segment
from pubsub.store.segments.segment_index import LOST, Grain, IndexEntry, SegmentIndex
from pubsub.store.upkeep.segment_builder import SegmentBuilder

# A segment is rewritten if it has more records than this, and they are smaller on average.
_RECORDS = 64
_RECORD_BYTES = 32 * 1024
# Adjacent segments smaller than this, or less on a small file system, are joined when there are
# _NEIGHBOURS of them. They make one of at most the usual size.
_NEIGHBOURS = 8
_SMALL_SEGMENT = SEGMENT_BYTES // _NEIGHBOURS
# Indexes that one step looks at.
_EXAMINED = 8
# Bytes of a segment that are read in one step.
_STEP_BYTES = 512 * 1024


class Damaged(Exception):
    """``segment`` has damage, or the disk does not give it; it stays, with its readable records."""

    def __init__(self, segment: Segment) -> None:
        super().__init__(segment.name)
        self.segment = segment


class RewritePlan:
    """Finds segments to be rewritten. It looks at a few indexes at a time.

    With ``compress``, segments that are not compressed are among them.
    """

    def __init__(self, catalog: Catalog, compress: bool = False) -> None:
        self._catalog = catalog
        self._compress = compress
        # Records and bytes of the segments that were looked at, and whether these are compressed,
        # by number.
        self._sizes: dict[int, tuple[int, int, bool]] = {}
        self._kept: set[int] = set()
        self._damaged: set[int] = set()
        self._unreadable: list[Segment] = []
        self._cursor = 0

    def keep(self, segment: Segment) -> None:
        """Note a segment whose records cannot be made larger."""
        self._kept.add(segment.head.sequence)

    def leave(self, segment: Segment) -> None:
        """Note a segment that has damage."""
        self._damaged.add(segment.head.sequence)

    def take_unreadable(self) -> list[Segment]:
        """Return segments that ``next`` has found to be unreadable, each once."""
        found, self._unreadable = self._unreadable, []
        return found

    def next(self, before: tuple[int, int], part: int) -> list[Segment]:
        """Return neighbours to be rewritten together, of the segments whose place is before.

        ``part`` is that of ``LogWriter``.
        """
        self._damaged &= {one.head.sequence for one in self._catalog.segments}
        sealed = [
            one
            for one in self._catalog.segments[:-1]
            if one.sealed
            and one.base < one.stop
            and one.place < before
            and one.head.sequence not in self._damaged
        ]
        present = {one.head.sequence for one in sealed}
        self._kept &= present
        self._sizes = {key: size for key, size in self._sizes.items() if key in present}
        new = [one for one in sealed if one.head.sequence not in self._sizes]
        for segment in new[:_EXAMINED]:
            try:
                self._catalog.use(segment)
                index = segment.index
                size = (index.records, index.end, segment.compressed)
            except OSError as error:
                if error.errno not in UNREADABLE:
                    raise
                self.leave(segment)
                self._unreadable.append(segment)
                continue
            self._sizes[segment.head.sequence] = size
        sealed = [one for one in sealed if one.head.sequence not in self._damaged]
        return (
            self._small_records(sealed)
            or self._small_segments(sealed, min(_SMALL_SEGMENT, part // _NEIGHBOURS))
            or self._dead(sealed)
            or self._uncompressed(sealed)
        )

    def _small_records(self, sealed: Sequence[Segment]) -> list[Segment]:
        for segment in sealed:
            number = segment.head.sequence
            records, nbytes, compressed = self._sizes.get(number, (0, 0, True))
            small = records > _RECORDS and nbytes < records * _RECORD_BYTES
            # The records of one that is compressed were large before.
            if small and not compressed and number not in self._kept:
                return [segment]
        return []

    def _small_segments(self, sealed: Sequence[Segment], most: int) -> list[Segment]:
        small: list[Segment] = []
        for segment in sealed:
            _, nbytes, _ = self._sizes.get(segment.head.sequence, (0, most, True))
            if small and segment.base != small[-1].stop:
                # The range between them is missing, or damaged and left unchanged.
                small = []
            if nbytes >= most:
                small = []
                continue
            small.append(segment)
            if len(small) == _NEIGHBOURS:
                return small
        return []

    def _uncompressed(self, sealed: Sequence[Segment]) -> list[Segment]:
        for segment in sealed if self._compress else ():
            _, _, compressed = self._sizes.get(segment.head.sequence, (0, 0, True))
            if not compressed:
                return [segment]
        return []

    def _dead(self, sealed: Sequence[Segment]) -> list[Segment]:
        """Look for a segment most of which has expired among the next ones."""
        after = [one for one in sealed if one.base >= self._cursor]
        for segment in after[:_EXAMINED]:
            self._cursor = segment.stop
            self._catalog.use(segment)
            index = segment.index_or_damage()
            if _dead_part(self._catalog, segment, index) > 0.5:
                return [segment]
        if len(after) <= _EXAMINED:
            self._cursor = 0
        return []


def _dead_part(catalog: Catalog, segment: Segment, index: SegmentIndex) -> float:
    """Return the part of the messages and bytes of a segment that has expired."""
    if max((catalog.hidden_before(name) for name in index.topics), default=0) <= segment.base:
        return 0.0
    dead = total = 0
    for number in range(len(index)):
        stop = index.entry(number).stop
        for name, (count, nbytes) in index.contents(number).items():
            total += nbytes + count
            dead += nbytes + count if catalog.hidden_before(name) >= stop else 0
    return dead / total if total else 0.0


class Rewrite:
    """Rewrites ``sources``, which are neighbours, as the segment number ``sequence``."""

    def __init__(
        self,
        directory: LogDirectory,
        catalog: Catalog,
        sources: Sequence[Segment],
        sequence: int,
        grain: Grain,
        compress: bool = False,
    ) -> None:
        self.sources = sources
        self._catalog = catalog
        self._made: tuple[Segment, SealedSegment] | None = None
        head = sources[0].head
        self._builder = SegmentBuilder(
            directory, head.log_id, head.base, sequence, head.created, grain, compress
        )

    def steps(self) -> Generator[None, None, None]:
        """Write the new segment, a step at a time; raises OSError or Damaged.

        It is removed if the generator is closed before its end.
        """
        try:
            read = 0
            for source in self.sources:
                index = source.index_or_damage()
                for number in range(len(index)):
                    entry = index.entry(number)
                    self._add(source, entry)
                    read += entry.end - entry.position
                    if read >= _STEP_BYTES:
                        read = 0
                        yield
            self._builder.sync()
        except BaseException:
            self._builder.discard()
            raise

    def finish(self) -> tuple[Segment, SealedSegment]:
        """Put the new segment in its place, once; the sources are still to be removed."""
        if self._made is None:
            self._made = self._builder.finish()
        return self._made

    def discard(self) -> None:
        """Remove the new segment, which the metadata do not list."""
        self._builder.discard()

    def _add(self, source: Segment, entry: IndexEntry) -> None:
        catalog = self._catalog
        try:
            found = list(source.records(entry))
        except OSError as error:
            raise Damaged(source) from error
        for item in found:
            if not isinstance(item, Found):
                raise Damaged(source)
            head = item.head
            if head.stop <= self._builder.stop:
                continue
            if head.base != self._builder.stop:
                raise Damaged(source)
            if head.flags & LOST_FLAG and catalog.hidden_before(LOST) < head.stop:
                self._builder.add_lost(head.base, head.stop, head.last)
            else:
                self._builder.add(_without_hidden(catalog, item))


def _without_hidden(catalog: Catalog, item: Found) -> Block:
    """Return the messages of a record without those that have expired."""
    block = item.block()
    head = item.head
    own = block.topics() if block.runs else set()
    if all(catalog.hidden_before(name) <= head.base for name in own):
        return block
    runs = [one.record() for run in decode_block(block) for one in run.shown(catalog.hidden_before)]
    return encode_block(runs, block.run, head.base, head.stop)
