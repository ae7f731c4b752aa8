"""The columns of a block: how runs, names, lengths and headers are encoded in bytes. Sans-IO.

    names      topics, senders and protocols, each once: u32 length, then that many bytes
    runs       a fixed record for each run (see RUN)
    lists      the topics of each run that has several: u32 number, then that many indexes of names
    picks      u32 for each message of such runs: its topic, as a place in the run's list
    lengths    u32 for each message of the runs whose messages differ in length
    headers    a record for each message that has any: u32 message, u16 number of headers, then the
               keys and values, each u32 length and that many bytes
    payloads   all of them, joined

Integers are little-endian.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from pubsub.broker.routing.batch import Headers
from pubsub.broker.routing.packed_headers import PackedHeaders

RUN = struct.Struct("<IIIIIiqq")
"""First message, count, topic, sender, protocol, size (or MIXED), timestamp, sequence.

Messages are numbered from the block's base; topic, sender and protocol are indexes into ``names``.
"""
MIXED = -1
"""The size of a run whose payloads differ in length."""
SEVERAL = 2**32 - 1
"""The topic of a run whose messages are of several topics."""
RUN_WORDS = RUN.size // 4
RUN_COUNT, RUN_TOPIC, RUN_SENDER, RUN_PROTOCOL, RUN_SIZE = 1, 2, 3, 4, 5
"""The positions of the count, these indexes and the size in a record, in words of 32 bits."""
HAS_HEADERS = 1 << 31
"""Set in a run's count if any of its messages has headers."""
_U32 = struct.Struct("<I")
_HEADED = struct.Struct("<IH")
_NO_HEADERS = bytes(2)
# Names columns of up to this many bytes are cached when they are decoded.
_CACHED_BYTES = 4096


def little_endian(words: array[int]) -> array[int]:
    """Convert between this machine's byte order and that of the columns, in either direction."""
    if sys.byteorder == "big":
        words = words[:]
        words.byteswap()
    return words


def numbers(typecode: str, data: bytes) -> array[int]:
    """Decode a column of integers; ``typecode`` is as in ``array``."""
    return little_endian(array(typecode, data))


def native(data: bytes) -> bytes:
    """Return a column of u32 in this machine's byte order."""
    return data if sys.byteorder == "little" else numbers("I", data).tobytes()


def encode_headers(first: int, headers: Sequence[Headers]) -> Iterator[bytes]:
    """Yield the records of consecutive messages; the first has the number ``first``."""
    if isinstance(headers, PackedHeaders):
        for index in range(len(headers)):
            if (packed := headers.packed(index)) != _NO_HEADERS:
                yield _U32.pack(first + index) + packed
        return
    for index, own in enumerate(headers, first):
        if own:
            yield _HEADED.pack(index, len(own))
            for key, value in own.items():
                text = key.encode()
                yield _U32.pack(len(text)) + text + _U32.pack(len(value)) + value


def decode_headers(data: bytes) -> Iterator[tuple[int, Headers]]:
    """Yield the number of each message that has headers, and its headers."""
    at = 0
    while at < len(data):
        index, number = _HEADED.unpack_from(data, at)
        at += _HEADED.size
        own = {}
        for _ in range(number):
            key, at = counted_bytes(data, at)
            own[key.decode()], at = counted_bytes(data, at)
        yield index, own


def decode_lists(data: bytes) -> Sequence[array[int]]:
    """Return the indexes of names in each list of topics."""
    words = numbers("I", data)
    found = []
    at = 0
    while at < len(words):
        stop = at + 1 + words[at]
        found.append(words[at + 1 : stop])
        at = stop
    return found


def encode_name(name: bytes) -> bytes:
    """Encode one name."""
    return encode_names((name,))


def encode_names(names: Iterable[bytes]) -> bytes:
    """Encode the column of names."""
    pack = _U32.pack
    return b"".join([pack(len(name)) + name for name in names])


def decode_names(data: bytes) -> Sequence[bytes]:
    """Return the names of a block in the order of their indexes."""
    return _cached_names(data) if len(data) <= _CACHED_BYTES else tuple(_names(data))


def _names(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        name, at = counted_bytes(data, at)
        yield name


@lru_cache(128)
def _cached_names(data: bytes) -> Sequence[bytes]:
    """Small blocks are merged many at a time, and each has its names decoded several times."""
    return tuple(_names(data))


def counted_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    """Return the bytes at ``at``, behind their length, and where they end."""
    (length,) = _U32.unpack_from(data, at)
    at += _U32.size
    return data[at : at + length], at + length
