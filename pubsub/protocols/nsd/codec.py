"""nsd: lines to requests, responses to lines. Sans-IO; ``seeds/nsd.md`` is the specification.

Every request names an identity; its ``_class`` says what it is. A line is JSON, or the base64 of
JSON, and is answered in kind.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pubsub.broker.batch import MAX_HEADERS, Batch

MAX_LINE = 4 * 1024 * 1024
# Characters of a line that its INVALID REQUEST shows.
SHOWN = 200
MAX_NAME = 255
NAME = "nsd"
_MESSAGE_FIELDS = frozenset({"_class", "from", "when", "body"})


class InvalidRequest(Exception):
    """A line that is no request; ``shown`` is what the answer shows of it."""

    def __init__(self, shown: str) -> None:
        super().__init__("invalid request")
        self.shown = shown[:SHOWN]


@dataclass(frozen=True, slots=True)
class Message:
    """What Publish brings: ``extra`` holds every further field as its JSON text."""

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
    """Subscribe the identity to a channel (nsd §3.3)."""

    identity: str
    channel: str


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """End a subscription (nsd §3.4)."""

    identity: str
    channel: str


@dataclass(frozen=True, slots=True)
class Get:
    """Everything after ``after`` on the identity's channels (nsd §3.5)."""

    identity: str
    after: int


Request: TypeAlias = Open | Publish | Subscribe | Unsubscribe | Get


# Requests

# What clients poll with, as nearly all of them write it, up to numbers of 64 bits.
_GET = re.compile(
    rb'\{"_class": ?"GetRequest", ?"identity": ?"([^"\\\x00-\x1f]{1,255})"'
    rb', ?"after": ?(0|[1-9][0-9]{0,17})\}'
)


def unwrap(line: bytes) -> tuple[bytes, bool]:
    """The JSON text of a line, and whether it came in the base64 dialect (nsd §2.2)."""
    if line and not line.startswith(b"{"):
        try:
            return base64.b64decode(line, validate=True), True
        except binascii.Error:
            pass
    return line, False


def parse(text: bytes, line: bytes) -> Request:
    """The request that ``text`` is; ``line`` is what it came as. Raises InvalidRequest."""
    try:
        if (found := _GET.fullmatch(text)) is not None:
            return Get(found[1].decode(), int(found[2]))
        return _request(_load(text))
    except (ValueError, RecursionError):
        raise InvalidRequest(_shown(text, line)) from None


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
        # Only an escape can be a lone surrogate, and that cannot be encoded.
        _dump(value)
    return value


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(text)
    return value


# One for all: json.loads and json.dumps would make one for each line.
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
            return Subscribe(identity, _name(fields, "channel"))
        case "UnsubscribeRequest":
            return Unsubscribe(identity, _name(fields, "channel"))
        case "GetRequest":
            return Get(identity, _integer(fields, "after"))
    raise ValueError("_class")


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
    """A string as JSON."""
    return _dump(value)


SUCCESS = _dump({"_class": "SuccessResponse"})
LIST_START = b'{"_class":"MessageListResponse","messages":['
LIST_END = b"]}"


def error(text: str) -> bytes:
    """An ErrorResponse, without its line end."""
    return _dump({"_class": "ErrorResponse", "error": text})


def wrap(response: bytes, in_base64: bool) -> bytes:
    """A response as the line that answers a request of the same dialect."""
    return (base64.b64encode(response) if in_base64 else response) + b"\n"


def messages(batch: Batch) -> Iterator[bytes]:
    """The batch's messages as JSON objects (nsd §4)."""
    sender = _dump(batch.sender.decode(errors="replace"))
    own = batch.protocol == NAME
    for index, payload in enumerate(batch.payloads()):
        when = batch.offset + index + 1
        try:
            rest = b',"body":' + _dump(payload.decode())
        except UnicodeDecodeError:
            rest = b',"body":"","data":"' + base64.b64encode(payload) + b'"'
        # Other protocols' headers are no JSON: what they mean here would be a guess.
        if own and batch.headers is not None:
            for name, value in batch.headers[index].items():
                rest += b"," + _dump(name) + b":" + value
        yield b'{"_class":"Message","from":%b,"when":%d%b}' % (sender, when, rest)


class LineStream:
    """One response line in pieces, in either dialect."""

    def __init__(self, in_base64: bool) -> None:
        self._in_base64 = in_base64
        self._left = b""

    def feed(self, *pieces: bytes) -> bytes:
        """What can be sent of the line now that ``pieces`` follow."""
        # Put together once: they may be long.
        if not self._in_base64:
            return b"".join(pieces)
        piece = b"".join((self._left, *pieces))
        # Three bytes make four characters; what is over waits for the next piece.
        whole = len(piece) - len(piece) % 3
        self._left = piece[whole:]
        return base64.b64encode(piece[:whole])

    def finish(self, *pieces: bytes) -> bytes:
        """The end of the line, ``pieces`` being the last of it."""
        if not self._in_base64:
            return self.feed(*pieces, b"\n")
        return self.feed(*pieces) + base64.b64encode(self._left) + b"\n"
