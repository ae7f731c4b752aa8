"""``WriteGroup``: messages and metadata that ``CommitStateMachine`` commits together."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pubsub.store.records.record import End, Operation, Put
from pubsub.store.records.stored_runs import RunRecord, first_offset_of, last_offset_of

# Runs that are freed at once.
_FREED = 1000


class Cut(NamedTuple):
    """The messages from ``offset`` on are in another record."""

    offset: int


@dataclass(slots=True, eq=False)
class WriteGroup:
    """Messages and metadata that are committed together.

    ``puts`` are the values of the metadata by table and key, None to delete one. ``ends`` are the
    topics that have ended, with the values that were put since the end before, and the places
    where another run of a broker begins to have numbered the messages. ``since`` is the
    reactor's time at which the first of its messages was added, ``run`` the broker run of the last
    one, as its record has it. ``offset`` is the next offset of the log when the group was first
    written, ``done`` the number of its records that are written. ``written`` and ``synced`` are the
    callbacks that wait; only the reactor thread uses them. ``held`` is the offset from which on it
    is one record until ``release``, -1 if it is not held.
    """

    runs: list[RunRecord] = field(default_factory=list)
    puts: dict[tuple[str, str], Put] = field(default_factory=dict)
    ends: list[tuple[End | Cut, Sequence[Put]]] = field(default_factory=list)
    nbytes: int = 0
    since: float = 0.0
    run: int = 0
    offset: int = -1
    done: int = 0
    held: int = -1
    written: list[Callable[[bool], None]] = field(default_factory=list)
    synced: list[Callable[[bool], None]] = field(default_factory=list)
    # The values that were put before ``hold``.
    _before: dict[tuple[str, str], Put] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.runs or self.puts or self.ends)

    def hold(self, offset: int) -> None:
        """Put all additions from ``offset`` on into one record, until ``release``."""
        self.held = offset
        self._before = dict(self.puts)

    def release(self) -> None:
        """See ``hold``."""
        self.held = -1
        self._before = {}

    def end(self, end: End) -> int:
        """Add the end of a topic; return where it ends.

        While the group is held, that is before the messages that hold it. These messages are not
        acknowledged, so they may as well have been published after the end.
        """
        if self.held >= 0:
            end = End(end.topic, self.held)
        self._split(end)
        return end.offset

    def cut(self, offset: int) -> None:
        """Begin another record at ``offset``."""
        self._split(Cut(offset))

    def _split(self, end: End | Cut) -> None:
        """Begin another record; the values that were put before it belong to the one that ends."""
        before = self.puts
        if self.held >= 0:
            before, self._before = self._before, {}
        self.ends.append((end, tuple(before.values())))
        self.puts = {key: put for key, put in self.puts.items() if before.get(key) is not put}

    def free(self) -> None:
        """Free the messages, which are written, but the first and the last.

        It is done bit by bit, by the thread that has written them: the objects of hundreds of
        thousands of runs would stop all threads for long.
        """
        while len(self.runs) > 2:
            del self.runs[max(1, len(self.runs) - _FREED) : -1]

    def stop(self, offset: int) -> int:
        """Return the offset after the last message, or ``offset`` without any."""
        return last_offset_of(self.runs[-1]) + 1 if self.runs else offset

    def pieces(self, offset: int) -> list[tuple[int, int, list[RunRecord], list[Operation]]]:
        """Return the records to be written: base, stop, runs and operations of each.

        ``offset`` is the next offset of the log. A record begins where a topic ends, and where
        the messages are numbered by another run, as it has one. The values of the metadata are in
        the record of the messages that they were put with.
        """
        if not self.ends:
            stop = self.stop(offset)
            return [(offset, stop, self.runs, [*self.puts.values()])] if self else []
        cuts = sorted({end.offset for end, _ in self.ends} | {offset})
        stop = self.stop(offset)
        found: list[tuple[int, int, list[RunRecord], list[Operation]]] = []
        at = 0
        for base, limit in zip(cuts, [*cuts[1:], max(stop, cuts[-1])], strict=True):
            start, at = at, bisect_left(self.runs, limit, lo=at, key=first_offset_of)
            found.append((base, limit, self.runs[start:at], []))
        number = 0
        for end, puts in self.ends:
            found[number][3].extend(puts)
            while found[number][0] < end.offset:
                number += 1
            if isinstance(end, End):
                found[number][3].append(end)
        found[-1][3].extend(self.puts.values())
        return [piece for piece in found if piece[2] or piece[3]]
