"""The headers of the messages of a batch in few bytes, decoded when they are read.

A mapping for each message and an object for each key and value take some hundred bytes for each
header, of which a client may send a million in one request.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import overload

_COUNT, _LENGTH = struct.Struct("<H"), struct.Struct("<I")


class PackedHeaders(Sequence[Mapping[str, bytes]]):
    """A mapping for each message.

    ``data`` has for each message the number of its headers (u16), then the keys, in UTF-8, and the
    values, each after its length (u32): little-endian, as in the columns of the history. ``ends``
    has where each message's part ends. ``nbytes`` are the bytes of all keys and values.
    """

    __slots__ = ("_data", "_ends", "nbytes")

    def __init__(self, data: bytes, ends: array[int]) -> None:
        self._data = data
        self._ends = ends
        count = _COUNT.unpack_from
        headers = sum([count(data, self._start(index))[0] for index in range(len(ends))])
        self.nbytes: int = len(data) - _COUNT.size * len(ends) - 2 * _LENGTH.size * headers

    @classmethod
    def of(cls, messages: Iterable[Sequence[tuple[bytes, bytes]]]) -> PackedHeaders:
        """Pack the keys and the values of each message's headers."""
        data, ends = bytearray(), array("I")
        pack = _LENGTH.pack
        for pairs in messages:
            data += _COUNT.pack(len(pairs))
            for key, value in pairs:
                data += pack(len(key)) + key + pack(len(value)) + value
            ends.append(len(data))
        return cls(bytes(data), ends)

    @property
    def held(self) -> int:
        """The bytes of memory."""
        return len(self._data) + self._ends.itemsize * len(self._ends)

    def __len__(self) -> int:
        return len(self._ends)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, bytes]: ...

    @overload
    def __getitem__(self, index: slice) -> PackedHeaders: ...

    def __getitem__(self, index: int | slice) -> Mapping[str, bytes] | PackedHeaders:
        if isinstance(index, slice):
            start, stop, _step = index.indices(len(self))
            return self._slice(start, max(start, stop))
        data = self.packed(index)
        found = {}
        at = _COUNT.size
        while at < len(data):
            key, at = _counted(data, at)
            found[key.decode()], at = _counted(data, at)
        return found

    def packed(self, index: int) -> bytes:
        """Return the part of a message."""
        # Raises IndexError, which also ends an iteration.
        end = self._ends[index]
        return self._data[self._start(index % len(self)) : end]

    def _start(self, index: int) -> int:
        return self._ends[index - 1] if index else 0

    def _slice(self, start: int, stop: int) -> PackedHeaders:
        begin, ends = self._start(start), self._ends[start:stop]
        data = self._data[begin : ends[-1]] if ends else b""
        return PackedHeaders(data, array("I", [end - begin for end in ends]))


def _counted(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _LENGTH.unpack_from(data, at)
    at += _LENGTH.size
    return data[at : at + length], at + length
