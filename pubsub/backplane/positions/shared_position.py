"""``SharedPosition``: a place in the shared history that is the same at every broker. Sans-IO.

The log of each broker has the messages of all in an order of its own, but those of one *origin*,
the history of one broker, are in the same order in all of them. A message is known by the run of
the broker that numbered it and its sequence. So a position has, for each origin, the sequence of
the next message of its newest run; all earlier runs of the origin lie before the position, except
for those that it lists too, with their next messages.

``stream`` is a place in the stream that connects the brokers: one that has read so far has all
messages before the position that others can have.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

_LIMIT = 2**62
MAX_TEXT = 16 * 1024
"""Characters of the longest position that is taken."""
_RUN_DIGITS, _MAX_ORIGIN = 15, 64
EVERYTHING = 2**63
"""The next message of a run of which all messages lie before a position."""


class MalformedPosition(ValueError):
    """The text is not that of a position."""


class UnknownPosition(Exception):
    """This broker does not have the run of a position; another one may."""


@dataclass(frozen=True, slots=True)
class SharedPosition:
    """By origin: the sequence of the next message of each run that is listed."""

    stream: int = 0
    origins: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def as_json(self) -> dict[str, object]:
        """Return the position as a JSON object."""
        return {
            "stream": self.stream,
            "next": {
                origin: {f"{run:0{_RUN_DIGITS}x}": following for run, following in runs.items()}
                for origin, runs in sorted(self.origins.items())
            },
        }

    def encode(self) -> str:
        """Return the position as compact text."""
        return json.dumps(self.as_json(), separators=(",", ":"))


def decode(text: str | bytes) -> SharedPosition:
    """Return the position with this text; raises MalformedPosition."""
    try:
        found = json.loads(text) if len(text) <= MAX_TEXT else None
    except (ValueError, RecursionError):
        found = None
    return of_json(found)


def of_json(found: object) -> SharedPosition:
    """Return the position that a JSON object stands for; raises MalformedPosition."""
    if not isinstance(found, dict) or found.keys() != {"stream", "next"}:
        raise MalformedPosition("expected an object with the members stream and next")
    following = found["next"]
    if not isinstance(following, dict):
        raise MalformedPosition("next: expected an object with the runs of each origin")
    origins = {}
    for origin, runs in following.items():
        if not isinstance(runs, dict) or not runs or not 0 < len(origin) <= _MAX_ORIGIN:
            raise MalformedPosition("next: expected the runs of an origin and their next messages")
        origins[origin] = {_run(run): _number(number) for run, number in runs.items()}
    return SharedPosition(_number(found["stream"]), origins)


def _run(text: str) -> int:
    try:
        run = int(text, 16)
    except ValueError:
        run = 0
    if not 0 < run < _LIMIT or text != f"{run:0{_RUN_DIGITS}x}":
        raise MalformedPosition(f"expected a run of {_RUN_DIGITS} hexadecimal digits")
    return run


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < _LIMIT:
        raise MalformedPosition("expected numbers of 0 or more")
    return value


@dataclass(slots=True)
class KnownRun:
    """A run whose messages the log has, or had.

    ``order`` grows with the runs of an origin. Messages of a former run of this broker that its log
    had lost are stored behind those of a later run; they end before the offset ``recovered``.
    """

    origin: str
    order: int
    recovered: int = 0


class KnownRuns:
    """The runs by number."""

    def __init__(self) -> None:
        self.runs: dict[int, KnownRun] = {}
        self._newest: dict[str, int] = {}
        self._order = 0

    def __contains__(self, run: int) -> bool:
        return run in self.runs

    def __getitem__(self, run: int) -> KnownRun:
        return self.runs[run]

    def load(self, run: int, known: KnownRun) -> None:
        """Add a run that is stored."""
        self.runs[run] = known
        self._order = max(self._order, known.order)
        newest = self._newest.get(known.origin)
        if newest is None or self.runs[newest].order < known.order:
            self._newest[known.origin] = run

    def add(self, origin: str, run: int) -> list[int]:
        """Add the next run of ``origin``; return the runs that have changed."""
        self.load(run, KnownRun(origin, self._order + 1))
        return [run]

    def add_before(self, run: int, present: int) -> list[int]:
        """Add a run of the origin of ``present``, before that."""
        later = self.runs[present]
        self.runs[run] = KnownRun(later.origin, later.order)
        self.load(present, KnownRun(later.origin, self._order + 1, later.recovered))
        return [run, present]

    def of(self, origin: str) -> list[int]:
        """Return the runs of ``origin``, the newest first."""
        own = [run for run, known in self.runs.items() if known.origin == origin]
        return sorted(own, key=lambda run: self.runs[run].order, reverse=True)

    def extent(self, position: SharedPosition, strict: bool = True) -> Extent:
        """Return the extent before ``position``; raises UnknownPosition if it is ``strict``.

        Otherwise a run that this broker has no message of is taken as newer than those it has.
        One without messages before the position tells nothing beside others: it is a former run
        that may have sent nothing, and then no other broker knows it.
        """
        floors = {}
        for origin, runs in position.origins.items():
            floors[origin] = max(map(self.order, runs))
            telling = [run for run, number in runs.items() if number] or runs
            if origin in self._newest and any(run not in self.runs for run in telling):
                if strict:
                    raise UnknownPosition("this broker lacks the messages of a run of the position")
                floors[origin] = self._order + 1
        listed = {run: number for runs in position.origins.values() for run, number in runs.items()}
        return Extent(self.runs, listed, floors)

    def joined(self, one: SharedPosition, other: SharedPosition) -> SharedPosition:
        """Return the position after all messages before ``one`` or ``other``.

        Raises UnknownPosition.
        """
        extents = self.extent(one), self.extent(other)
        origins = dict(one.origins)
        for origin, runs in other.origins.items():
            listed = {
                run: max([extent.following(run) for extent in extents])
                for run in {**runs, **origins.get(origin, {})}
            }
            newest = [run for run in listed if listed[run] != EVERYTHING]
            newest.sort(key=lambda run: self.order(run), reverse=True)
            origins[origin] = {run: listed[run] for run in newest}
        return SharedPosition(max(one.stream, other.stream), origins)

    def order(self, run: int) -> int:
        """Return the place of ``run`` among all; 0 if it is not known."""
        known = self.runs.get(run)
        return 0 if known is None else known.order

    def extent_of(self, state: Mapping[int, int]) -> Extent:
        """Return the extent before a place in this log, with the next messages of its runs."""
        floors: dict[str, int] = {}
        for run in state:
            known = self.runs[run]
            floors[known.origin] = max(floors.get(known.origin, 0), known.order)
        return Extent(self.runs, state, floors)


class Extent:
    """The messages before a position."""

    __slots__ = ("_floors", "_runs", "listed")

    def __init__(
        self, runs: Mapping[int, KnownRun], listed: Mapping[int, int], floors: Mapping[str, int]
    ) -> None:
        self._runs = runs
        self.listed = listed
        self._floors = floors

    def following(self, run: int) -> int:
        """Return the sequence of the next message of ``run``: all before it are in the extent."""
        listed = self.listed.get(run)
        if listed is not None:
            return listed
        known = self._runs.get(run)
        if known is None:
            return 0
        return EVERYTHING if known.order < self._floors.get(known.origin, 0) else 0

    def leading(self, run: int, sequence: int, count: int) -> int:
        """Return how many of ``count`` messages from ``sequence`` on are in the extent.

        They are the first of them.
        """
        return min(max(self.following(run) - sequence, 0), count)

    def has_all_of(self, other: Extent) -> bool:
        """Return whether every message of ``other`` is in this one; False if that is not known."""
        mine = self.following
        if any(mine(run) < number for run, number in other.listed.items()):
            return False
        # Runs that this one lists and the other one has completely.
        return not any(
            run not in other.listed and other.following(run) == EVERYTHING for run in self.listed
        )


def pruned(
    state: Mapping[int, int], runs: KnownRuns, at: int, kept: Collection[int] = ()
) -> dict[int, int]:
    """Return the runs of ``state`` that a position at the offset ``at`` has to list.

    These are the newest of each origin, those whose messages are recovered behind ``at``, and those
    in ``kept``, which may still be.
    """
    newest: dict[str, int] = {}
    for run in state:
        known = runs[run]
        before = newest.get(known.origin)
        if before is None or runs[before].order < known.order:
            newest[known.origin] = run
    listed = {run: state[run] for run in newest.values()}
    for run, known in runs.runs.items():
        last = newest.get(known.origin)
        is_behind = known.recovered > at or run in kept
        if is_behind and last is not None and known.order < runs[last].order:
            listed[run] = state.get(run, 0)
    return listed
