"""Small runs that follow one another, read as one batch with rows (see ``batch_rows.py``).

Of a run of several topics, such as a read of one publisher, a reader of some of them gets a row for
the messages of one topic that follow one another.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain, repeat

from pubsub.broker.routing.batch import Batch
from pubsub.broker.routing.batch_rows import BatchRows
from pubsub.kernel import Columns
from pubsub.store.reading.mixed_rows import MixedRows, rows_among
from pubsub.store.records.block import Block, BlockRuns, runs_of
from pubsub.store.records.stored_runs import RunRecord, StoredRun

SMALL = 32
"""Messages of the largest run that is joined with others: a larger one is worth a batch."""
# Rows that one run of several topics has, so that they are worth a batch.
_MANY = 64
# Messages of a run of several topics that are looked at before the page is perhaps full.
_LOOKED = 2048
# Rows of a batch, and bytes of its payloads unless it has one row, at most: the page is cut between
# batches.
_ROWS, _BYTES = 512, 64 * 1024
ROW_BYTES = 128
"""Bytes of a page that a row takes beside its payloads: the work for it, not its memory."""
JoinedRow = tuple[int, str, int, int, int, bytes, "int | array[int]", bytes]
"""A run: number of messages, topic, first offset, sequence, timestamp, sender, size of each message
or the lengths, and the payloads, joined."""


class JoinedRuns:
    """Joins small runs that follow one another, of one protocol and one run of the broker.

    The batches are added to ``found``.
    """

    def __init__(self, found: list[Batch]) -> None:
        self._found = found
        self._rows: list[JoinedRow] = []
        self._nbytes = 0
        self._key = "", 0

    def add(self, row: JoinedRow, protocol: str, run: int) -> None:
        """Add a run of ``protocol`` and of this run of the broker."""
        nbytes = self._nbytes + len(row[-1])
        if self._key != (protocol, run) or len(self._rows) >= _ROWS or nbytes > _BYTES:
            self.finish()
            self._key, nbytes = (protocol, run), len(row[-1])
        self._nbytes = nbytes
        self._rows.append(row)

    def add_mixed(self, rows: MixedRows, run: int) -> None:
        """Add messages of a run of several topics of this run of the broker."""
        batch, number = rows.batch, len(rows.counts)
        if not number:
            return
        if number > _MANY:
            self.finish()
            self._found += [part.made(run) for part in rows.cut(_ROWS, _BYTES)]
            return
        if number > 1 and rows.columns.nbytes > _BYTES:
            self.add_mixed(rows.part(0, number // 2), run)
            self.add_mixed(rows.part(number // 2, number), run)
            return
        key, nbytes = (batch.protocol, run), self._nbytes + rows.columns.nbytes
        if self._key != key or len(self._rows) + number > _ROWS or nbytes > _BYTES:
            self.finish()
            self._key, nbytes = key, rows.columns.nbytes
        self._nbytes = nbytes
        offset, sequence, topics = batch.offset, batch.sequence, batch.topics
        data, sizes, _ = rows.columns.pack()
        self._rows += zip(
            rows.counts,
            [topics[index] for index in rows.indexes],
            [offset + begin for begin in rows.begins],
            [sequence + begin for begin in rows.begins],
            repeat(batch.timestamp),
            repeat(batch.sender),
            rows.sizes_of_each(sizes),
            # All payloads are those of the first row, as the batch has them in one piece.
            chain([data], repeat(b"")),
            strict=False,
        )

    def take(self) -> Sequence[Batch]:
        """Return the batches that are made, and remove them."""
        if not self._found:
            return ()
        found = self._found[:]
        self._found.clear()
        return found

    def finish(self) -> None:
        """Make the batch of the runs so far, if there are any."""
        if not self._rows:
            return
        counts, names, offsets, sequences, timestamps, senders, sizes, data = zip(
            *self._rows, strict=True
        )
        self._rows, self._nbytes = [], 0
        places: dict[str, int] = {}
        indexes = tuple([places.setdefault(name, len(places)) for name in names])
        if max(counts) == 1:
            words = array("I", indexes)
            lengths = array("I", [one if isinstance(one, int) else one[0] for one in sizes])
        else:
            words = array("I", chain.from_iterable(map(repeat, indexes, counts)))
            lengths = array("I", chain.from_iterable(map(_lengths, sizes, counts)))
        columns = Columns.unpack(b"".join(data), lengths.tobytes(), words.tobytes())
        protocol, run = self._key
        rows = BatchRows(counts, indexes, offsets, sequences, timestamps, senders)
        batch = Batch(
            tuple(places), columns, timestamps[0], sequences[0], senders[0], protocol, None,
            offsets[0], run, rows=rows if len(counts) > 1 else None,
        )  # fmt: skip
        self._found.append(batch)


def _lengths(size: int | array[int], count: int) -> Iterator[int]:
    return repeat(size, count) if isinstance(size, int) else iter(size)


def joined_cost(batch: Batch) -> int:
    """Return how many bytes of a page ``batch`` takes."""
    rows = 1 if batch.rows is None else len(batch.rows.counts)
    return batch.nbytes + rows * ROW_BYTES


def decode_joined(
    block: Block,
    topics: frozenset[str] | None,
    first_of: Callable[[str], int],
    start: int,
    stop: int,
) -> Iterator[Batch | StoredRun]:
    """Yield the runs of a block as ``decode_block``, those that are small as batches with rows.

    So are those of several topics of which some are not wanted. These batches have the messages
    from ``start`` to before ``stop``, without runs of one topic that begin before the offset that
    ``first_of`` returns for it. Other runs are left out only if they have no message in that range.
    """
    runs, joined = BlockRuns(block, topics), JoinedRuns([])
    wanted, text, names, payloads = runs.wanted, runs.text, runs.names, block.payloads
    first_shown = cache(lambda topic: first_of(text(topic)))
    for run in runs_of(block, start):
        (
            first, count, has_headers, listed, picks, sender, protocol, size, lengths, begin, end,
            timestamp, sequence,
        ) = run  # fmt: skip
        if first >= stop:
            break
        if first + count <= start:
            continue
        if picks and not (has_headers or wanted is None or wanted.issuperset(listed)):
            among = {i: first_shown(topic) for i, topic in enumerate(listed) if topic in wanted}
            if among:
                for part in parts_among(runs.whole(run).batch(), among, start, stop):
                    joined.add_mixed(part, block.run)
                    yield from joined.take()
            continue
        if count > SMALL or first < start or first + count > stop or has_headers or picks:
            joined.finish()
            yield from joined.take()
            yield from runs.of(run)
            continue
        (topic,) = listed
        if (wanted is None or topic in wanted) and first >= first_shown(topic):
            row = (
                count, text(topic), first, sequence, timestamp, names[sender],
                size if lengths is None else lengths, bytes(payloads[begin:end]),
            )  # fmt: skip
            joined.add(row, text(protocol), block.run)
            # At once: those that the page has no room for are not decoded.
            yield from joined.take()
    joined.finish()
    yield from joined.take()


def parts_among(
    batch: Batch, first: Mapping[int, int], start: int, stop: int
) -> Iterator[MixedRows]:
    """Yield the messages of the indexes in ``first``, with offsets from ``start`` to ``stop``.

    Rows that begin before the offset that ``first`` has for their index are left out. The batch is
    one for ``rows_among``.
    """
    offset, step = batch.offset, max(_LOOKED, len(batch.topics))
    if max(first.values(), default=0) > offset:
        # A part need not have the beginning of its first row.
        yield rows_among(batch, first).within(first, start, stop)
        return
    begin, end = max(start - offset, 0), min(stop - offset, batch.count)
    if not begin and end == batch.count <= step:
        yield rows_among(batch, first)
        return
    for at in range(begin, end, step):
        yield rows_among(batch.slice(at, min(at + step, end)), first)


def batches_among(
    batch: Batch, first: Mapping[int, int], max_bytes: int
) -> tuple[list[Batch], int]:
    """Return the messages of ``parts_among``, as batches with rows, and the offset they reach.

    That is the end of ``batch``, unless they take ``max_bytes`` of a page before.
    """
    found: list[Batch] = []
    joined = JoinedRuns(found)
    reached = batch.stop
    for part in parts_among(batch, first, batch.offset, reached):
        joined.add_mixed(part, batch.run)
        max_bytes -= part.columns.nbytes + len(part.counts) * ROW_BYTES
        if max_bytes <= 0:
            reached = part.batch.stop
            break
    joined.finish()
    return found, reached


def rows_of(record: RunRecord) -> list[JoinedRow]:
    """Return the messages of a record as runs that can be joined; none if they cannot."""
    (
        _, first, timestamp, _, topic, count, data,
        size, lengths, sequence, sender, _, headers, mix, _,
    ) = record  # fmt: skip
    if headers is not None:
        return []
    sizes = size if lengths is None else array("I", lengths)
    if isinstance(sender, bytes):
        if mix is not None or count > SMALL:
            return []
        return [(count, topic, first, sequence, timestamp, sender, sizes, data)]
    counts = memoryview(sender[0]).cast("I")
    indexes = None if mix is None else memoryview(mix[1]).cast("I")
    rows: list[JoinedRow] = []
    at = place = 0
    for number, name in zip(counts, sender[1], strict=True):
        if mix is not None and indexes is not None:
            topic = mix[0][indexes[place]]
        own = sizes if isinstance(sizes, int) else sizes[place : place + number]
        nbytes = own * number if isinstance(own, int) else sum(own)
        rows.append(
            (number, topic, first + place, sequence + place, timestamp, name, own,
             data[at : at + nbytes])
        )  # fmt: skip
        at += nbytes
        place += number
    return rows
