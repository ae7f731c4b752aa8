"""``MixedRows``: those messages of a run of several topics that a reader of some of them gets."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, compress, groupby
from operator import ne
from typing import NamedTuple

from pubsub.broker.routing.batch import Batch, marks_of, rows_with, with_used
from pubsub.broker.routing.batch_rows import BatchRows
from pubsub.kernel import Columns

# Messages that rows have on average, so that these are fewer than a row for each; as a sample says.
_LONG, _SAMPLE = 4, 64
# Messages of the run for each that is wanted, so that these are looked for rather than picked out.
_RARE = 8


# Few, as the topics of a run may be thousands, and max-memory does not count these.
@lru_cache(maxsize=4)
def places_of(topics: tuple[str, ...]) -> dict[str, int]:
    """Return the index of each topic; runs that follow one another mostly have the same topics."""
    return {topic: index for index, topic in enumerate(topics)}


def places_among(topics: tuple[str, ...], wanted: frozenset[str] | None) -> Mapping[str, int]:
    """Return the index of each of ``topics`` that is ``wanted``, or of all without ``wanted``."""
    places = places_of(topics)
    if wanted is None:
        return places
    # A reader may want one topic of thousands, or thousands of which a run has few.
    fewer, more = (wanted, places) if len(wanted) < len(places) else (places, wanted)
    return {topic: places[topic] for topic in fewer if topic in more}


class MixedRows(NamedTuple):
    """Rows of messages of one topic each; ``begins`` are the places of the rows in ``batch``.

    ``indexes`` are those of the topics there, as are the indexes of ``columns``.
    """

    batch: Batch
    counts: Sequence[int]
    indexes: Sequence[int]
    begins: Sequence[int]
    columns: Columns

    def part(self, start: int, stop: int) -> MixedRows:
        """Return the rows from ``start`` to before ``stop``."""
        counts = self.counts[start:stop]
        low = start
        high = low + len(counts)
        if self.columns.count != len(self.counts):
            low = sum(self.counts[:start])
            high = low + sum(counts)
        return MixedRows(
            self.batch, counts, self.indexes[start:stop], self.begins[start:stop],
            self.columns.slice(low, high),
        )  # fmt: skip

    def cut(self, rows: int, nbytes: int) -> Iterator[MixedRows]:
        """Yield parts of at most this many ``rows`` and ``nbytes`` of payloads, or of one row."""
        number = len(self.counts)
        if number > 1 and (number > rows or self.columns.nbytes > nbytes):
            yield from self.part(0, number // 2).cut(rows, nbytes)
            yield from self.part(number // 2, number).cut(rows, nbytes)
        elif number:
            yield self

    def sizes_of_each(self, sizes: bytes) -> Iterable[int | array[int]]:
        """Return the size of the message of each row, or its sizes if one has several.

        ``sizes`` are those of all messages, as ``Columns.pack`` returns them.
        """
        every = array("I", sizes)
        if len(every) == len(self.counts):
            return every
        ends = accumulate(self.counts)
        return [every[end - count : end] for end, count in zip(ends, self.counts, strict=True)]

    def within(self, first: Mapping[int, int], start: int, stop: int) -> MixedRows:
        """Return the messages with offsets from ``start`` to before ``stop``.

        Rows that begin before the offset that ``first`` has for their index are left out.
        """
        offset = self.batch.offset
        if start <= offset and stop >= self.batch.stop and max(first.values(), default=0) <= offset:
            return self
        found: tuple[list[int], list[int], list[int]] = [], [], []
        kept = bytearray()
        for count, index, begin in zip(self.counts, self.indexes, self.begins, strict=True):
            low = min(max(start - offset - begin, 0), count)
            high = max(min(stop - offset - begin, count), low)
            if low == high or offset + begin < first[index]:
                low = high = 0
            else:
                for column, value in zip(found, (high - low, index, begin + low), strict=True):
                    column.append(value)
            kept += bytes(low) + b"\x01" * (high - low) + bytes(count - high)
        payloads, indexes = self.columns.payloads(), self.columns.indexes()
        left = Columns.of(list(compress(payloads, kept)), list(compress(indexes, kept)))
        return MixedRows(self.batch, *found, left)

    def made(self, run: int) -> Batch:
        """Return the messages as a batch of this run of the broker, with rows if they are several.

        There is at least one.
        """
        batch, number = self.batch, len(self.counts)
        topics, columns = with_used(batch.topics, self.columns)
        indexes = columns.indexes()
        if len(indexes) != number:
            indexes = [indexes[end - count] for end, count in self._ends()]
        made = Batch(
            topics, columns, batch.timestamp, batch.sequence, batch.sender, batch.protocol, run=run
        )
        offset, sequence = batch.offset, batch.sequence
        made.take(
            BatchRows(
                tuple(self.counts), tuple(indexes),
                tuple([offset + begin for begin in self.begins]),
                tuple([sequence + begin for begin in self.begins]),
                (batch.timestamp,) * number, (batch.sender,) * number,
            )
        )  # fmt: skip
        return made

    def _ends(self) -> Iterable[tuple[int, int]]:
        return zip(accumulate(self.counts), self.counts, strict=True)


def rows_among(batch: Batch, wanted: Iterable[int]) -> MixedRows:
    """Return the messages of the indexes ``wanted``, as rows of one topic.

    The batch is one of several topics, with one sender and no headers.
    """
    columns, number = batch.columns, len(batch.topics)
    places, flags = [-1] * number, bytearray(number)
    for index in wanted:
        places[index], flags[index] = index, True
    kept = columns.remap(places)
    indexes = kept.indexes()
    sample = indexes[:_SAMPLE]
    changes = sum(map(ne, sample, sample[1:]))
    if kept.count * _RARE < columns.count or changes * _LONG < len(sample):
        return MixedRows(batch, *_rows_within(rows_with(columns, flags), indexes), kept)
    # In C, as a step for each row would take longer than all else.
    begins = list(compress(range(columns.count), marks_of(columns, flags)))
    return MixedRows(batch, [1] * kept.count, indexes, begins, kept)


def _rows_within(
    spans: Iterable[tuple[int, int]], numbers: list[int]
) -> tuple[list[int], list[int], list[int]]:
    """Return the lengths of rows of one index, their indexes, and where they begin.

    ``spans`` are where messages follow one another, and ``numbers`` the indexes of them all.
    """
    counts: list[int] = []
    indexes: list[int] = []
    begins: list[int] = []
    at = 0
    for begin, end in spans:
        stop = at + end - begin
        if end == begin + 1:
            counts.append(1)
            indexes.append(numbers[at])
            begins.append(begin)
            at = stop
            continue
        for index, row in groupby(numbers[at:stop]):
            counts.append(len(list(row)))
            indexes.append(index)
            begins.append(begin)
            begin += counts[-1]
        at = stop
    return counts, indexes, begins
