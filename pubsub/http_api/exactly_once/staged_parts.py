"""Staged parts: Arrow IPC streams of messages.

They are untrusted input, and every field is validated. All functions run in threads.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from os import SEEK_END
from typing import IO, Any

from pubsub.broker.routing.batch import MAX_HEADERS, MAX_SENDER, Headers
from pubsub.broker.routing.combination_cache import MAX_COMBINATION
from pubsub.broker.routing.packed_headers import PackedHeaders
from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import SenderTooLong
from pubsub.http_api.exactly_once.arrow_ipc import Compressed, Field, read_stream
from pubsub.http_api.reading.stream_formats import need_arrow
from pubsub.http_api.requests.api_error import TOO_LARGE, UNSUPPORTED, ApiError
from pubsub.http_api.requests.parameters import invalid
from pubsub.kernel import Columns

# Messages and headers of a part; even an empty one costs memory.
_MAX_MESSAGES = 1_000_000
_MAX_HEADERS = 1_000_000
# Estimated bytes of memory that are taken, until a part is published, by a byte of it, a message, a
# header and a run.
_BYTE_COST = 3
_MESSAGE_BYTES = 64
_HEADER_BYTES = 16
_RUN_BYTES_HELD = 800
# A run has at most this many messages and bytes, but at least one message. So its topics are a
# combination that is worth remembering.
_RUN_ROWS, _RUN_BYTES = MAX_COMBINATION, 256 * 1024
# Runs whose rows are kept together, and freed together once they are published.
_RUNS_AT_ONCE = 256
_TEXT = frozenset({"string", "large_string"})
_BYTES = _TEXT | {"binary", "large_binary"}
_COLUMNS = {"topic": _TEXT, "value": _BYTES, "key": _BYTES}


@dataclass(frozen=True, slots=True)
class PublishableRun:
    """Consecutive messages of one sender; ``topics`` and ``headers`` are as in Batch."""

    topics: tuple[str, ...]
    sender: bytes
    columns: Columns
    headers: Sequence[Headers] | None


@dataclass(frozen=True, slots=True)
class PartSummary:
    """The contents of a part. ``memory`` are the estimated bytes that its runs take at most."""

    messages: int
    topics: frozenset[str]
    memory: int


def summarize(file: IO[bytes], sender: bytes) -> PartSummary:
    """Validate a part. ``sender`` is used if there is no column ``key``.

    Raises ApiError or SenderTooLong.
    """
    messages = headers = runs = 0
    topics: set[str] = set()
    for batch in _batches(file):
        messages += batch.num_rows
        if messages > _MAX_MESSAGES:
            message = f"the part has more than {_MAX_MESSAGES} messages"
            raise ApiError(TOO_LARGE, "too-large", message)
        _check_senders(batch, sender)
        if "headers" in batch.schema.names:
            headers += _check_headers(batch["headers"])
            if headers > _MAX_HEADERS:
                message = f"the part has more than {_MAX_HEADERS} headers"
                raise ApiError(TOO_LARGE, "too-large", message)
        topics.update(batch["topic"].unique().to_pylist())
        runs += _count_runs(batch)
    for name in topics:
        topic_name(name)
    nbytes = file.seek(0, SEEK_END)
    memory = (
        _BYTE_COST * nbytes
        + _MESSAGE_BYTES * messages
        + _HEADER_BYTES * headers
        + _RUN_BYTES_HELD * (runs + nbytes // _RUN_BYTES)
    )
    return PartSummary(messages, frozenset(topics), memory)


def _count_runs(batch: Any) -> int:
    """Return how many runs a batch has at most, but for those that end because of their bytes."""
    import pyarrow.compute as pc

    senders: int = 1
    if "key" in batch.schema.names:
        senders = len(pc.run_end_encode(batch["key"]).run_ends)
    rows: int = batch.num_rows
    return senders + rows // _RUN_ROWS


def read_rows(file: IO[bytes], sender: bytes) -> Iterator[StagedRows]:
    """Return the messages of a part, in order. ``sender`` is used if there is no column ``key``."""
    for batch in _batches(file):
        if not batch.num_rows:
            continue
        names = batch.schema.names
        own = batch["key"].fill_null(b"") if "key" in names else None
        headers = _HeaderColumn(batch["headers"]) if "headers" in names else None
        values = _values(batch["value"])
        sizes = list(map(len, values))
        if headers is not None:
            sizes = [size + more for size, more in zip(sizes, headers.sizes(), strict=True)]
        topics = batch["topic"].dictionary_encode()
        all_names = topics.dictionary.to_pylist()
        bounds = _run_bounds(own, sizes)
        for at in range(0, len(bounds), _RUNS_AT_ONCE):
            some = bounds[at : at + _RUNS_AT_ONCE]
            start, stop = some[0][0], some[-1][1]
            yield StagedRows(
                start,
                all_names,
                topics.indices[start:stop].to_pylist(),
                values[start:stop],
                [sender] if own is None else own[start:stop].to_pylist(),
                headers,
                some,
            )


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Consecutive messages of a part, from its row ``start`` on.

    ``topics`` has the index of each message's topic in ``names``. ``senders`` has the sender of
    each message, or the one of all. ``bounds`` are the rows of the runs. A run is made of them only
    when it is published, as its objects would take more memory than all else.
    """

    start: int
    names: list[str]
    topics: list[int]
    values: list[bytes]
    senders: list[bytes]
    headers: _HeaderColumn | None
    bounds: list[tuple[int, int]]

    def runs(self) -> Iterator[PublishableRun]:
        """Yield the messages in runs."""
        names, base = self.names, self.start
        for begin, end in self.bounds:
            start, stop = begin - base, end - base
            sender = self.senders[start if len(self.senders) > 1 else 0]
            headers = None if self.headers is None else self.headers.packed(begin, end)
            wanted = self.topics[start:stop]
            # In the order in which they appear.
            places = {topic: place for place, topic in enumerate(dict.fromkeys(wanted))}
            yield PublishableRun(
                tuple([names[topic] for topic in places]),
                sender,
                Columns.of(
                    self.values[start:stop],
                    [places[topic] for topic in wanted] if len(places) > 1 else None,
                ),
                headers,
            )


def _values(column: Any) -> list[bytes]:
    """Return the payloads, sliced from the column's buffer."""
    numbers, data = _buffers(column)
    low, high = numbers[0], numbers[-1]
    payload = bytes(data[low:high])
    return [payload[a - low : b - low] for a, b in pairwise(numbers)]


def _buffers(column: Any) -> tuple[array[int], memoryview]:
    """Return the offsets of a column of text or binary, and its data."""
    _, ends, data = column.buffers()
    return _offsets(ends, column), memoryview(b"" if data is None else data)


def _offsets(buffer: Any, column: Any) -> array[int]:
    numbers = array("i")
    view = memoryview(buffer)
    numbers.frombytes(view[4 * column.offset : 4 * (column.offset + len(column) + 1)])
    return numbers


class _HeaderColumn:
    """The column ``headers`` of a batch."""

    def __init__(self, column: Any) -> None:
        self._offsets = _offsets(column.buffers()[1], column)
        self._no_list = _nulls(column)
        keys, values = column.values.field(0), column.values.field(1)
        self._no_value = _nulls(values)
        self._key_ends, self._keys = _buffers(keys)
        self._value_ends, self._values = _buffers(values)

    def sizes(self) -> Iterator[int]:
        """Yield the bytes that the headers of each message take when they are packed."""
        keys, values = self._key_ends, self._value_ends
        for low, high in pairwise(self._offsets):
            yield keys[high] - keys[low] + values[high] - values[low] + 8 * (high - low)

    def packed(self, start: int, stop: int) -> PackedHeaders | None:
        """Return the headers of the messages from ``start`` to before ``stop``; None for none."""
        if self._offsets[start] == self._offsets[stop]:
            return None
        return PackedHeaders.of(map(self._pairs, range(start, stop)))

    def _pairs(self, row: int) -> list[tuple[bytes, bytes]]:
        if row in self._no_list:
            return []
        keys, values = self._key_ends, self._value_ends
        return [
            (
                bytes(self._keys[keys[at] : keys[at + 1]]),
                b"" if at in self._no_value else bytes(self._values[values[at] : values[at + 1]]),
            )
            for at in range(self._offsets[row], self._offsets[row + 1])
        ]


def _nulls(column: Any) -> frozenset[int]:
    """Return the rows that are null."""
    import pyarrow.compute as pc

    if not column.null_count:
        return frozenset()
    return frozenset(pc.indices_nonzero(column.is_null()).to_pylist())


def _run_bounds(key: Any, sizes: list[int]) -> list[tuple[int, int]]:
    """Return the bounds of runs: rows with the same key, within the limits."""
    import pyarrow.compute as pc

    ends: set[int] = {*range(0, len(sizes), _RUN_ROWS), len(sizes)}
    if key is not None:
        ends.update(pc.run_end_encode(key).run_ends.to_pylist())
    size = 0
    for row, length in enumerate(sizes):
        size += length
        if size > _RUN_BYTES:
            ends.add(row)
            size = length
    return list(pairwise(sorted(ends)))


def _check_senders(batch: Any, sender: bytes) -> None:
    """Raise SenderTooLong if the sender of a message has more than ``MAX_SENDER`` bytes."""
    import pyarrow.compute as pc

    longest = len(sender)
    if "key" in batch.schema.names:
        longest = pc.max(pc.binary_length(batch["key"])).as_py() or 0
    if longest > MAX_SENDER:
        raise SenderTooLong(longest)


def _check_headers(column: Any) -> int:
    """Return the number of headers.

    Raises ApiError if a message has too many headers, or one without a key.
    """
    import pyarrow.compute as pc

    most = pc.max(pc.list_value_length(column)).as_py() or 0
    if most > MAX_HEADERS:
        raise invalid(f"a message has more than {MAX_HEADERS} headers")
    if column.flatten().flatten()[0].null_count:
        raise invalid("a header has no key")
    count: int = len(column.values)
    return count


def _batches(file: IO[bytes]) -> Iterator[Any]:
    """Return the validated record batches of a stream, cast to the column types used here."""
    pyarrow = need_arrow()
    file.seek(0)
    try:
        fields, batches = read_stream(file)
        kinds = [_kind(pyarrow, field) for field in fields]
        names = [field.name for field in fields]
        if len(set(names)) < len(names) or not {"topic", "value"} <= set(names):
            raise invalid("expected columns topic and value, optionally key and headers, once each")
        for rows, columns in batches:
            if not rows:
                continue
            arrays = []
            for field, (given, wanted) in zip(fields, kinds, strict=True):
                column = columns.take(field, given, pyarrow.py_buffer, pyarrow.Array)
                # Offsets in the buffers are untrusted.
                column.validate(full=True)
                arrays.append(column.cast(wanted))
            batch = pyarrow.RecordBatch.from_arrays(arrays, names=names)
            if batch["topic"].null_count or batch["value"].null_count:
                raise invalid("topic and value must not be null")
            yield batch
    except Compressed:
        message = "compressed buffers are not accepted; send the stream uncompressed"
        raise ApiError(UNSUPPORTED, "compressed", message) from None
    except (pyarrow.ArrowException, ValueError, struct.error, OverflowError) as error:
        raise invalid(f"not an Arrow stream of messages: {error}") from None


def _kind(pyarrow: Any, field: Field) -> tuple[Any, Any]:
    """Return the Arrow types of a column as sent and as used here; raises ApiError."""
    from pubsub.store.reading.arrow import schema

    if field.name == "headers":
        headers = schema(headers=True).field("headers").type
        if field.kind == "list" and [one.kind for one in field.children] == ["struct"]:
            pairs = [(one.name, one.kind) for one in field.children[0].children]
            if pairs == [("key", "string"), ("value", "binary")]:
                return headers, headers
    elif field.name in _COLUMNS and field.kind in _COLUMNS[field.name] and not field.children:
        wanted = pyarrow.string() if field.name == "topic" else pyarrow.binary()
        return getattr(pyarrow, field.kind)(), wanted
    raise invalid(f"unexpected column {field.name!r} of type {field.kind}")
