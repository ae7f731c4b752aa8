"""Staged parts: Arrow IPC streams of messages, which come from anybody and are believed nothing.

All of it runs in threads.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any

from pubsub.admin.api_error import TOO_LARGE, UNSUPPORTED, ApiError
from pubsub.admin.arrow_ipc import Compressed, Field, read_stream
from pubsub.admin.parameters import bad
from pubsub.admin.stream_formats import need_arrow
from pubsub.broker.batch import MAX_HEADERS, Headers
from pubsub.broker.message_run import MessageRun
from pubsub.broker.topics import topic_name

# Messages of a part. Each costs some memory whatever it holds.
_MESSAGES = 1_000_000
# What is published in one go has so many messages and bytes at the most, but one message.
_PIECE_ROWS, _PIECE_BYTES = 10_000, 256 * 1024
_TEXT = frozenset({"string", "large_string"})
_BYTES = _TEXT | {"binary", "large_binary"}
_TAKEN = {"topic": _TEXT, "value": _BYTES, "key": _BYTES}


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive messages of one topic and sender; ``headers`` is as in Batch."""

    topic: str
    sender: bytes
    run: MessageRun
    headers: Sequence[Headers] | None


def summary_of(file: IO[bytes]) -> tuple[int, frozenset[str]]:
    """How many messages a part has, and of which topics; raises ApiError if it cannot be used."""
    messages = 0
    topics: set[str] = set()
    for batch in _batches(file):
        messages += batch.num_rows
        if messages > _MESSAGES:
            raise ApiError(TOO_LARGE, "too-large", f"a part has {_MESSAGES} messages at the most")
        topics.update(batch["topic"].unique().to_pylist())
        if "headers" in batch.schema.names:
            _check_headers(batch["headers"])
    for name in topics:
        topic_name(name)
    return messages, frozenset(topics)


def pieces_of(file: IO[bytes], sender: bytes) -> Iterator[Piece]:
    """The messages of a part, in order. ``sender`` is whose they are where they do not say it."""
    for batch in _batches(file):
        if not batch.num_rows:
            continue
        names = batch.schema.names
        own = batch["key"].fill_null(b"") if "key" in names else None
        headers = batch["headers"].to_pylist() if "headers" in names else None
        values = _values(batch["value"])
        for start, stop in _stretches(batch["topic"], own, values):
            some = None if headers is None else [_headers(h) for h in headers[start:stop]]
            yield Piece(
                batch["topic"][start].as_py(),
                sender if own is None else own[start].as_py(),
                MessageRun.of(values[start:stop]),
                some if some and any(some) else None,
            )


def _values(column: Any) -> list[bytes]:
    """The payloads, which are cut at C speed."""
    _, ends, data = column.buffers()
    numbers = array("i")
    numbers.frombytes(memoryview(ends)[4 * column.offset : 4 * (column.offset + len(column) + 1)])
    low, high = numbers[0], numbers[-1]
    payload = b"" if data is None else bytes(memoryview(data)[low:high])
    return [payload[a - low : b - low] for a, b in pairwise(numbers)]


def _stretches(topic: Any, key: Any, values: list[bytes]) -> list[tuple[int, int]]:
    """Where rows follow one another that have the same topic and key, and are not too many."""
    import pyarrow.compute as pc

    ends: set[int] = {0, *range(0, len(topic), _PIECE_ROWS)}
    for column in (topic, key):
        if column is not None:
            ends.update(pc.run_end_encode(column).run_ends.to_pylist())
    size = 0
    for row, length in enumerate(map(len, values)):
        size += length
        if size > _PIECE_BYTES:
            ends.add(row)
            size = length
    return list(pairwise(sorted(ends)))


def _check_headers(column: Any) -> None:
    """Raises ApiError if a message has too many, or one without a name."""
    import pyarrow.compute as pc

    most = pc.max(pc.list_value_length(column)).as_py() or 0
    if most > MAX_HEADERS:
        raise bad(f"a message has {MAX_HEADERS} headers at the most")
    if column.flatten().flatten()[0].null_count:
        raise bad("a header has no key")


def _headers(pairs: list[dict[str, Any]] | None) -> Headers:
    return {pair["key"]: pair["value"] or b"" for pair in pairs or ()}


def _batches(file: IO[bytes]) -> Iterator[Any]:
    """The record batches of a stream, checked, with the columns' types as they are here."""
    pyarrow = need_arrow()
    file.seek(0)
    try:
        fields, batches = read_stream(file)
        kinds = [_kind(pyarrow, field) for field in fields]
        names = [field.name for field in fields]
        if len(set(names)) < len(names) or not {"topic", "value"} <= set(names):
            raise bad("expected the columns topic and value, and perhaps key and headers, once")
        for rows, columns in batches:
            if not rows:
                continue
            arrays = []
            for field, (given, wanted) in zip(fields, kinds, strict=True):
                column = columns.take(field, given, pyarrow.py_buffer, pyarrow.Array)
                # What comes from outside may point anywhere.
                column.validate(full=True)
                arrays.append(column.cast(wanted))
            batch = pyarrow.RecordBatch.from_arrays(arrays, names=names)
            if batch["topic"].null_count or batch["value"].null_count:
                raise bad("topic and value are never null")
            yield batch
    except Compressed:
        message = "expected a stream without compression"
        raise ApiError(UNSUPPORTED, "compressed", message) from None
    except (pyarrow.ArrowException, ValueError, struct.error, OverflowError) as error:
        raise bad(f"this is no Arrow stream of messages: {error}") from None


def _kind(pyarrow: Any, field: Field) -> tuple[Any, Any]:
    """A column's type as it comes and as it is to be; raises ApiError for others."""
    from pubsub.store.arrow import schema

    if field.name == "headers":
        headers = schema(headers=True).field("headers").type
        if field.kind == "list" and [one.kind for one in field.children] == ["struct"]:
            pairs = [(one.name, one.kind) for one in field.children[0].children]
            if pairs == [("key", "string"), ("value", "binary")]:
                return headers, headers
    elif field.name in _TAKEN and field.kind in _TAKEN[field.name] and not field.children:
        wanted = pyarrow.string() if field.name == "topic" else pyarrow.binary()
        return getattr(pyarrow, field.kind)(), wanted
    raise bad(f"the column {field.name!r} is not to be there, or not as {field.kind}")
