"""Messages as JSON objects, as every endpoint shows them."""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

from pubsub.broker.routing.batch import indexed_by
from pubsub.kernel import RowField, encode_rows

if TYPE_CHECKING:
    from pubsub.broker.routing.batch import Batch, Headers
    from pubsub.broker.routing.batch_rows import BatchRows
    from pubsub.kernel import Columns
    from pubsub.kernel.interpreted import RowTemplate

# The variant of a UUID (RFC 9562, section 4.1) in its last 64 bits.
_ID = 0b10 << 62


def rows_of(
    batch: Batch,
    names: list[bytes | None],
    run: int,
    with_headers: bool,
    before: RowTemplate = (),
    after: RowTemplate = (),
    with_value: bool = True,
) -> tuple[bytes, int]:
    """Return each message as a JSON object, and their number; docs/http.md has the members.

    ``names`` is as in ``RowEncoding``. ``run`` is the run of the broker for a batch without one.
    ``before`` and ``after`` precede and follow each object.
    """
    ends: list[bytes] | None = None
    about: RowTemplate = _about(batch.timestamp, RowField.NAME, batch.protocol, batch.sender)
    number: int | bytes = batch.offset
    id: int | bytes = _ID | batch.sequence
    columns = batch.columns
    if batch.rows is not None:
        # What rows differ in is a part of the names.
        about = (RowField.NAME,)
        columns, names = _rows_apart(batch, batch.rows, names)
        number = batch.rows.numbers_of(batch.rows.offsets, 0)
        id = batch.rows.numbers_of(batch.rows.sequences, _ID)
    template: RowTemplate = (
        *before, b'{"offset": ', RowField.NUMBER if batch.has_place else b"null", *about,
        *((RowField.VALUE, b", ") if with_value else ()),
        _id_of_run(batch.run or run), RowField.ID, b'"',
        *_headers(batch, with_headers), b"}", *after,
    )  # fmt: skip
    if with_headers and batch.headers is not None:
        ends = [headers_row(one) for one in batch.headers]
    found = encode_rows(columns, template, names, number, id, ends)
    # None stands for a text that is not UTF-8, and a value is not one.
    assert found is not None
    return found


def _about(
    timestamp: int, name: bytes | RowField, protocol: str, sender: bytes
) -> tuple[bytes, bytes | RowField, bytes]:
    """Return the pieces between the offset and the payload of a message."""
    return (
        b', "timestamp": %d, "topic": ' % timestamp,
        name,
        b', "protocol": %b, "key": "%b", ' % (_text(protocol), b64encode(sender)),
    )


def _rows_apart(
    batch: Batch, rows: BatchRows, names: list[bytes | None]
) -> tuple[Columns, list[bytes | None]]:
    """Return the messages with an index for the topic, the time and the sender of each together.

    Each index has a name that is all of ``_about``; None if that of the topic is None.
    """
    each = zip(rows.indexes, rows.timestamps, rows.senders, strict=True)
    columns, keys = indexed_by(batch.columns, each, rows.counts)
    found: list[bytes | None] = []
    for index, timestamp, sender in keys:
        name = names[index]
        about = None if name is None else _about(timestamp, name, batch.protocol, sender)
        found.append(None if about is None else b"".join(about))  # type: ignore[arg-type]
    return columns, found


@lru_cache(maxsize=64)
def _id_of_run(run: int) -> bytes:
    """Return the member with the id of ``message_id`` up to its last 64 bits."""
    high = f"{run >> 12:012x}"
    return f'"message_id": "{high[:8]}-{high[8:]}-{0x8000 | run & 0xFFF:04x}-'.encode()


def _headers(batch: Batch, with_headers: bool) -> RowTemplate:
    if not with_headers:
        return ()
    return b', "headers": ', b"[]" if batch.headers is None else RowField.END


def names_of(batch: Batch) -> list[bytes | None]:
    """Return the names of all topics of a batch, for ``rows_of``."""
    return list(map(_text, batch.topics))


def headers_row(headers: Headers) -> bytes:
    """Return the headers of a message as a JSON list."""
    rows = [b'{"key": %b, %b}' % (_text(key), _value(value)) for key, value in headers.items()]
    return b"[%b]" % b", ".join(rows)


def _value(data: bytes) -> bytes:
    try:
        return b'"value": ' + _text(data.decode())
    except UnicodeDecodeError:
        return b'"value_base64": "%b"' % b64encode(data)


def _text(text: str) -> bytes:
    return encode_basestring(text).encode()
