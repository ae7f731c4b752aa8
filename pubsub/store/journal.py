"""The journal: small groups are on disk here when they are committed, and soon in the file too.

A transaction of SQLite's writes several pages for a message, and takes a tenth of a millisecond of
the interpreter; a record of the journal is a write and a sync. Many groups go into the file
together then.

There are two files, ``PATH-sync1`` and ``PATH-sync2``. A segment is written to one of them from its
beginning on while the segment before, in the other, goes into the file. A record is

    epoch      24 bytes, the epoch of the history that it was written in, padded with zeros
    salt       8 bytes, the segment's: no payload that is left from an earlier one, where a record
               might begin, can pass for one
    block      base, count, first, last, run and checksum (see ``block.py``), the salt put to it
    sizes      u32 each, of the columns names, runs, lengths, headers and payloads
    columns    of a piece of a block, to be put behind those of the pieces before

and has one group. What follows the last one is left from an earlier segment.
"""

from __future__ import annotations

import errno
import os
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from zlib import crc32

from pubsub.store.block import RUN, Block, Builder, join_pieces
from pubsub.store.stored_runs import LAST, OFFSET, Kept

# Payload bytes of a block: larger ones would make every read of a few messages dear.
BLOCK_BYTES = 256 * 1024
ENDINGS = ("-sync1", "-sync2")
"""What the names of its files have behind that of the history."""
_HEAD = struct.Struct("<24s8sqIqqqI5I")
_SALT_BYTES = 8
# A file grows by so much, filled with zeros: a sync need not wait for the file system then.
_GROWTH = 256 * 1024


class Segment:
    """What goes into the file together; ``slot`` is the number of the journal's file it is in."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.nbytes = 0
        """Of its messages, with their overhead."""
        self.stop = 0
        """The offset after its last message."""
        self.size = 0
        """Bytes in the journal."""
        self.salt = b""
        self.parts: list[tuple[Builder, list[Kept]]] = []
        """Blocks in the making, each with what is in it."""
        self._room = 0

    def __bool__(self) -> bool:
        return bool(self.parts)

    def add(self, run: int, runs: Sequence[Kept], nbytes: int) -> Block:
        """Go on with a group of ``nbytes``, of the broker's ``run``; returns it as a piece."""
        # Should this fail, nothing has changed but that the next block begins.
        room, self._room = self._room, 0
        new = room <= 0
        builder, own = (Builder(run, runs[0][OFFSET]), []) if new else self.parts[-1]
        stop = runs[-1][LAST] + 1
        piece = builder.add(runs, stop)
        if new:
            room = BLOCK_BYTES
            self.parts.append((builder, own))
        own += runs
        self.stop = stop
        self.nbytes += nbytes
        self._room = room - nbytes
        return piece


class Journal:
    """The journal of the history at ``path``; ``draw`` makes salts. Raises OSError."""

    def __init__(self, path: Path, draw: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._draw = draw
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._files = [os.open(f"{path}{ending}", flags, 0o600) for ending in ENDINGS]
        self._sizes = [os.fstat(file).st_size for file in self._files]
        self._epoch = b""
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def begin(self, epoch: str) -> None:
        """What is written from now on belongs to ``epoch``."""
        self._epoch = epoch.encode()

    def write(self, segment: Segment, piece: Block) -> None:
        """Put a piece to what is on disk of ``segment``, and wait for the disk."""
        if not segment.size:
            segment.salt = self._draw(_SALT_BYTES)
        columns = (piece.names, piece.runs, piece.lengths, piece.headers, piece.payloads)
        head = _HEAD.pack(
            self._epoch, segment.salt, piece.base, piece.count, piece.first, piece.last, piece.run,
            crc32(segment.salt, piece.crc), *map(len, columns),
        )  # fmt: skip
        record = b"".join((head, *columns))
        slot, start = segment.slot, segment.size
        stop = start + len(record)
        if stop > self._sizes[slot]:
            record += bytes(-stop % _GROWTH)
        if os.pwrite(self._files[slot], record, start) < len(record):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.fdatasync(self._files[slot])
        segment.size = stop
        self._sizes[slot] = max(self._sizes[slot], start + len(record))

    def left(self, epoch: str, offset: int) -> list[Block]:
        """What was written in ``epoch`` of the messages from ``offset`` on, as blocks."""
        chains = [list(_pieces(self._read(slot), epoch.encode())) for slot in range(len(ENDINGS))]
        blocks: list[Block] = []
        for pieces in sorted(filter(None, chains), key=lambda pieces: pieces[0].base):
            if pieces[0].base >= offset:
                own = groupby(pieces, attrgetter("base"))
                blocks += [join_pieces(list(group)) for _, group in own]
                offset = blocks[-1].stop
        return blocks

    def _read(self, slot: int) -> bytes:
        data = b""
        while more := os.pread(self._files[slot], self._sizes[slot], len(data)):
            data += more
        return data

    def close(self) -> None:
        """Let go of the files."""
        for file in self._files:
            os.close(file)


def _pieces(data: bytes, epoch: bytes) -> Iterator[Block]:
    """Those that a file begins with, as far as they follow each other."""
    at, expected, salt = 0, None, None
    while at + _HEAD.size <= len(data):
        named, salted, base, count, first, last, run, crc, *sizes = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        if named.rstrip(b"\0") != epoch or at + sum(sizes) > len(data):
            return
        if salt not in (None, salted):
            return
        salt = salted
        columns = []
        for size in sizes:
            columns.append(data[at : at + size])
            at += size
        piece = Block(base, count, first, last, run, 0, *columns)
        if crc32(salted, piece.checksum()) != crc:
            return
        start = base + RUN.unpack_from(piece.runs)[0]
        if expected not in (None, start):
            return
        expected = piece.stop
        yield piece
