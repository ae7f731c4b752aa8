"""The history as Arrow record batches, made from blocks without a loop over messages.

A block has its runs in fixed records and its payloads joined, which is close to Arrow's format. The
fields of a run are expanded to its messages by run ends; payloads are wrapped without a copy.
Requires the extra ``arrow``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from pubsub.broker.routing.batch import Headers
from pubsub.store.reading.arrow_values import (
    ROWS,
    as_text,
    counting,
    expand,
    int64,
    message_ids,
    wrapped,
)
from pubsub.store.records.block_columns import (
    HAS_HEADERS,
    MIXED,
    RUN,
    RUN_WORDS,
    SEVERAL,
    decode_headers,
    decode_lists,
    decode_names,
    numbers,
)
from pubsub.store.records.parcel import Parcel, Piece

if TYPE_CHECKING:
    from pubsub.store.reading.log_view import LogView

BatchOrGap: TypeAlias = pa.RecordBatch | tuple[int, int]
"""Messages, or a range of offsets (start, stop) that is damaged."""
_HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("protocol", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("message_id", pa.string()),
    ]
)
"""The columns without headers. No value is null."""
_COUNT_BITS = pa.scalar(HAS_HEADERS - 1, pa.int32())
_OWN_SIZES = pa.scalar(MIXED, pa.int32())
# As a signed integer.
_SEVERAL_TOPICS = pa.scalar(SEVERAL - 2**32, pa.int32())
_NONE = pa.scalar(0, pa.int64())


def schema(headers: bool = False) -> pa.Schema:
    """Return the columns, with ``headers`` or without."""
    return SCHEMA.append(pa.field("headers", _HEADERS)) if headers else SCHEMA


def read_arrow(
    view: LogView,
    start: int,
    stop: int,
    topics: frozenset[str] | None,
    headers: bool = False,
    partition: int = 0,
) -> Iterator[BatchOrGap]:
    """Yield the messages of ``topics`` from ``start`` to before ``stop``, in order.

    ``topics`` are as in ``LogView.parcels``. Expired messages are left out. Raises OSError.
    """
    for parcel in view.parcels(start, stop, topics):
        yield from batches(parcel, headers, partition)
        if parcel.damaged is not None:
            yield parcel.damaged


def batches(parcel: Parcel, headers: bool = False, partition: int = 0) -> Iterator[pa.RecordBatch]:
    """Yield the messages of a parcel, at most ROWS in each batch."""
    # Message ids are made from the number of the broker run.
    blocks = [piece for piece in parcel.blocks if piece[0].runs]
    for run, pieces in groupby(blocks, lambda piece: piece[0].run):
        yield from _RunTable(list(pieces), run, headers, partition).cut(parcel.start, parcel.stop)


class _RunTable:
    """Blocks of one broker run: the runs to be read as a table, all payloads as one array."""

    def __init__(self, pieces: Sequence[Piece], run: int, headers: bool, partition: int) -> None:
        self._pieces = pieces
        self._run = run
        self._headers = headers
        self._partition = partition
        names = [list(decode_names(block.names)) for block, _ in pieces]
        self._names = pa.array(list(chain(*names)), pa.binary())
        # The index of the topic of each message, where some runs have several topics.
        self._topics: Any = None
        self._runs, ends, sizes = self._read_runs(names)
        self._values = self._read_values(ends, sizes)

    def _read_runs(self, names: list[list[bytes]]) -> tuple[Any, Any, Any]:
        """Return the runs to be read; of all runs, the ends in the payloads, and the sizes."""
        joined = b"".join([block.runs for block, _ in self._pieces])
        words, longs = numbers("i", joined), numbers("q", joined)
        width, long_width = RUN_WORDS, RUN.size // 8
        start, number, topic, sender, protocol, size = (
            wrapped(pa.int32(), words[column::width]) for column in range(6)
        )
        timestamp, sequence = (
            wrapped(pa.int64(), longs[column::long_width]) for column in range(3, 5)
        )
        count = pc.bit_wise_and(number, _COUNT_BITS)
        ends = pc.cumulative_sum(count)
        of_block = array("i", [len(block.runs) // RUN.size for block, _ in self._pieces])
        block_ends = pc.cumulative_sum(wrapped(pa.int32(), of_block))
        bases = expand(block_ends, pa.array([b.base for b, _ in self._pieces], pa.int64()))
        shifts = array("i", [0])
        for own in names[:-1]:
            shifts.append(shifts[-1] + len(own))
        shift = expand(block_ends, wrapped(pa.int32(), shifts))
        several = pc.equal(topic, _SEVERAL_TOPICS)
        topic = pc.add(topic, shift)
        if any(block.lists for block, _ in self._pieces):
            self._topics = self._read_topics(topic, several, ends, shifts)
        runs = pa.RecordBatch.from_pydict(
            {
                "topic": topic,
                "sender": pc.add(sender, shift),
                "protocol": pc.add(protocol, shift),
                "timestamp": timestamp,
                "sequence": sequence,
                "offset": pc.add(bases, start),
                "position": pc.subtract(ends, count).cast(pa.int64()),
                "count": count.cast(pa.int64()),
            }
        )
        wanted = self._is_wanted(names)
        if not all(wanted):
            if self._topics is not None:
                # Only some messages of a run may be wanted.
                runs = _singles(runs, ends, self._topics)
                self._topics = None
            runs = runs.filter(pa.array(wanted).take(runs["topic"]))
        return runs, ends, size

    def _read_topics(self, topic: Any, several: Any, ends: Any, shifts: array[int]) -> Any:
        """Return the index of the topic of each message in the names of all blocks."""
        begins, listed = array("i"), array("i")
        for (block, _), shift in zip(self._pieces, shifts, strict=True):
            for own in decode_lists(block.lists):
                begins.append(len(listed))
                listed.extend(map(shift.__add__, own))
        picks = numbers("i", b"".join([block.picks for block, _ in self._pieces]))
        each = expand(ends, several)
        # The lists belong to the runs of several topics, in order.
        begin = pc.replace_with_mask(topic, several, wrapped(pa.int32(), begins))
        own_begins = expand(ends, begin).filter(each)
        places = pc.add(own_begins, wrapped(pa.int32(), picks))
        found = wrapped(pa.int32(), listed).take(places)
        if len(found) == len(each):
            return found
        return pc.replace_with_mask(expand(ends, topic), each, found)

    def _is_wanted(self, names: list[list[bytes]]) -> list[bool]:
        """Return for each name whether it is a topic to be read, or not the name of a topic."""
        found: list[bool] = []
        for own, (block, topics) in zip(names, self._pieces, strict=True):
            wanted = frozenset(map(str.encode, topics))
            used = {own[index] for index in block.topic_indexes()}
            found += [name in wanted or name not in used for name in own]
        return found

    def _read_values(self, ends: Any, sizes: Any) -> Any:
        """Return all payloads of the blocks, including those of other topics."""
        mixed = pc.equal(sizes, _OWN_SIZES)
        lengths = numbers("i", b"".join([block.lengths for block, _ in self._pieces]))
        if not lengths:
            each = expand(ends, sizes)
        elif pc.all(mixed).as_py():
            each = wrapped(pa.int32(), lengths)
        else:
            # Messages without a length of their own have the size of their run.
            own = wrapped(pa.int32(), lengths)
            each = pc.replace_with_mask(expand(ends, sizes), expand(ends, mixed), own)
        ends_of = pc.cumulative_sum(pa.concat_arrays([pa.array([0], pa.int32()), each]))
        payloads = [block.payloads for block, _ in self._pieces]
        data = payloads[0] if len(payloads) == 1 else b"".join(payloads)
        return pa.Array.from_buffers(
            pa.binary(), len(each), [None, ends_of.buffers()[1], pa.py_buffer(data)]
        )

    def cut(self, start: int, stop: int) -> Iterator[pa.RecordBatch]:
        """Yield the messages to be read from the offset ``start`` to before ``stop``."""
        runs = _within(self._runs, self._runs["offset"], start, stop)
        total = pc.sum(runs["count"]).as_py() or 0
        if total <= ROWS:
            if total:
                yield self._batch(runs)
            return
        rows = pc.subtract(pc.cumulative_sum(runs["count"]), runs["count"])
        for row in range(0, total, ROWS):
            yield self._batch(_within(runs, rows, row, row + ROWS))

    def _batch(self, runs: Any) -> pa.RecordBatch:
        count = runs["count"]
        ends = pc.cumulative_sum(count).cast(pa.int32())
        rows = ends[-1].as_py()
        numbers = counting().slice(0, rows)
        begins = pc.subtract(ends.cast(pa.int64()), count)

        def each(column: str) -> Any:
            """Return a column that increases by one within a run."""
            return pc.add(expand(ends, pc.subtract(runs[column], begins)), numbers)

        def name(column: str) -> Any:
            return expand(ends, self._names.take(runs[column]))

        offset = each("offset")
        if self._topics is None:
            topic = name("topic")
        else:
            topic = self._names.take(_of_messages(self._topics, runs, rows, each))
        columns = [
            as_text(topic),
            pa.repeat(pa.scalar(self._partition, pa.int32()), rows),
            offset,
            expand(ends, runs["timestamp"]).view(pa.timestamp("us", tz="UTC")),
            as_text(name("protocol")),
            name("sender"),
            _of_messages(self._values, runs, rows, each),
            message_ids(self._run, each("sequence")),
        ]
        if self._headers:
            columns.append(self._headers_of(offset))
        return pa.RecordBatch.from_arrays(columns, schema=schema(self._headers))

    def _headers_of(self, offset: Any) -> Any:
        """Return the headers of the messages at these offsets.

        The loops are over the messages that have headers.
        """
        rows = len(offset)
        kept: dict[int, Headers] = {}
        for block, _ in self._pieces:
            if block.headers:
                kept |= {block.base + at: own for at, own in decode_headers(block.headers)}
        places = pc.index_in(pa.array(kept, pa.int64()), value_set=offset).to_pylist()
        numbers = array("i", bytes(4 * (rows + 1)))
        found = {place: own for place, own in zip(places, kept.values(), strict=True)
                 if place is not None}  # fmt: skip
        for place, own in found.items():
            numbers[place + 1] = len(own)
        pairs = [pair for own in found.values() for pair in own.items()]
        fields = pa.StructArray.from_arrays(
            [
                pa.array([key for key, _ in pairs], pa.string()),
                pa.array([value for _, value in pairs], pa.binary()),
            ],
            fields=list(_HEADERS.value_type),
        )
        ends = pc.cumulative_sum(wrapped(pa.int32(), numbers))
        return pa.ListArray.from_arrays(ends, fields, type=_HEADERS)


def _within(runs: Any, begin: Any, low: int, high: int) -> Any:
    """Cut ``runs`` to the range from ``low`` to before ``high``; ``begin`` is where each begins."""
    skipped = pc.max_element_wise(pc.subtract(int64(low), begin), _NONE)
    left = pc.min_element_wise(pc.subtract(int64(high), begin), runs["count"])
    changed = {name: pc.add(runs[name], skipped) for name in ("sequence", "offset", "position")}
    changed["count"] = pc.subtract(left, skipped)
    same = {name: runs[name] for name in ("topic", "sender", "protocol", "timestamp")}
    return pa.RecordBatch.from_pydict(same | changed).filter(pc.greater(changed["count"], _NONE))


def _singles(runs: Any, ends: Any, topics: Any) -> Any:
    """Return a run for each message, with its own topic; the runs end at ``ends``."""
    rows = len(topics)
    begins = pc.subtract(ends.cast(pa.int64()), runs["count"])
    positions = wrapped(pa.int64(), array("q", range(rows)))
    within = pc.subtract(positions, expand(ends, begins))
    found = {"topic": topics}
    for name in ("sender", "protocol", "timestamp"):
        found[name] = expand(ends, runs[name])
    for name in ("sequence", "offset"):
        found[name] = pc.add(expand(ends, runs[name]), within)
    found["position"] = positions
    found["count"] = pa.repeat(pa.scalar(1, pa.int64()), rows)
    return pa.RecordBatch.from_pydict(found)


def _of_messages(values: Any, runs: Any, rows: int, each: Callable[[str], Any]) -> Any:
    """Return those of ``values``, which are of all messages, that belong to ``runs``."""
    position = runs["position"]
    first = position[0].as_py()
    if position[-1].as_py() + runs["count"][-1].as_py() - first == rows:
        return values.slice(first, rows)
    return values.take(each("position"))
