"""A row of the history: what one group commit gathered, in columns. Sans-IO.

    offsets    base, count, first and last timestamp
    names      topics, senders and protocols, each once: u32 length, then that many bytes
    runs       a fixed record a run (see RUN): where it starts, whose it is, how long it is
    lengths    u32 a message, for the runs whose messages differ in length only
    headers    a record a message that has any: u32 message, u16 number, then keys and values
    payloads   all of them, joined

Integers are little-endian. The CRC-32 is over all of it; nothing is decoded before it is right.
The messages of a block are numbered from its base; a run that has expired leaves its numbers out.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from zlib import crc32

from pubsub.broker.batch import Headers
from pubsub.broker.message_run import MIXED
from pubsub.store.stored_runs import RUN_BYTES, Kept, Run

RUN = struct.Struct("<IIIIIiqq")
"""First message, count, topic, sender, protocol, size (or MIXED), timestamp, sequence."""
_WORDS = RUN.size // 4
_TOPIC = 2
_NAMED = (_TOPIC, 3, 4)
HAS_HEADERS = 1 << 31
"""Set in a run's count if any of its messages has headers."""
_U32 = struct.Struct("<I")
_HEADED = struct.Struct("<IH")
_FIXED = struct.Struct("<qIqqq")
# Bytes of names that are remembered as they were decoded.
_REMEMBERED = 4096


class Damaged(Exception):
    """The messages from ``base`` up to ``stop`` cannot be read: what is there is not what was
    written."""

    def __init__(self, base: int, stop: int, why: str) -> None:
        super().__init__(f"offsets {base} to {stop - 1}: {why}")
        self.base = base
        self.stop = stop


@dataclass(slots=True)
class Block:
    """A row, in the order of the table's columns. ``run`` is the broker's run its ids come from."""

    base: int
    count: int
    first: int
    last: int
    run: int
    crc: int
    names: bytes
    runs: bytes
    lengths: bytes
    headers: bytes
    payloads: bytes

    @property
    def stop(self) -> int:
        """The offset after its last message."""
        return self.base + self.count

    @property
    def row(self) -> tuple[int | bytes, ...]:
        """What the table's columns have."""
        return (
            self.base, self.count, self.first, self.last, self.run, self.crc,
            self.names, self.runs, self.lengths, self.headers, self.payloads,
        )  # fmt: skip

    def checksum(self) -> int:
        """What ``crc`` must be."""
        names, runs, lengths, headers = self.names, self.runs, self.lengths, self.headers
        size = _U32.pack
        before = (
            _FIXED.pack(self.base, self.count, self.first, self.last, self.run),
            size(len(names)), names, size(len(runs)), runs, size(len(lengths)), lengths,
            size(len(headers)), headers, size(len(self.payloads)),
        )  # fmt: skip
        return crc32(self.payloads, crc32(b"".join(before)))

    def check(self) -> None:
        """Raises Damaged."""
        columns = (self.names, self.runs, self.lengths, self.headers, self.payloads)
        if not all(isinstance(column, bytes) for column in columns):
            raise Damaged(self.base, self.stop, "a column is missing")
        if self.checksum() != self.crc:
            raise Damaged(self.base, self.stop, "the checksum is wrong")

    def topics(self) -> set[str]:
        """The topics of its messages, once it has been checked."""
        names = decode_names(self.names)
        return {names[index].decode() for index in set(numbers("I", self.runs)[_TOPIC::_WORDS])}

    def holds(self, names: Sequence[str]) -> bool:
        """Are these different names all among its own?"""
        own = set(decode_names(self.names))
        return len(set(names)) == len(names) and own.issuperset(name.encode() for name in names)


class Builder:
    """A block in the making, of the broker's ``run``, that begins at ``base``."""

    def __init__(self, run: int, base: int) -> None:
        self._run = run
        self._base = base
        self._numbers: dict[bytes, int] = {}
        self._pieces: list[Block] = []

    def add(self, runs: Sequence[Kept], stop: int) -> Block:
        """Go on with ``runs``, which are in order, up to before the offset ``stop``.

        Returns the piece that they are: the columns that are put to what was there before.
        """
        base, known = self._base, self._numbers
        number = known.setdefault
        before = len(known)
        records: list[bytes] = []
        lengths: list[bytes] = []
        headers: list[bytes] = []
        payloads: list[bytes] = []
        stamps: list[int] = []
        for kept in runs:
            (
                _, first, stamp, _, topic, count, data,
                size, own, sequence, sender, protocol, headed,
            ) = kept  # fmt: skip
            start = first - base
            if headed is not None:
                count |= HAS_HEADERS
                headers += _encode_headers(start, headed)
            if own is not None:
                lengths.append(own)
            records.append(
                RUN.pack(
                    start,
                    count,
                    number(topic.encode(), len(known)),
                    number(sender, len(known)),
                    number(protocol.encode(), len(known)),
                    size,
                    stamp,
                    sequence,
                )
            )
            payloads.append(data)
            stamps.append(stamp)
        piece = _sealed(
            Block(
                base,
                stop - base,
                min(stamps, default=0),
                max(stamps, default=0),
                self._run,
                0,
                b"".join(map(_encode_name, islice(known, before, None))),
                b"".join(records),
                _little(array("I", b"".join(lengths))).tobytes() if lengths else b"",
                b"".join(headers),
                b"".join(payloads),
            )
        )
        self._pieces.append(piece)
        return piece

    def block(self) -> Block:
        """All of it."""
        return join_pieces(self._pieces)


def join_pieces(pieces: Sequence[Block]) -> Block:
    """The block that a ``Builder`` has made these pieces of, which are all, in order."""
    last = pieces[-1]
    return _sealed(
        Block(
            last.base,
            last.count,
            min([piece.first for piece in pieces]),
            max([piece.last for piece in pieces]),
            last.run,
            0,
            b"".join([piece.names for piece in pieces]),
            b"".join([piece.runs for piece in pieces]),
            b"".join([piece.lengths for piece in pieces]),
            b"".join([piece.headers for piece in pieces]),
            b"".join([piece.payloads for piece in pieces]),
        )
    )


def encode_block(runs: Sequence[Kept], run: int, base: int, stop: int) -> Block:
    """The block of ``runs``, which are in order and lie from ``base`` to before ``stop``."""
    return Builder(run, base).add(runs, stop)


def join_blocks(blocks: Sequence[Block]) -> Block:
    """All that is in neighbours of the same broker's run, as one block.

    They have been checked. Their runs are not looked at one by one, as commits may have to wait.
    """
    first = blocks[0]
    names: dict[bytes, int] = {}
    records: list[bytes] = []
    headers: list[bytes] = []
    for block in blocks:
        shift = block.base - first.base
        own = [names.setdefault(name, len(names)) for name in decode_names(block.names)]
        words = numbers("I", block.runs)
        words[::_WORDS] = array("I", map(shift.__add__, words[::_WORDS]))
        for column in _NAMED:
            words[column::_WORDS] = array("I", map(own.__getitem__, words[column::_WORDS]))
        records.append(_little(words).tobytes())
        if block.headers:
            for index, one in decode_headers(block.headers):
                headers += _encode_headers(index + shift, (one,))
    return _sealed(
        Block(
            first.base,
            blocks[-1].stop - first.base,
            min(block.first for block in blocks),
            max(block.last for block in blocks),
            first.run,
            0,
            b"".join(map(_encode_name, names)),
            b"".join(records),
            b"".join([block.lengths for block in blocks]),
            b"".join(headers),
            b"".join([block.payloads for block in blocks]),
        )
    )


def _sealed(block: Block) -> Block:
    block.crc = block.checksum()
    return block


def decode_block(block: Block, topics: frozenset[str] | None = None) -> Iterator[Run]:
    """The runs of a block that has been checked, of ``topics`` (None: of all)."""
    names = decode_names(block.names)
    texts: dict[int, str] = {}
    wanted = None if topics is None else _indexes(topics, names)
    lengths = numbers("I", block.lengths)
    headers = dict(decode_headers(block.headers)) if block.headers else {}
    at = mixed = 0
    for start, number, topic, sender, protocol, size, timestamp, sequence in RUN.iter_unpack(
        block.runs
    ):
        count = number & ~HAS_HEADERS
        own = None
        if size == MIXED:
            own = lengths[mixed : mixed + count]
            mixed += count
        begin, at = at, at + (size * count if own is None else sum(own))
        if wanted is not None and topic not in wanted:
            continue
        for index in (topic, protocol):
            if index not in texts:
                texts[index] = names[index].decode()
        data = block.payloads[begin:at]
        first = block.base + start
        yield Run(
            first + count - 1, first, timestamp, len(data) + RUN_BYTES, texts[topic], count, data,
            size, own, sequence, names[sender], texts[protocol],
            [headers.get(start + i, {}) for i in range(count)] if number & HAS_HEADERS else None,
        )  # fmt: skip


def _indexes(topics: frozenset[str], names: Sequence[bytes]) -> frozenset[int]:
    wanted = frozenset(map(str.encode, topics))
    return frozenset(index for index, name in enumerate(names) if name in wanted)


def numbers(kind: str, data: bytes) -> array[int]:
    """What is in a column, of the type that ``array`` calls so."""
    return _little(array(kind, data))


def _little(words: array[int]) -> array[int]:
    if sys.byteorder == "big":
        words = words[:]
        words.byteswap()
    return words


def _encode_headers(start: int, headers: Sequence[Headers]) -> Iterator[bytes]:
    for index, own in enumerate(headers, start):
        if own:
            yield _HEADED.pack(index, len(own))
            for key, value in own.items():
                text = key.encode()
                yield _U32.pack(len(text)) + text + _U32.pack(len(value)) + value


def _encode_name(name: bytes) -> bytes:
    return _U32.pack(len(name)) + name


def decode_names(data: bytes) -> Sequence[bytes]:
    """The names of a block, which its runs mean by number."""
    return _remembered_names(data) if len(data) <= _REMEMBERED else tuple(_names(data))


def _names(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        name, at = _piece(data, at)
        yield name


@lru_cache(128)
def _remembered_names(data: bytes) -> Sequence[bytes]:
    """Small blocks are merged many at a time, and each asks for its names again and again."""
    return tuple(_names(data))


def decode_headers(data: bytes) -> Iterator[tuple[int, Headers]]:
    """The headers of those messages of a block that have any, by their number in it."""
    at = 0
    while at < len(data):
        index, number = _HEADED.unpack_from(data, at)
        at += _HEADED.size
        own = {}
        for _ in range(number):
            key, at = _piece(data, at)
            own[key.decode()], at = _piece(data, at)
        yield index, own


def _piece(data: bytes, at: int) -> tuple[bytes, int]:
    (length,) = _U32.unpack_from(data, at)
    at += _U32.size
    return data[at : at + length], at + length
