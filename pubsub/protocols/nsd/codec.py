"""nsd: lines to requests, responses to lines. Sans-IO; ``seeds/nsd.md`` is the specification.

Every request names an identity; its ``_class`` is the kind of request. A line is JSON, or the
base64 of JSON, and the response has the same form. ``message_heads.py`` handles runs of publishes,
which are most of the traffic.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pubsub.broker.routing.batch import MAX_HEADERS, Batch

MAX_LINE = 4 * 1024 * 1024
# Characters of a line that are shown in its INVALID REQUEST.
SHOWN = 200
MAX_NAME = 255
NAME = "nsd"
_MESSAGE_FIELDS = frozenset({"_class", "from", "when", "body"})


class InvalidLine(Exception):
    """A line that is not a request; ``shown`` is the part of it that the response shows."""

    def __init__(self, shown: str) -> None:
        super().__init__("invalid request")
        self.shown = shown[:SHOWN]


@dataclass(frozen=True, slots=True)
class Message:
    """The message of a Publish; ``extra`` holds every further field as its JSON text."""

    sender: str
    body: str
    extra: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Open:
    """Create the identity's channel and subscribe to it (nsd §3.1)."""

    identity: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Publish on the identity's channel (nsd §3.2)."""

    identity: str
    message: Message


@dataclass(frozen=True, slots=True)
class Subscribe:
    """Subscribe the identity to a channel, and perhaps ask for the position (nsd §3.3).

    ``epoch`` and ``after`` are those of a client that continues.
    """

    identity: str
    channel: str
    position: bool = False
    epoch: str = ""
    after: int = 0


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End a subscription (nsd §3.4)."""

    identity: str
    channel: str


@dataclass(frozen=True, slots=True)
class Get:
    """Get all messages after ``after`` on the identity's channels (nsd §3.5)."""

    identity: str
    after: int


Request: TypeAlias = Open | Publish | Subscribe | Unsubscribe | Get


# Requests

# The Get that clients poll with, in the form that most of them use, with numbers up to 64 bits.
_GET = re.compile(
    rb'\{"_class": ?"GetRequest", ?"identity": ?"([^"\\\x00-\x1f]{1,255})"'
    rb', ?"after": ?(0|[1-9][0-9]{0,17})\}'
)

# The first line of a request of HTTP.
_HTTP = re.compile(rb"[!-~]{1,32} [!-~]+ HTTP/[0-9]\.[0-9]")
# Control characters, and bytes with which no character of UTF-8 begins.
_BINARY = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\xc1\xf5-\xff]")


def unwrap(line: bytes) -> tuple[bytes, bool]:
    """Return the JSON text of a line, and whether the line was in base64 (nsd §2.2)."""
    if line and not line.startswith(b"{"):
        try:
            return base64.b64decode(line, validate=True), True
        except binascii.Error:
            pass
    return line, False


def is_http(line: bytes) -> bool:
    """Return whether a request of HTTP begins with ``line``."""
    return _HTTP.fullmatch(line) is not None


def begins_binary(data: bytes) -> bool:
    """Return whether ``data``, the first bytes of a client, are no text."""
    return _BINARY.match(data) is not None


def parse(text: bytes, line: bytes) -> Request:
    """Return the request in ``text``, which was received as ``line``. Raises InvalidLine."""
    try:
        if (found := _GET.fullmatch(text)) is not None:
            return Get(found[1].decode(), int(found[2]))
        return _request(_load(text))
    except (ValueError, RecursionError):
        raise InvalidLine(_shown(text, line)) from None


def password_of(text: bytes, line: bytes) -> str | None:
    """Return the field ``password`` of a request (nsd §1.4), None if it has none.

    Raises InvalidLine if it is not a text.
    """
    if b'"password"' not in text:
        return None
    value = _load(text).get("password")
    if value is None or isinstance(value, str):
        return value
    raise InvalidLine(_shown(text, line))


def _shown(text: bytes, line: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return line.decode(errors="replace")


def _load(text: bytes) -> dict[str, Any]:
    value = _DECODER.decode(text.decode())
    if not isinstance(value, dict):
        raise ValueError("not an object")
    if b"\\u" in text:
        # An escape may be a lone surrogate, which cannot be encoded.
        _dump(value)
    return value


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value


# Shared by all lines: json.loads and json.dumps would create one for each line.
_DECODER = json.JSONDecoder(parse_constant=_refuse, parse_float=_finite)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def _request(fields: dict[str, Any]) -> Request:
    identity = _name(fields, "identity")
    match fields.get("_class"):
        case "OpenRequest":
            return Open(identity)
        case "PublishRequest":
            return Publish(identity, _message(fields))
        case "SubscribeRequest":
            return _subscribe(identity, _name(fields, "channel"), fields)
        case "UnsubscribeRequest":
            return Unsubscribe(identity, _name(fields, "channel"))
        case "GetRequest":
            return Get(identity, _integer(fields, "after"))
    raise ValueError("_class")


def _subscribe(identity: str, channel: str, fields: dict[str, Any]) -> Subscribe:
    if fields.get("position") is not True:
        return Subscribe(identity, channel)
    epoch, after = fields.get("epoch"), fields.get("after")
    if not isinstance(epoch, str) or not isinstance(after, int) or not 0 <= after < 1 << 63:
        epoch, after = "", 0
    return Subscribe(identity, channel, True, epoch, int(after))


def _message(fields: dict[str, Any]) -> Message:
    message = fields.get("message")
    if not isinstance(message, dict) or message.get("_class") != "Message":
        raise ValueError("message")
    _integer(message, "when")
    if len(message) > MAX_HEADERS:
        raise ValueError("message")
    extra = {name: _dump(message[name]) for name in message if name not in _MESSAGE_FIELDS}
    return Message(_text(message, "from"), _text(message, "body"), extra)


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(name)
    return value


def _name(fields: dict[str, Any], name: str) -> str:
    value = _text(fields, name)
    if not 1 <= len(value.encode()) <= MAX_NAME:
        raise ValueError(name)
    return value


def _integer(fields: dict[str, Any], name: str) -> int:
    value = fields.get(name)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(name)
    return value


# Responses


def _dump(value: object) -> bytes:
    return _ENCODER.encode(value).encode()


def text(value: str) -> bytes:
    """Return a string as JSON."""
    return _dump(value)


SUCCESS = _dump({"_class": "SuccessResponse"})
LIST_START = b'{"_class":"MessageListResponse","messages":['
LIST_END = b"]}"


def error(text: str) -> bytes:
    """Return an ErrorResponse, without its line end."""
    return _dump({"_class": "ErrorResponse", "error": text})


def success_at(when: int, epoch: str, continues: bool) -> bytes:
    """Return the SuccessResponse to a Subscribe that asks for the position (nsd §3.3)."""
    fields = {"when": when, "epoch": epoch, "continues": continues}
    return _dump({"_class": "SuccessResponse", **fields})


def wrap(response: bytes, in_base64: bool) -> bytes:
    """Return a response as a line in the form of its request."""
    return (base64.b64encode(response) if in_base64 else response) + b"\n"


def messages(batch: Batch) -> Iterator[bytes]:
    """Yield the batch's messages as JSON objects (nsd §4)."""
    sender = _dump(batch.sender.decode(errors="replace"))
    own = batch.protocol == NAME
    for index, payload in enumerate(batch.payloads()):
        when = batch.offset + index + 1
        try:
            fields = b',"body":' + _dump(payload.decode())
        except UnicodeDecodeError:
            fields = b',"body":"","data":"' + base64.b64encode(payload) + b'"'
        # Headers of other protocols are not JSON.
        if own and batch.headers is not None:
            for name, value in batch.headers[index].items():
                fields += b"," + _dump(name) + b":" + value
        yield b'{"_class":"Message","from":%b,"when":%d%b}' % (sender, when, fields)


class LineStream:
    """Encodes one response line in pieces, in JSON or in base64."""

    def __init__(self, in_base64: bool) -> None:
        self._in_base64 = in_base64
        self._remainder = b""

    def feed(self, *pieces: bytes) -> bytes:
        """Add ``pieces``; return the bytes of the line that can be sent now."""
        # Joined once, as they may be long.
        if not self._in_base64:
            return b"".join(pieces)
        piece = b"".join((self._remainder, *pieces))
        # Three bytes make four characters; the remainder waits for the next piece.
        whole = len(piece) - len(piece) % 3
        self._remainder = piece[whole:]
        return base64.b64encode(piece[:whole])

    def finish(self, *pieces: bytes) -> bytes:
        """Add the last ``pieces``; return the end of the line."""
        if not self._in_base64:
            return self.feed(*pieces, b"\n")
        return self.feed(*pieces) + base64.b64encode(self._remainder) + b"\n"


def unparsed(line: bytes) -> bytes:
    """Return the response to a line that is not parsed, which need not be complete."""
    shown = line[: 4 * SHOWN].partition(b"\n")[0].decode(errors="replace")[:SHOWN]
    return wrap(error(f"INVALID REQUEST: [{shown}]"), False)
