"""Arrow IPC streams, parsed in Python: they are untrusted input.

Arrow's own parser, in C++, reads out of bounds if metadata is wrong, which ends the process. This
one accepts only the subset that staged parts need: uncompressed record batches of text, binary, and
lists of pairs of these. The arrays that it makes are then validated by pyarrow. See Message.fbs and
Schema.fbs of Arrow's format, and the format of flatbuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import IO, Any

_CONTINUES = 0xFFFFFFFF
_SCHEMA, _RECORD_BATCH = 1, 3
_BINARY, _UTF8, _LIST, _STRUCT, _LARGE_BINARY, _LARGE_UTF8 = 4, 5, 12, 13, 19, 20
_KINDS = {_BINARY: "binary", _UTF8: "string", _LARGE_BINARY: "large_binary",
          _LARGE_UTF8: "large_string", _LIST: "list", _STRUCT: "struct"}  # fmt: skip
# Largest number of bytes of a message's metadata, and of columns.
_MAX_METADATA = 64 * 1024
_MAX_FIELDS = 16


class BadStream(ValueError):
    """A stream that is malformed or not accepted."""


class Compressed(BadStream):
    """A stream with compressed buffers."""


@dataclass(frozen=True, slots=True)
class Field:
    """A column: its name, the name of its type, and its child columns."""

    name: str
    kind: str
    children: tuple[Field, ...] = ()


class _FlatbufferTable:
    """A table in a flatbuffer; fields are addressed by index."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data = data
        self._at = at
        self._fields = at - self._number("<i", at)
        self._size = self._number("<H", self._fields)

    def _number(self, format: str, at: int) -> int:
        if at < 0:
            raise BadStream("metadata points outside the message")
        number: int = struct.unpack_from(format, self._data, at)[0]
        return number

    def _place(self, index: int) -> int | None:
        place = 4 + 2 * index
        offset = 0 if place + 2 > self._size else self._number("<H", self._fields + place)
        return self._at + offset if offset else None

    def number(self, index: int, format: str) -> int:
        """Return a number, 0 by default."""
        place = self._place(index)
        return 0 if place is None else self._number(format, place)

    def has(self, index: int) -> bool:
        """Return whether the field is present."""
        return self._place(index) is not None

    def table(self, index: int) -> _FlatbufferTable:
        """Return a nested table."""
        place = self._place(index)
        if place is None:
            raise BadStream("incomplete metadata")
        return _FlatbufferTable(self._data, place + self._number("<I", place))

    def _vector(self, index: int, limit: int) -> tuple[int, int]:
        place = self._place(index)
        if place is None:
            return 0, 0
        start = place + self._number("<I", place)
        count = self._number("<I", start)
        if count > limit:
            raise BadStream("metadata with too many items")
        return start + 4, count

    def text(self, index: int) -> str:
        """Return text."""
        start, count = self._vector(index, _MAX_METADATA)
        return self._data[start : start + count].decode()

    def tables(self, index: int) -> list[_FlatbufferTable]:
        """Return a list of tables."""
        start, count = self._vector(index, _MAX_FIELDS)
        places = [start + 4 * i for i in range(count)]
        return [_FlatbufferTable(self._data, at + self._number("<I", at)) for at in places]

    def pairs(self, index: int) -> list[tuple[int, int]]:
        """Return a list of structs of two i64."""
        start, count = self._vector(index, 8 * _MAX_FIELDS)
        return [struct.unpack_from("<qq", self._data, start + 16 * i) for i in range(count)]


def read_stream(file: IO[bytes]) -> tuple[list[Field], Iterator[tuple[int, ArrowColumns]]]:
    """Return the columns of a stream, and its record batches: number of rows, and the columns.

    Raises BadStream, struct.error or UnicodeDecodeError, also during the iteration.
    """
    first = _message(file)
    if first is None or first[0].number(1, "<B") != _SCHEMA:
        raise BadStream("no schema at the beginning")
    schema = first[0].table(2)
    if schema.number(0, "<h"):
        raise BadStream("big-endian numbers are not accepted")
    return [_field(one, 0) for one in schema.tables(1)], _batches(file)


def _field(table: _FlatbufferTable, depth: int) -> Field:
    if table.has(4):
        raise BadStream("dictionaries are not accepted")
    if depth > 2:
        raise BadStream("columns are nested too deeply")
    kind = _KINDS.get(table.number(2, "<B"), "another type")
    return Field(table.text(0), kind, tuple(_field(one, depth + 1) for one in table.tables(5)))


def _batches(file: IO[bytes]) -> Iterator[tuple[int, ArrowColumns]]:
    while (message := _message(file)) is not None:
        table, body = message
        if table.number(1, "<B") != _RECORD_BATCH:
            raise BadStream("expected only record batches")
        header = table.table(2)
        if header.has(3):
            raise Compressed("compressed buffers")
        rows = header.number(0, "<q")
        yield rows, ArrowColumns(rows, header.pairs(1), header.pairs(2), body)


def _message(file: IO[bytes]) -> tuple[_FlatbufferTable, bytes] | None:
    """Return the next message's metadata and body; None at the end."""
    size = _read_exactly(file, 4)
    length = struct.unpack("<I", size)[0]
    if length == _CONTINUES:
        length = struct.unpack("<I", _read_exactly(file, 4))[0]
    if not length:
        return None
    if length > _MAX_METADATA:
        raise BadStream("metadata is too long")
    metadata = _read_exactly(file, length)
    table = _FlatbufferTable(metadata, struct.unpack_from("<I", metadata)[0])
    return table, _read_exactly(file, table.number(3, "<q"))


def _read_exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count) if count >= 0 else b""
    if len(data) != count:
        raise BadStream("the stream is truncated")
    return data


class ArrowColumns:
    """The nodes and buffers of one record batch; columns are taken in order."""

    def __init__(
        self, rows: int, nodes: list[tuple[int, int]], places: list[tuple[int, int]], body: bytes
    ) -> None:
        self._rows = rows
        self._nodes = iter(nodes)
        self._places = iter(places)
        self._body = body

    def take(self, field: Field, kind: Any, wrap: Callable[[bytes], Any], array: Any) -> Any:
        """Return the next column as an array of the Arrow type ``kind``, not validated yet."""
        return self._take(field, kind, wrap, array, self._rows)

    def _take(
        self, field: Field, kind: Any, wrap: Callable[[bytes], Any], array: Any, rows: int | None
    ) -> Any:
        length, nulls = next(self._nodes, (-1, 0))
        if length < 0 or nulls < 0 or nulls > length or (rows is not None and rows != length):
            raise BadStream("a column has a wrong length")
        count = {"struct": 1, "list": 2}.get(field.kind, 3)
        buffers = [self._buffer(wrap) for _ in range(count)]
        if not nulls:
            buffers[0] = None
        self._check(field.kind, buffers, length, wrap)
        inner = length if field.kind == "struct" else None
        children = [
            self._take(child, kind.field(i).type, wrap, array, inner)
            for i, child in enumerate(field.children)
        ]
        return array.from_buffers(kind, length, buffers, children=children or None)

    def _check(
        self, kind: str, buffers: list[Any], length: int, wrap: Callable[[bytes], Any]
    ) -> None:
        """Check the sizes of the validity bitmap and of the value offsets."""
        if buffers[0] is not None and buffers[0].size * 8 < length:
            raise BadStream("incomplete validity bitmap")
        width = {"struct": 0, "large_string": 8, "large_binary": 8}.get(kind, 4)
        if width and not length and not buffers[1].size:
            # The format permits that; those who read the column expect its first offset.
            buffers[1] = wrap(bytes(width))
        if width and buffers[1].size < width * (length + 1):
            raise BadStream("incomplete value offsets")

    def _buffer(self, wrap: Callable[[bytes], Any]) -> Any:
        start, size = next(self._places, (-1, -1))
        if start < 0 or size < 0 or start + size > len(self._body):
            raise BadStream("a buffer is outside the message")
        return wrap(self._body[start : start + size])
