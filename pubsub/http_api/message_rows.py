"""Messages as JSON objects, as every endpoint shows them."""

from __future__ import annotations

from base64 import b64encode
from functools import lru_cache
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

from pubsub.kernel import RowField, encode_rows

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch, Headers
    from pubsub.kernel.interpreted import RowTemplate


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
    template: RowTemplate = (
        *before, b'{"offset": ', RowField.NUMBER,
        b', "timestamp": %d, "topic": ' % batch.timestamp, RowField.NAME,
        b', "protocol": %b, "key": "%b", ' % (_text(batch.protocol), b64encode(batch.sender)),
        *((RowField.VALUE, b", ") if with_value else ()),
        _id_of_run(batch.run or run), RowField.ID, b'"',
        *_headers(batch, with_headers), b"}", *after,
    )  # fmt: skip
    if with_headers and batch.headers is not None:
        ends = [headers_row(one) for one in batch.headers]
    id = 0b10 << 62 | batch.sequence
    found = encode_rows(batch.columns, template, names, batch.offset, id, ends)
    # None stands for a text that is not UTF-8, and a value is not one.
    assert found is not None
    return found


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
