"""The formats in which ``pubsub sub`` and ``tail`` print: text, JSON, hexadecimal or raw bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from pubsub.broker.visible_text import visible

MessageFormatter = Callable[["Shown"], bytes]
NAMES = ("text", "json", "hex", "raw")


class Shown(Protocol):
    """A message. Values that the wire does not show are None."""

    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def sender(self) -> bytes | None: ...
    @property
    def timestamp(self) -> int | None: ...
    @property
    def offset(self) -> int | None: ...
    @property
    def headers(self) -> Mapping[str, bytes] | None: ...


def choose(name: str, with_topic: bool, terminal: bool) -> MessageFormatter:
    """Return the format ``name``.

    ``with_topic`` puts the topic in front of text and hexadecimal. On a terminal, text and JSON
    show control characters as escapes, because a message could otherwise move the cursor.
    """
    match name:
        case "json":
            return _visible_json if terminal else as_json
        case "raw":
            return lambda message: message.payload
        case "hex":
            body: MessageFormatter = lambda message: message.payload.hex().encode()  # noqa: E731
        case _:
            body = _visible if terminal else lambda message: message.payload
    if with_topic:
        topic = _visible_text if terminal else str
        return lambda message: topic(message.topic).encode() + b" " + body(message) + b"\n"
    return lambda message: body(message) + b"\n"


def as_json(message: Shown) -> bytes:
    """Return one line.

    Bytes that are not UTF-8 are in a member whose name ends in ``_base64``; the value of a header
    is then an object with the member ``base64``.
    """
    shown: dict[str, Any] = {"topic": message.topic}
    if message.offset is not None:
        shown["offset"] = message.offset
    if message.timestamp is not None:
        shown["timestamp"] = message.timestamp
    if message.sender:
        shown |= _member("sender", message.sender)
    shown |= _member("payload", message.payload)
    if message.headers:
        shown["headers"] = {name: _header(value) for name, value in message.headers.items()}
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _visible_json(message: Shown) -> bytes:
    return visible(as_json(message).decode().removesuffix("\n")).encode() + b"\n"


def _member(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode()}


def _header(value: bytes) -> str | dict[str, str]:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(value).decode()}


def _visible(message: Shown) -> bytes:
    return _visible_text(message.payload.decode(errors="backslashreplace")).encode()


def _visible_text(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else _escape(c) for c in text)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()
