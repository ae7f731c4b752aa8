"""The journal: where small groups are committed before they are written to the file.

A transaction of SQLite writes several pages for one message and takes a tenth of a millisecond of
the interpreter. A record of the journal takes one write and one sync. Later, many groups are
written to the file in one transaction.

There are two journal files, ``PATH-sync1`` and ``PATH-sync2``. A segment is written to the start of
one of them while the segment before it, in the other, is written to the file. A record holds one
group:

    epoch      24 bytes, the epoch of the history in which it was written, padded with zeros
    salt       8 random bytes, the same for all records of a segment
    block      base, count, first, last, run and checksum (see ``block.py``); the checksum covers
               the salt too
    sizes      u32 each, of the columns names, runs, lengths, headers and payloads
    columns    of a piece of a block, to be appended to those of the pieces before

The bytes after the last record are left over from an earlier segment. Because of the salt, a
payload among them cannot pass for a record, even where one could begin.
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

from pubsub.store.block import Block, BlockBuilder, join_pieces
from pubsub.store.columns import RUN
from pubsub.store.stored_runs import RunRecord, first_offset_of, last_offset_of

BLOCK_BYTES = 256 * 1024
"""Payload bytes of a block. Larger blocks would slow down every read of a few messages."""
SUFFIXES = ("-sync1", "-sync2")
"""The names of the journal files are the path of the history and these."""
_HEAD = struct.Struct("<24s8sqIqqqI5I")
_SALT_BYTES = 8
# A journal file grows by this many zeros, so that most syncs need not write its metadata.
_GROWTH = 256 * 1024


class Segment:
    """Groups that are written to the file together; ``slot`` is the number of the journal file."""

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.nbytes = 0
        """Bytes of the messages, with their overhead."""
        self.stop = 0
        """The offset after the last message."""
        self.size = 0
        """Bytes of the records in the journal file."""
        self.salt = b""
        self.blocks: list[tuple[BlockBuilder, list[RunRecord]]] = []
        """The blocks that are being built, each with its runs."""
        self._room = 0

    def __bool__(self) -> bool:
        return bool(self.blocks)

    def add(self, run: int, runs: Sequence[RunRecord], nbytes: int) -> Block:
        """Add a group of ``nbytes`` bytes, of the broker run ``run``; return it as a piece."""
        # If this raises, the only change is that the next group begins a block.
        room, self._room = self._room, 0
        new = room <= 0
        builder, own = (BlockBuilder(run, first_offset_of(runs[0])), []) if new else self.blocks[-1]
        stop = last_offset_of(runs[-1]) + 1
        piece = builder.add(runs, stop)
        if new:
            room = BLOCK_BYTES
            self.blocks.append((builder, own))
        own += runs
        self.stop = stop
        self.nbytes += nbytes
        self._room = room - nbytes
        return piece


class Journal:
    """The journal of the history at ``path``; ``draw`` returns random bytes. Raises OSError."""

    def __init__(self, path: Path, draw: Callable[[int], bytes] = secrets.token_bytes) -> None:
        self._draw = draw
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self._files = [os.open(f"{path}{ending}", flags, 0o600) for ending in SUFFIXES]
        self._sizes = [os.fstat(file).st_size for file in self._files]
        self._epoch = b""
        directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    def begin(self, epoch: str) -> None:
        """Write further records in ``epoch``."""
        self._epoch = epoch.encode()

    def write(self, segment: Segment, piece: Block) -> None:
        """Append a piece to the records of ``segment``, and wait for the disk."""
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

    def read(self, epoch: str, offset: int) -> list[Block]:
        """Return the messages from ``offset`` on that were written in ``epoch``, as blocks."""
        chains = [list(_pieces(self._read(slot), epoch.encode())) for slot in range(len(SUFFIXES))]
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
        """Close the files."""
        for file in self._files:
            os.close(file)


def _pieces(data: bytes, epoch: bytes) -> Iterator[Block]:
    """Yield the pieces at the start of a journal file, up to the first that does not continue."""
    at, next_offset, salt = 0, None, None
    while at + _HEAD.size <= len(data):
        own_epoch, own_salt, base, count, first, last, run, crc, *sizes = _HEAD.unpack_from(
            data, at
        )
        at += _HEAD.size
        if own_epoch.rstrip(b"\0") != epoch or at + sum(sizes) > len(data):
            return
        if salt not in (None, own_salt):
            return
        salt = own_salt
        columns = []
        for size in sizes:
            columns.append(data[at : at + size])
            at += size
        piece = Block(base, count, first, last, run, 0, *columns)
        if crc32(own_salt, piece.checksum()) != crc:
            return
        start = base + RUN.unpack_from(piece.runs)[0]
        if next_offset not in (None, start):
            return
        next_offset = piece.stop
        yield piece
