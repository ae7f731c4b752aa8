"""The subprotocol ``pubsub.v1.json``: requests, replies and messages in WebSocket frames. Sans-IO.

A text frame has a JSON object. A binary frame has one too, after its length (u32, big-endian), and
then the payload of a message: the object has no member ``value`` in that case. Several messages are
in one binary frame if the object has their ``sizes``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from sys import maxsize
from typing import TYPE_CHECKING, Any

from pubsub.http_api.json_input import parse_json
from pubsub.http_api.message_rows import headers_row, rows_of
from pubsub.http_api.parameters import invalid

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.http_api.api_error import ApiError

SUBPROTOCOL = "pubsub.v1.json"
_TEXT, _BINARY = 0x81, 0x82
_LENGTH = struct.Struct(">I")
# Messages and bytes of payload in a frame, at most, unless one is larger.
_BATCH_MESSAGES, _BATCH_BYTES = 1_000, 64 * 1024
_MEDIUM, _LONG = struct.Struct(">BBH"), struct.Struct(">BBQ")


def frame(first: int, data: bytes) -> bytes:
    """Return an unmasked final frame with this first byte (RFC 6455, section 5.2)."""
    size = len(data)
    if 126 <= size < 65_536:
        return _MEDIUM.pack(first, 126, size) + data
    if size < 126:
        return bytes((first, size)) + data
    return _LONG.pack(first, 127, size) + data


def text(value: object) -> bytes:
    """Return the frame of an object."""
    # In ASCII: an id may have lone surrogates, which UTF-8 cannot express.
    return frame(_TEXT, json.dumps(value).encode())


def reply(id: object, members: dict[str, object]) -> bytes:
    """Return the frame that answers the request ``id``."""
    return text({"id": id, "ok": members})


def refusal(id: object, error: ApiError) -> bytes:
    """Return the frame that refuses the request ``id``, which is None if it is not known."""
    return text({"id": id, "error": {"code": error.code, "message": str(error), **error.more}})


def is_utf8(data: bytes) -> bool:
    """Return whether ``data`` can be a text message."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def request_of(data: bytes, binary: bool) -> tuple[dict[str, Any], bytes | None]:
    """Return the object of a message, and the payload of a binary one.

    Raises ApiError.
    """
    payload = None
    if binary:
        if len(data) < _LENGTH.size or len(data) - _LENGTH.size < _LENGTH.unpack_from(data)[0]:
            raise invalid("a binary frame is shorter than its length says")
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        data, payload = data[_LENGTH.size : end], data[end:]
    try:
        found = parse_json(data)
    except (ValueError, RecursionError):
        raise invalid("expected a JSON object") from None
    if not isinstance(found, dict):
        raise invalid("expected a JSON object")
    return found, payload


def id_of(request: dict[str, Any]) -> str | float | None:
    """Remove and return the id of a request; raises ApiError."""
    id: str | float | bool | None = request.pop("id", None)
    # A boolean is an int in Python, but not in JSON.
    if not isinstance(id, bool) and (
        id is None or isinstance(id, str | int) or (isinstance(id, float) and isfinite(id))
    ):
        return id
    raise invalid("id: expected text or a number")


@dataclass(frozen=True, slots=True)
class FrameEncoding:
    """See ``RunEncoding``: a frame for each message, the same for all that subscribe alike."""

    headers: bool
    binary: bool
    run: int

    @property
    def limit(self) -> int:
        return maxsize

    def encode(self, batch: Batch) -> bytes:
        """See ``RunEncoding``."""
        rows = rows_of(batch, self.run, self.headers, not self.binary)
        make: Callable[[str, bytes], bytes] = self._binary if self.binary else self._text
        return b"".join(map(make, rows, batch.payloads()))

    @staticmethod
    def _text(row: str, payload: bytes) -> bytes:
        return frame(_TEXT, f'{{"message": {row}}}'.encode())

    @staticmethod
    def _binary(row: str, payload: bytes) -> bytes:
        return _binary_frame(f'{{"message": {row}}}', payload)


@dataclass(frozen=True, slots=True)
class BatchEncoding:
    """See ``RunEncoding``: consecutive messages of one batch share a frame."""

    headers: bool
    run: int

    @property
    def limit(self) -> int:
        return maxsize

    def encode(self, batch: Batch) -> bytes:
        """See ``RunEncoding``."""
        size = max(batch.nbytes // batch.count, 1)
        step = max(min(_BATCH_BYTES // size, _BATCH_MESSAGES), 1)
        return b"".join([self._frame(batch, at, at + step) for at in range(0, batch.count, step)])

    def _frame(self, whole: Batch, start: int, stop: int) -> bytes:
        batch = whole.slice(start, stop)
        if batch.count == 1:
            return FrameEncoding(self.headers, True, self.run).encode(batch)
        row = next(rows_of(batch, self.run, with_headers=False, with_value=False))
        members = f'{row[:-1]}, "sizes": {batch.columns.sizes()}'
        if self.headers and batch.headers is not None:
            members += f', "headers": [{", ".join(map(headers_row, batch.headers))}]'
        return _binary_frame(f'{{"batch": {members}}}}}', batch.columns.pack()[0])


def _binary_frame(head: str, payload: bytes) -> bytes:
    data = head.encode()
    return frame(_BINARY, _LENGTH.pack(len(data)) + data + payload)
