"""Envelopes: the order, the duplicates and the pieces of records. Sans-IO.

A link is one connection of a broker to the engine; it has a random number. Its envelopes are
counted from 1. A record that is larger than the engine's messages may be is sent in pieces. An
envelope is a head, little-endian, and ``size`` bytes of the record:

    magic "PB", version u8 (1), reserved u8, size u32, link u64, counter u64, piece u16, pieces u16

A message of the engine is one envelope, or several of one topic, one after the other. The engine
delivers the messages of one connection in order, and a message twice if two subscriptions have
its subject, as is the case for a moment when one replaces another.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import NamedTuple

from pubsub.backplane.messages.record import RECORD_COUNT, MalformedRecord
from pubsub.kernel import Columns

ENVELOPE = struct.Struct("<2sBxIQQHH")
_MAGIC, _VERSION = b"PB", 1
MAX_PIECES = 0xFFFF
NOTHING = Columns.gather([])
# Links whose counters are remembered, and bytes of incomplete records, in all.
_LINKS = 1024
_INCOMPLETE = 64 * 1024**2


class Outgoing:
    """Puts records into the envelopes of one link; ``limit`` are the bytes of the largest."""

    def __init__(self, link: int, limit: int) -> None:
        self._link = link
        self._room = max(limit - ENVELOPE.size, 1)
        self._counter = 0
        self._read = 0

    def next_read(self) -> int:
        """Return the number of another read."""
        self._read += 1
        return self._read

    def envelopes(self, head: bytes, columns: Columns = NOTHING) -> list[bytes]:
        """Return the record in envelopes; none if it is too large for any number of pieces.

        It is ``head`` and the payloads of ``columns``, which are copied once.
        """
        room = self._room
        size = len(head) + columns.nbytes
        if 0 < size <= room:
            self._counter += 1
            envelope = ENVELOPE.pack(_MAGIC, _VERSION, size, self._link, self._counter, 0, 1)
            return [Columns.joined([envelope, head, columns])]
        pieces = -(-size // room)
        if pieces > MAX_PIECES:
            return []
        record = Columns.joined([head, columns])
        found = []
        for piece in range(pieces):
            self._counter += 1
            data = record[piece * room : (piece + 1) * room]
            place = (self._link, self._counter, piece, pieces)
            found.append(ENVELOPE.pack(_MAGIC, _VERSION, len(data), *place) + data)
        return found


@dataclass(slots=True)
class _SenderLink:
    last: int = 0
    pieces: list[bytes] = field(default_factory=list)
    held: int = 0


class _OpenedEnvelope(NamedTuple):
    """An envelope; ``data[at:stop]`` is the record or the piece."""

    counter: int
    link: int
    piece: int
    pieces: int
    name: str
    data: bytes
    at: int
    stop: int


class Arrived(NamedTuple):
    """A whole record, ``data[at:stop]``, with the topic's name and the link it came over."""

    name: str
    link: int
    data: bytes
    at: int
    stop: int


class Incoming:
    """Takes envelopes apart. ``malformed`` counts those that were not understood."""

    def __init__(self) -> None:
        self._links: OrderedDict[int, _SenderLink] = OrderedDict()
        self.held = 0
        """Bytes of records that are not complete."""
        self.malformed = 0

    def take(self, envelopes: Iterable[tuple[str, bytes]]) -> list[Arrived]:
        """Return the records, for each link in the order in which they were sent."""
        opened: list[_OpenedEnvelope] = []
        for name, data in envelopes:
            try:
                _open(name, data, opened)
            except MalformedRecord:
                self.malformed += 1
        found: list[Arrived] = []
        if len(opened) == 1:
            self._take_link(opened[0].link, opened, found)
            return found
        by_link: dict[int, list[_OpenedEnvelope]] = {}
        for one in opened:
            by_link.setdefault(one.link, []).append(one)
        for link, own in by_link.items():
            # Two subscriptions can have one subject for a moment.
            own.sort(key=_counter_of)
            self._take_link(link, own, found)
        return found

    def _take_link(
        self, link: int, opened: Sequence[_OpenedEnvelope], found: list[Arrived]
    ) -> None:
        state = self._links.get(link)
        if state is None:
            state = self._links[link] = _SenderLink()
            if len(self._links) > _LINKS:
                self._forget_pieces(self._links.popitem(last=False)[1])
        self._links.move_to_end(link)
        for counter, _, piece, pieces, name, data, at, stop in opened:
            if counter <= state.last:
                continue
            follows, state.last = counter == state.last + 1, counter
            if pieces == 1:
                if state.pieces:
                    self._forget_pieces(state)
                found.append(Arrived(name, link, data, at, stop))
            elif self._add_piece(state, piece, follows, data[at:stop]):
                if piece == pieces - 1:
                    whole = b"".join(state.pieces)
                    self._forget_pieces(state)
                    found.append(Arrived(name, link, whole, 0, len(whole)))
            else:
                self._forget_pieces(state)
                self.malformed += 1

    def _add_piece(self, state: _SenderLink, piece: int, follows: bool, data: bytes) -> bool:
        """Return whether the piece is the next one of its record."""
        if piece == 0:
            self._forget_pieces(state)
        elif not follows or piece != len(state.pieces):
            return False
        if self.held + len(data) > _INCOMPLETE:
            return False
        state.pieces.append(data)
        state.held += len(data)
        self.held += len(data)
        return True

    def _forget_pieces(self, state: _SenderLink) -> None:
        self.held -= state.held
        state.pieces, state.held = [], 0


_counter_of: Callable[[_OpenedEnvelope], int] = attrgetter("counter")


def _open(name: str, data: bytes, opened: list[_OpenedEnvelope]) -> None:
    """Append the envelopes in ``data``; raises MalformedRecord at the first that is not one."""
    at = 0
    while at < len(data) or not data:
        if len(data) - at < ENVELOPE.size:
            raise MalformedRecord("the envelope is cut off")
        magic, version, size, link, counter, piece, pieces = ENVELOPE.unpack_from(data, at)
        start, at = at + ENVELOPE.size, at + ENVELOPE.size + size
        if magic != _MAGIC or version != _VERSION or not counter or piece >= pieces:
            raise MalformedRecord("the envelope is invalid")
        if not size or at > len(data):
            raise MalformedRecord("the record is cut off")
        opened.append(_OpenedEnvelope(counter, link, piece, pieces, name, data, start, at))


def messages_of(data: bytes) -> int:
    """Return how many messages begin in ``data``, for counting those that are dropped unread."""
    total = at = 0
    while at + ENVELOPE.size <= len(data):
        _, _, size, _, _, piece, _ = ENVELOPE.unpack_from(data, at)
        at += ENVELOPE.size
        if not piece and at + RECORD_COUNT.size <= len(data):
            (count,) = RECORD_COUNT.unpack_from(data, at)
            total += int(count)
        at += size
    return total if at else 1
