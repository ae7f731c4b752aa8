"""``Group``: messages and metadata that are committed together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pubsub.store.record import End, Operation, Put
from pubsub.store.stored_runs import RunRecord, first_offset_of, last_offset_of


class Cut(NamedTuple):
    """The messages from ``offset`` on are in another record."""

    offset: int


@dataclass(slots=True, eq=False)
class Group:
    """Messages and metadata that are committed together.

    ``puts`` are the values of the metadata by table and key, None to delete one. ``ends`` are the
    topics that have ended, with the values that were put since the end before, and the places
    where another run of a broker begins to have numbered the messages. ``since`` is the
    reactor's time at which the first of its messages was added. ``offset`` is the
    next offset of the log when the group was first written, ``done`` the number of its records
    that are written. ``written`` and ``synced`` are the callbacks that wait; only the reactor
    thread uses them.
    """

    runs: list[RunRecord] = field(default_factory=list)
    puts: dict[tuple[str, str], Put] = field(default_factory=dict)
    ends: list[tuple[End | Cut, Sequence[Put]]] = field(default_factory=list)
    nbytes: int = 0
    since: float = 0.0
    offset: int = -1
    done: int = 0
    written: list[Callable[[bool], None]] = field(default_factory=list)
    synced: list[Callable[[bool], None]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.runs or self.puts or self.ends)

    def end(self, end: End) -> None:
        """Add the end of a topic."""
        self.ends.append((end, tuple(self.puts.values())))
        self.puts = {}

    def cut(self, offset: int, before: Mapping[tuple[str, str], Put]) -> None:
        """Begin another record at ``offset``; the values ``before`` belong to the one that ends."""
        self.ends.append((Cut(offset), tuple(before.values())))
        self.puts = {key: put for key, put in self.puts.items() if before.get(key) is not put}

    def pieces(self, offset: int) -> list[tuple[int, int, list[RunRecord], list[Operation]]]:
        """Return the records to be written: base, stop, runs and operations of each.

        ``offset`` is the next offset of the log. A record begins where a topic ends, and where
        the messages are numbered by another run, as it has one. The values of the metadata are in
        the record of the messages that they were put with.
        """
        cuts = sorted({end.offset for end, _ in self.ends} | {offset})
        stop = last_offset_of(self.runs[-1]) + 1 if self.runs else offset
        found: list[tuple[int, int, list[RunRecord], list[Operation]]] = []
        at = 0
        for base, limit in zip(cuts, [*cuts[1:], max(stop, cuts[-1])], strict=True):
            start = at
            while at < len(self.runs) and first_offset_of(self.runs[at]) < limit:
                at += 1
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
