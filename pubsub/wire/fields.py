"""Frames declared once, as fields: encoding, decoding and documentation come from that.

    @dataclass(frozen=True, slots=True)
    class HandshakePub:
        channel: int = u8()
        client_id: bytes = counted(U8)

``encode_fields`` and ``decode_fields`` work on the payload of a frame; the header around it is
the codec's. Decoding takes the payload whole: what is missing or left over is a FieldError.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Protocol, TypeVar

_Frame = TypeVar("_Frame")


class FieldError(ValueError):
    """A payload whose length does not fit its fields."""


class FieldKind(Protocol):
    """How one field stands on the wire; ``form`` describes it in tables."""

    @property
    def form(self) -> str: ...

    def encode(self, value: Any) -> bytes: ...

    def decode(self, data: bytes, at: int) -> tuple[Any, int]:
        """The value that starts at ``at``, and where it ends; raises FieldError."""


@dataclass(frozen=True, slots=True)
class Unsigned:
    """An unsigned integer of ``size`` bytes, little-endian unless ``big``."""

    size: int
    big: bool = False

    @property
    def form(self) -> str:
        return f"u{8 * self.size}" + (" big-endian" if self.big and self.size > 1 else "")

    def encode(self, value: int) -> bytes:
        return value.to_bytes(self.size, "big" if self.big else "little")

    def decode(self, data: bytes, at: int) -> tuple[int, int]:
        end = at + self.size
        if end > len(data):
            raise FieldError(f"{self.form} at byte {at} of {len(data)}")
        return int.from_bytes(data[at:end], "big" if self.big else "little"), end


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always ``size`` bytes."""

    size: int

    @property
    def form(self) -> str:
        return f"{self.size} bytes"

    def encode(self, value: bytes) -> bytes:
        if len(value) != self.size:
            raise OverflowError(f"{len(value)} bytes for {self.size}")
        return value

    def decode(self, data: bytes, at: int) -> tuple[bytes, int]:
        end = at + self.size
        if end > len(data):
            raise FieldError(f"{self.form} at byte {at} of {len(data)}")
        return data[at:end], end


@dataclass(frozen=True, slots=True)
class Counted:
    """Bytes after their number; a list of u8 is the same thing."""

    count: Unsigned

    @property
    def form(self) -> str:
        return f"{self.count.form} length, then as many bytes"

    def encode(self, value: bytes) -> bytes:
        return self.count.encode(len(value)) + value

    def decode(self, data: bytes, at: int) -> tuple[bytes, int]:
        length, start = self.count.decode(data, at)
        end = start + length
        if end > len(data):
            raise FieldError(f"{length} bytes at byte {start} of {len(data)}")
        return data[start:end], end


@dataclass(frozen=True, slots=True)
class Rest:
    """All bytes that are left."""

    form: str = "the rest"

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
    """A dataclass field: always as many bytes."""
    return field(metadata={"wire": Fixed(size)})


def counted(count: Unsigned) -> Any:
    """A dataclass field: bytes after their number."""
    return field(metadata={"wire": Counted(count)})


def rest() -> Any:
    """A dataclass field: all bytes that are left; the last field of a frame."""
    return field(metadata={"wire": Rest()})


_layouts: dict[type, tuple[tuple[str, FieldKind], ...]] = {}


def layout(frame: type) -> tuple[tuple[str, FieldKind], ...]:
    """The fields of a frame class, in wire order: name and kind."""
    found = _layouts.get(frame)
    if found is None:
        found = tuple((f.name, f.metadata["wire"]) for f in fields(frame))
        _layouts[frame] = found
    return found


def encode_fields(frame: Any) -> bytes:
    """The payload of ``frame``."""
    return b"".join([kind.encode(getattr(frame, name)) for name, kind in layout(type(frame))])


def decode_fields(frame: type[_Frame], payload: bytes) -> _Frame:
    """The frame of this class that ``payload`` is; raises FieldError."""
    decoded, end = decode_prefix(frame, payload, 0)
    if end != len(payload):
        raise FieldError(f"{len(payload) - end} bytes too many")
    return decoded


def decode_prefix(frame: type[_Frame], data: bytes, at: int) -> tuple[_Frame, int]:
    """The frame of this class that starts at ``at``, and where it ends; raises FieldError."""
    values: list[Any] = []
    for _name, kind in layout(frame):
        value, at = kind.decode(data, at)
        values.append(value)
    return frame(*values), at
