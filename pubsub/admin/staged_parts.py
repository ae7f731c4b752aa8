"""Staged parts: Arrow IPC streams of messages.

They are untrusted input, and every field is validated. All functions run in threads.
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
from pubsub.admin.parameters import invalid
from pubsub.admin.stream_formats import need_arrow
from pubsub.broker.batch import MAX_HEADERS, MAX_SENDER, Headers
from pubsub.broker.combination_cache import MAX_COMBINATION
from pubsub.broker.topics import topic_name
from pubsub.errors import SenderTooLong
from pubsub.kernel import Columns

# Messages of a part; even an empty message costs memory.
_MAX_MESSAGES = 1_000_000
# A run has at most this many messages and bytes, but at least one message. So its topics are a
# combination that is worth remembering.
_RUN_ROWS, _RUN_BYTES = MAX_COMBINATION, 256 * 1024
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


def summarize(file: IO[bytes], sender: bytes) -> tuple[int, frozenset[str]]:
    """Validate a part; return its number of messages and its topics.

    ``sender`` is used if there is no column ``key``. Raises ApiError or SenderTooLong.
    """
    messages = 0
    topics: set[str] = set()
    for batch in _batches(file):
        messages += batch.num_rows
        if messages > _MAX_MESSAGES:
            message = f"the part has more than {_MAX_MESSAGES} messages"
            raise ApiError(TOO_LARGE, "too-large", message)
        topics.update(batch["topic"].unique().to_pylist())
        _check_senders(batch, sender)
        if "headers" in batch.schema.names:
            _check_headers(batch["headers"])
    for name in topics:
        topic_name(name)
    return messages, frozenset(topics)


def read_runs(file: IO[bytes], sender: bytes) -> Iterator[PublishableRun]:
    """Return the messages of a part, in order. ``sender`` is used if there is no column ``key``."""
    for batch in _batches(file):
        if not batch.num_rows:
            continue
        names = batch.schema.names
        own = batch["key"].fill_null(b"") if "key" in names else None
        headers = batch["headers"].to_pylist() if "headers" in names else None
        values = _values(batch["value"])
        for start, stop in _run_bounds(own, values):
            some = None if headers is None else [_headers(h) for h in headers[start:stop]]
            topics = batch["topic"][start:stop].dictionary_encode()
            names = tuple(topics.dictionary.to_pylist())
            yield PublishableRun(
                names,
                sender if own is None else own[start].as_py(),
                Columns.of(
                    values[start:stop], topics.indices.to_pylist() if len(names) > 1 else None
                ),
                some if some and any(some) else None,
            )


def _values(column: Any) -> list[bytes]:
    """Return the payloads, sliced from the column's buffer."""
    _, ends, data = column.buffers()
    numbers = array("i")
    numbers.frombytes(memoryview(ends)[4 * column.offset : 4 * (column.offset + len(column) + 1)])
    low, high = numbers[0], numbers[-1]
    payload = b"" if data is None else bytes(memoryview(data)[low:high])
    return [payload[a - low : b - low] for a, b in pairwise(numbers)]


def _run_bounds(key: Any, values: list[bytes]) -> list[tuple[int, int]]:
    """Return the bounds of runs: rows with the same key, within the limits."""
    import pyarrow.compute as pc

    ends: set[int] = {*range(0, len(values), _RUN_ROWS), len(values)}
    if key is not None:
        ends.update(pc.run_end_encode(key).run_ends.to_pylist())
    size = 0
    for row, length in enumerate(map(len, values)):
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
        raise SenderTooLong(f"a sender has {longest} bytes, more than {MAX_SENDER}")


def _check_headers(column: Any) -> None:
    """Raise ApiError if a message has too many headers, or one without a key."""
    import pyarrow.compute as pc

    most = pc.max(pc.list_value_length(column)).as_py() or 0
    if most > MAX_HEADERS:
        raise invalid(f"a message has more than {MAX_HEADERS} headers")
    if column.flatten().flatten()[0].null_count:
        raise invalid("a header has no key")


def _headers(pairs: list[dict[str, Any]] | None) -> Headers:
    return {pair["key"]: pair["value"] or b"" for pair in pairs or ()}


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
    from pubsub.store.arrow import schema

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
