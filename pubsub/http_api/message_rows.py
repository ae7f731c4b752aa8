"""Messages as JSON objects, as every endpoint shows them."""

from __future__ import annotations

import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from json.encoder import encode_basestring
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch, Headers

# Text without characters that JSON escapes.
_PLAIN = re.compile(rb"[ !#-\[\]-~]*")
_LOW = 2**48 - 1


def rows_of(batch: Batch, run: int, with_headers: bool, with_value: bool = True) -> Iterator[str]:
    """Yield each message of a batch of one topic as a JSON object; docs/http.md has its members.

    ``run`` is the run of the broker for a batch without one. Values that the messages have in
    common are encoded once, as one read may bring thousands of them.
    """
    run = batch.run or run
    common = (
        f'"timestamp": {batch.timestamp}, "topic": {encode_basestring(batch.topic)}, '
        f'"protocol": {encode_basestring(batch.protocol)}, '
        f'"key": "{b64encode(batch.sender).decode()}", '
    )
    # The id of message_id(), whose first 64 bits are the same for all of them.
    high = f"{run >> 12:012x}"
    id = f'"message_id": "{high[:8]}-{high[8:]}-{0x8000 | run & 0xFFF:04x}-'
    number, offset = 0b10 << 62 | batch.sequence, batch.offset
    payloads = batch.payloads()
    values = _values(payloads) if with_value else [""] * len(payloads)
    ends = _ends(batch, len(payloads), with_headers)
    for index, (value, end) in enumerate(zip(values, ends, strict=True)):
        low = number + index
        yield (
            f'{{"offset": {offset + index}, {common}{value}'
            f"{id}{low >> 48:04x}-{low & _LOW:012x}{end}"
        )


def _ends(batch: Batch, count: int, with_headers: bool) -> Iterable[str]:
    """Return what follows the id of each message."""
    if not with_headers:
        return repeat('"}', count)
    if batch.headers is None:
        return repeat('", "headers": []}', count)
    return [f'", "headers": {headers_row(one)}}}' for one in batch.headers]


def _values(payloads: Sequence[bytes]) -> list[str]:
    if _PLAIN.fullmatch(b"".join(payloads)):
        return [f'"value": "{payload.decode()}", ' for payload in payloads]
    return [f"{_value(payload)}, " for payload in payloads]


def _value(data: bytes) -> str:
    try:
        return f'"value": {encode_basestring(data.decode())}'
    except UnicodeDecodeError:
        return f'"value_base64": "{b64encode(data).decode()}"'


def headers_row(headers: Headers) -> str:
    """Return the headers of a message as a JSON list."""
    rows = [f'{{"key": {encode_basestring(k)}, {_value(v)}}}' for k, v in headers.items()]
    return f"[{', '.join(rows)}]"
