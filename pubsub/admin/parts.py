"""Staged parts: Arrow IPC streams of messages, which come from anybody and are believed nothing.

All of it runs in threads.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, Any

from pubsub.admin.errors import TOO_LARGE, UNSUPPORTED, ApiError
from pubsub.admin.formats import need_arrow
from pubsub.admin.query import bad
from pubsub.broker.batch import MIXED, Headers
from pubsub.broker.topics import topic_name

# Messages of a part. Each costs some memory whatever it holds.
_MESSAGES = 1_000_000
# Place of the field `compression` in the table RecordBatch of Arrow's Message.fbs, and that of
# `header` in Message.
_COMPRESSION, _HEADER = 3, 2


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive messages of one topic and sender; the rest is as in Batch."""

    topic: str
    sender: bytes
    payloads: list[bytes]
    nbytes: int
    size: int
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
        values = batch["value"].to_pylist()
        for start, stop in _stretches(batch["topic"], own):
            payloads = values[start:stop]
            sizes = set(map(len, payloads))
            some = None if headers is None else [_headers(h) for h in headers[start:stop]]
            yield Piece(
                batch["topic"][start].as_py(),
                sender if own is None else own[start].as_py(),
                payloads,
                sum(map(len, payloads)),
                sizes.pop() if len(sizes) == 1 else MIXED,
                some if some and any(some) else None,
            )


def _stretches(topic: Any, key: Any) -> list[tuple[int, int]]:
    """Where rows follow one another that have the same topic and key."""
    import pyarrow.compute as pc

    ends: set[int] = {0}
    for column in (topic, key):
        if column is not None:
            ends.update(pc.run_end_encode(column).run_ends.to_pylist())
    return list(pairwise(sorted(ends)))


def _headers(pairs: list[dict[str, Any]] | None) -> Headers:
    return {pair["key"]: pair["value"] or b"" for pair in pairs or ()}


def _batches(file: IO[bytes]) -> Iterator[Any]:
    """The record batches of a stream, checked, with the columns' types as they are here."""
    pyarrow = need_arrow()
    file.seek(0)
    try:
        messages = pyarrow.ipc.MessageReader.open_stream(file)
        schema = pyarrow.ipc.read_schema(messages.read_next_message())
        kinds = _kinds(pyarrow, schema)
        for message in messages:
            if message.type != "record batch":
                raise bad("expected record batches, without dictionaries")
            if _is_compressed(message.metadata.to_pybytes()):
                raise ApiError(UNSUPPORTED, "compressed", "expected a stream without compression")
            batch = pyarrow.ipc.read_record_batch(message, schema)
            # What comes from outside may point anywhere.
            batch.validate(full=True)
            if batch["topic"].null_count or batch["value"].null_count:
                raise bad("topic and value are never null")
            yield batch.cast(kinds)
    except (pyarrow.ArrowException, OSError, ValueError, struct.error, StopIteration) as error:
        raise bad(f"this is no Arrow stream of messages: {error}") from None


def _kinds(pyarrow: Any, schema: Any) -> Any:
    """The columns as they are to be; raises ApiError for others."""
    text = (pyarrow.string(), pyarrow.large_string())
    binary = (pyarrow.binary(), pyarrow.large_binary(), *text)
    from pubsub.store.arrow import schema as full

    headers = full(headers=True).field("headers").type
    known = {
        "topic": (pyarrow.string(), text),
        "value": (pyarrow.binary(), binary),
        "key": (pyarrow.binary(), binary),
        "headers": (headers, (headers,)),
    }
    fields = []
    for field in schema:
        wanted, taken = known.pop(field.name, (None, ()))
        if not any(field.type.equals(kind) for kind in taken):
            raise bad(f"the column {field.name!r} is not to be there, or not as {field.type}")
        fields.append((field.name, wanted))
    if "topic" in known or "value" in known:
        raise bad("expected the columns topic and value, and perhaps key and headers")
    return pyarrow.schema(fields)


def _is_compressed(metadata: bytes) -> bool:
    """Does a message's flatbuffer say that its buffers are compressed?

    They are not taken: a few bytes could ask for any amount of memory.
    """
    (root,) = struct.unpack_from("<I", metadata, 0)
    header = _field(metadata, root, _HEADER)
    if header is None:
        raise bad("a message without a header")
    (offset,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + offset, _COMPRESSION) is not None


def _field(data: bytes, table: int, index: int) -> int | None:
    """Where a table's field is, None if it is not there (see the format of flatbuffers)."""
    (back,) = struct.unpack_from("<i", data, table)
    vtable = table - back
    (size,) = struct.unpack_from("<H", data, vtable)
    place = 4 + 2 * index
    if place >= size:
        return None
    (offset,) = struct.unpack_from("<H", data, vtable + place)
    return table + offset if offset else None
