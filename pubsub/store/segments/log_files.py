"""Writing the files of a log: all bytes or an error, the index of a segment, and the position."""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias
from zlib import crc32

from pubsub.store.segments.log_directory import POSITION, LogDirectory
from pubsub.store.segments.segment import Segment, index_name
from pubsub.store.segments.segment_index import SegmentIndex

Buffers: TypeAlias = Sequence[bytes | memoryview]
SALT_BYTES = 8
# The largest number of buffers of one call of pwritev.
_BUFFERS = 1000
_NOTE = struct.Struct("<8sq")
_CRC = struct.Struct("<I")


def write_index(directory: LogDirectory, segment: Segment, index: SegmentIndex) -> None:
    """Write the index of a segment; it is made again if that fails or a crash loses it."""
    data = index.encode(segment.head.salt)
    name = index_name(segment.name)
    try:
        file = directory.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            write_all(file, [data], 0)
        finally:
            os.close(file)
    except OSError:
        with suppress(OSError):
            directory.remove(name)


def write_note(file: int, log_id: bytes, offset: int) -> None:
    """Note the end of the log in the open file ``file``: it outlives the process."""
    note = _NOTE.pack(log_id, offset)
    # It is needed only if records are missing later.
    with suppress(OSError):
        os.pwrite(file, note + _CRC.pack(crc32(note)), 0)


def read_note(directory: LogDirectory, log_id: bytes) -> int:
    """Return the end of the log that the last process recorded; 0 if it is not known."""
    if directory.size(POSITION) is None:
        return 0
    file = directory.open(POSITION, os.O_RDONLY)
    try:
        data = os.pread(file, _NOTE.size + _CRC.size, 0)
    finally:
        os.close(file)
    if len(data) < _NOTE.size + _CRC.size:
        return 0
    own_id, offset = _NOTE.unpack_from(data)
    if own_id != log_id or _CRC.unpack_from(data, _NOTE.size)[0] != crc32(data[: _NOTE.size]):
        return 0
    return int(offset)


def write_padded(file: int, buffers: Buffers, position: int, zeros: int) -> int:
    """Write ``buffers`` and that many zeros behind them if there is space; return the end."""
    try:
        return write_all(file, [*buffers, bytes(zeros)], position)
    except OSError:
        return write_all(file, buffers, position)


def write_all(file: int, buffers: Buffers, position: int) -> int:
    """Write all of ``buffers`` at ``position``; return the position behind them."""
    buffers = few(buffers)
    while buffers:
        written = os.pwritev(file, buffers, position)
        if written <= 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        position += written
        buffers = rest_of(buffers, written)
    return position


def few(buffers: Buffers) -> Buffers:
    """Return the same bytes as no more buffers than one call of pwritev takes."""
    return buffers if len(buffers) <= _BUFFERS else [b"".join(buffers)]


def rest_of(buffers: Buffers, written: int) -> Buffers:
    """Return ``buffers`` without the first ``written`` bytes."""
    rest: list[bytes | memoryview] = []
    for buffer in buffers:
        if written >= len(buffer):
            written -= len(buffer)
            continue
        rest.append(memoryview(buffer)[written:])
        written = 0
    return rest
