"""The subprotocol ``pubsub.v1.json``: requests, replies and messages in WebSocket frames. Sans-IO.

A text frame has a JSON object. A binary frame has one too, after its length (u32, big-endian), and
then the payload of a message: the object has no member ``value`` in that case.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from sys import maxsize
from typing import TYPE_CHECKING, Any

from pubsub.http_api.message_rows import rows_of

if TYPE_CHECKING:
    from pubsub.broker.batch import Batch
    from pubsub.http_api.api_error import ApiError

SUBPROTOCOL = "pubsub.v1.json"
_TEXT, _BINARY = 0x81, 0x82
_LENGTH = struct.Struct(">I")
_MEDIUM, _LONG = struct.Struct(">BBH"), struct.Struct(">BBQ")


class BadRequest(ValueError):
    """A frame that is not a request."""


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
    """Return the object of a message, and the payload of a binary one; raises BadRequest."""
    payload = None
    if binary:
        if len(data) < _LENGTH.size or len(data) - _LENGTH.size < _LENGTH.unpack_from(data)[0]:
            raise BadRequest("a binary frame is shorter than its length says")
        end = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        data, payload = data[_LENGTH.size : end], data[end:]
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise BadRequest("expected a JSON object") from None
    if not isinstance(found, dict):
        raise BadRequest("expected a JSON object")
    return found, payload


def id_of(request: dict[str, Any]) -> str | float | None:
    """Remove and return the id of a request; raises BadRequest."""
    id = request.pop("id", None)
    if id is None or isinstance(id, str | int) or (isinstance(id, float) and isfinite(id)):
        return id
    raise BadRequest("id: expected text or a number")


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
        head = f'{{"message": {row}}}'.encode()
        return frame(_BINARY, _LENGTH.pack(len(head)) + head + payload)
