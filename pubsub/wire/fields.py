"""Frames declared once, as fields, from which encoding, decoding and documentation follow.

    @dataclass(frozen=True, slots=True)
    class HandshakePub:
        channel: int = u8()
        client_id: bytes = counted(U8)

``encode_fields`` and ``decode_fields`` handle the payload of a frame; the codec handles its header.
Decoding a payload raises FieldError if bytes are missing or left over.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar

_Frame = TypeVar("_Frame")


class FieldError(ValueError):
    """A payload whose length does not fit its fields."""


class FieldKind(Protocol):
    """The encoding of one field; ``description`` is its text in tables."""

    @property
    def description(self) -> str: ...

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes, at: int) -> tuple[Any, int]:
        """Return the value that starts at ``at``, and where it ends; raises FieldError."""


@dataclass(frozen=True, slots=True)
class Unsigned:
    """An unsigned integer of ``size`` bytes, little-endian unless ``big``."""

    size: int
    big: bool = False

    @property
    def description(self) -> str:
        return f"u{8 * self.size}" + (" big-endian" if self.big and self.size > 1 else "")

    def encode(self, value: int) -> bytes:
        return value.to_bytes(self.size, "big" if self.big else "little")

    def decode(self, data: bytes, at: int) -> tuple[int, int]:
        end = at + self.size
        if end > len(data):
            raise FieldError(f"{self.description} at byte {at} of {len(data)}")
        return int.from_bytes(data[at:end], "big" if self.big else "little"), end


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always ``size`` bytes."""

    size: int

    @property
    def description(self) -> str:
        return f"{self.size} bytes"

    def encode(self, value: bytes) -> bytes:
        if len(value) != self.size:
            raise OverflowError(f"{len(value)} bytes for {self.size}")
        return value

    def decode(self, data: bytes, at: int) -> tuple[bytes, int]:
        end = at + self.size
        if end > len(data):
            raise FieldError(f"{self.description} at byte {at} of {len(data)}")
        return data[at:end], end


@dataclass(frozen=True, slots=True)
class CountedBytes:
    """A length, then as many bytes; also a list of u8."""

    count: Unsigned

    @property
    def description(self) -> str:
        return f"{self.count.description} length, then as many bytes"

    def encode(self, value: bytes) -> bytes:
        return self.count.encode(len(value)) + value

    def decode(self, data: bytes, at: int) -> tuple[bytes, int]:
        length, start = self.count.decode(data, at)
        end = start + length
        if end > len(data):
            raise FieldError(f"{length} bytes at byte {start} of {len(data)}")
        return data[start:end], end


@dataclass(frozen=True, slots=True)
class Remainder:
    """All remaining bytes."""

    description: str = "all remaining bytes"

    def encode(self, value: bytes) -> bytes:
        return value

    def decode(self, data: bytes, at: int) -> tuple[bytes, int]:
        return data[at:], len(data)


U8 = Unsigned(1)
U16 = Unsigned(2)
U32 = Unsigned(4)
U64 = Unsigned(8)
U32_BE = Unsigned(4, big=True)


def u8() -> Any:
    """A dataclass field: one byte."""
    return field(metadata={"wire": U8})


def u32() -> Any:
    """A dataclass field: four bytes, little-endian."""
    return field(metadata={"wire": U32})


def u32_be() -> Any:
    """A dataclass field: four bytes, big-endian."""
    return field(metadata={"wire": U32_BE})


def u64() -> Any:
    """A dataclass field: eight bytes, little-endian."""
    return field(metadata={"wire": U64})


def fixed(size: int) -> Any:
    """A dataclass field: always ``size`` bytes."""
    return field(metadata={"wire": Fixed(size)})


def counted(count: Unsigned) -> Any:
    """A dataclass field: a length, then as many bytes."""
    return field(metadata={"wire": CountedBytes(count)})


def remainder() -> Any:
    """A dataclass field: all remaining bytes; the last field of a frame."""
    return field(metadata={"wire": Remainder()})


_layouts: dict[type, tuple[tuple[str, FieldKind], ...]] = {}


def layout(frame: type) -> tuple[tuple[str, FieldKind], ...]:
    """Return the name and kind of each field of a frame class, in wire order."""
    found = _layouts.get(frame)
    if found is None:
        found = tuple((f.name, f.metadata["wire"]) for f in fields(frame))
        _layouts[frame] = found
    return found


def encode_fields(frame: Any) -> bytes:
    """Return the payload of ``frame``."""
    return b"".join([kind.encode(getattr(frame, name)) for name, kind in layout(type(frame))])


def decode_fields(frame: type[_Frame], payload: bytes) -> _Frame:
    """Return the frame of this class that ``payload`` encodes; raises FieldError."""
    decoded, end = decode_prefix(frame, payload, 0)
    if end != len(payload):
        raise FieldError(f"{len(payload) - end} bytes too many")
    return decoded


def decode_prefix(frame: type[_Frame], data: bytes, at: int) -> tuple[_Frame, int]:
    """Return the frame of this class at ``at``, and where it ends; raises FieldError."""
    values: list[Any] = []
    for _name, kind in layout(frame):
        value, at = kind.decode(data, at)
        values.append(value)
    return frame(*values), at
