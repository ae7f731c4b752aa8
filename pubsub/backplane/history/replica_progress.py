"""The progress of this broker in the histories of others: each part once, in order. Sans-IO.

A part is taken if its number follows that of the last one of its origin and term, or if it begins a
higher term. All else is left out: a part that is there twice, one behind a part that was lost, and
one of a term that has ended. The origin sends skipped parts again, in another term. Every
reader decides so from the stream alone, so all of them have the same messages.

If the stream has lost its beginning before this broker has read it, the next part of each origin is
taken as it is, once. If it has lost its end, and got other messages in its place, parts of a term
arrive without the beginning of the term, which is among those. Then the stream is read again, once
for each such term.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from pubsub.backplane.history.replica_record import MAX_PARTS, RecordPart
from pubsub.backplane.history.replica_stream import StreamAway

_VALUE = struct.Struct("<6Q")


@dataclass(frozen=True, slots=True)
class Reached:
    """The last part that was taken of an origin.

    ``resume`` is the sequence of the stream after which a reader continues. The messages of ``run``
    before the sequence ``following`` were taken. ``offset`` is where the messages that are not in
    the stream begin in this broker's own history; only its own origin has one.
    """

    resume: int = 0
    term: int = 0
    number: int = 0
    run: int = 0
    following: int = 0
    offset: int = 0

    def encode(self) -> bytes:
        """Return this as a value of the metadata."""
        return _VALUE.pack(
            self.resume, self.term, self.number, self.run, self.following, self.offset
        )


@dataclass(slots=True)
class _Pieces:
    """The parts of a record that is not complete; the first was at ``begun``."""

    begun: int
    data: list[bytes] = field(default_factory=list)


class Progress:
    """The origins, by name, as of the last message of the stream that was read."""

    def __init__(self, stored: Iterable[tuple[str, bytes]]) -> None:
        self._settled = {key: Reached(*_VALUE.unpack(value)) for key, value in stored}
        self.reached = dict(self._settled)
        self.sequence = max([one.resume for one in self.reached.values()], default=0)
        """The last message of the stream that was read."""
        self.gaps = 0
        # Whether the stream has other messages than this broker has read, in their place; and by
        # origin the last term that has shown it, as the stream is read again once for each.
        self._is_rewritten = False
        self._without_beginning: dict[str, int] = {}
        self._pieces: dict[str, _Pieces] = {}
        # The origins of which the next part is taken as it is; None: all that are not known.
        self._lenient: set[str] = set()
        self._all_lenient = False

    def rewind(self) -> None:
        """Read again from where everything was taken: another connection begins there."""
        self._pieces.clear()
        self.reached = dict(self._settled)
        self.sequence = max([one.resume for one in self.reached.values()], default=0)

    def lacks(self, last: int) -> bool:
        """Return whether a stream up to ``last`` lacks messages that were read: it lost its end."""
        return self._is_rewritten or last < self.sequence

    def restart(self) -> Mapping[str, Reached]:
        """Read from the beginning: the stream is another one, and all of it is new.

        Return what is to be stored of each origin.
        """
        self._settled = {key: replace(one, resume=0) for key, one in self._settled.items()}
        self.rewind()
        self._is_rewritten = False
        return self.reached

    def arrive(self, sequence: int) -> bool:
        """Note a message of the stream; return whether messages before it are gone."""
        gap = sequence > self.sequence + 1
        if gap:
            # The first reading of a stream whose beginning was removed loses nothing it had.
            self.gaps += bool(self.reached)
            self._lenient = set(self.reached)
            self._all_lenient = True
            self._pieces.clear()
        self.sequence = sequence
        return gap

    def take(self, origin: str, part: RecordPart) -> bytes | None:
        """Return the record that ``part`` completes, None if it completes none or is left out.

        Raises StreamAway if the stream is to be read again.
        """
        last = self.reached.get(origin, Reached())
        follows = part.term == last.term and part.number == last.number + 1
        begins = part.term > last.term and part.number == 1
        newer = (part.term, part.number) > (last.term, last.number)
        tolerated = origin in self._lenient or (self._all_lenient and origin not in self.reached)
        if not (follows or begins or (tolerated and newer)):
            if part.term > max(last.term, self._without_beginning.get(origin, 0)):
                self._without_beginning[origin] = part.term
                self._is_rewritten = True
                raise StreamAway("the stream has lost messages, and others are in their place")
            return None
        self._lenient.discard(origin)
        self.reached[origin] = replace(last, term=part.term, number=part.number)
        if part.parts == 1:
            self._pieces.pop(origin, None)
            return part.data
        return self._add_piece(origin, part)

    def _add_piece(self, origin: str, part: RecordPart) -> bytes | None:
        if part.place == 0:
            self._pieces[origin] = _Pieces(self.sequence)
        pieces = self._pieces.get(origin)
        if pieces is None or len(pieces.data) != part.place or part.parts > MAX_PARTS:
            # Its beginning is gone.
            self._pieces.pop(origin, None)
            return None
        pieces.data.append(part.data)
        if part.place < part.parts - 1:
            return None
        return b"".join(self._pieces.pop(origin).data)

    def settle(self, origin: str, run: int, following: int, offset: int = 0) -> Reached:
        """Return the progress after the last record of ``origin``, for the metadata."""
        last = self.reached.get(origin, Reached())
        begun = min([one.begun for one in self._pieces.values()], default=self.sequence + 1)
        reached = replace(last, resume=begun - 1, run=run, following=following, offset=offset)
        self.reached[origin] = self._settled[origin] = reached
        return reached

    def known(self, origin: str, run: int) -> int:
        """Return the number before which the messages of ``run`` were taken, as far as known."""
        last = self.reached.get(origin)
        return last.following if last is not None and last.run == run else 0

    @property
    def held(self) -> int:
        """Bytes of records that are not complete."""
        return sum([sum(map(len, one.data)) for one in self._pieces.values()])
