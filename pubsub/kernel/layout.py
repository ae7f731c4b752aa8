"""Heads and senders, as both forms of the kernel use them: heads are a frame before its payload."""

from __future__ import annotations

from enum import IntEnum
from typing import Literal, NamedTuple

Senders = tuple[bytes, tuple[bytes, ...]]
"""Senders of consecutive messages: the number of each one's messages, which is not 0 (u32 in this
machine's byte order), and the senders. The messages of each have one topic."""


class LengthField(NamedTuple):
    """An unsigned integer of ``width`` bytes at offset ``at`` of a head.

    It holds the length of the payload plus ``add``; ``big`` if it is big-endian.
    """

    at: int
    width: int
    big: bool = False
    add: int = 0

    def encode(self, size: int) -> bytes:
        """Return the field for a payload of ``size`` bytes."""
        return (size + self.add).to_bytes(self.width, "big" if self.big else "little")

    def decode(self, data: bytes, start: int) -> int:
        """Return the length of the payload whose head begins at ``start``; may be negative."""
        at = start + self.at
        order: Literal["big", "little"] = "big" if self.big else "little"
        return int.from_bytes(data[at : at + self.width], order) - self.add


class Head(NamedTuple):
    """The bytes before a payload of ``least`` to ``limit`` bytes.

    ``data`` has zeros where ``fields``, one or two in ascending order, have the length.
    """

    data: bytes
    fields: tuple[LengthField, ...]
    limit: int
    least: int = 0

    def encode(self, size: int) -> bytes:
        """Return the head of a payload of ``size`` bytes."""
        data = bytearray(self.data)
        for field in self.fields:
            data[field.at : field.at + field.width] = field.encode(size)
        return bytes(data)

    def frame_length(self, data: bytes, start: int = 0) -> int:
        """Return the length of the frame at ``start`` that begins with this head; 0 if invalid.

        The bytes of ``data`` outside the length fields are taken for granted.
        """
        sizes = {field.decode(data, start) for field in self.fields}
        size = sizes.pop()
        return len(self.data) + size if not sizes and self.least <= size <= self.limit else 0


class TextHead(NamedTuple):
    """The bytes around a payload of text in a line of JSON.

    The payload is UTF-8 of at most ``limit`` bytes without characters that JSON escapes: controls,
    quotes and backslashes. ``after``, all that follows it, begins with the quote that ends it.
    """

    before: bytes
    after: bytes
    limit: int


class RowField(IntEnum):
    """A piece of a row that differs from row to row (see ``encode_rows``)."""

    NUMBER = 0
    """The number of the message."""
    NEXT = 1
    """The number after it."""
    NAME = 2
    """The name that belongs to the index of the message."""
    VALUE = 3
    """The member of a JSON object that has the payload: ``value``, or ``value_base64`` if the
    payload is not UTF-8."""
    TEXT = 4
    """The payload as a string of JSON has it, without the quotes."""
    PAYLOAD = 5
    """The payload."""
    ID = 6
    """The last 64 bits of a UUID, as text."""
    END = 7
    """The end that belongs to the message."""
    FRAME = 8
    """The length of the rest of the row, as a WebSocket frame without a mask has it (RFC 6455,
    section 5.2)."""
    LENGTH = 9
    """The length of the rest of the row without a payload (u32, big-endian)."""
