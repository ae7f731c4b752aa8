"""Expiry: which messages of the log have expired, by the limits of each pattern of topics.

Messages of the topics of a pattern expire in the order of the log, an entry of the index at a time.
So one offset for each pattern, its horizon, is the end of its expired messages.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import NamedTuple

from pubsub.settings import matcher
from pubsub.store.catalog.catalog import Catalog, Horizon
from pubsub.store.records.topic_counts import TopicCounts, add_counts
from pubsub.store.segments.segment import Segment
from pubsub.store.segments.segment_index import ENTRY_BYTES, LOST, Grain, IndexEntry
from pubsub.store.upkeep.retention_limits import MICROSECONDS, RetentionLimits

# Entries that one step examines, which takes some milliseconds.
_STEP = 256
# Entries have at most about this part of the messages that a pattern keeps.
_PART = 8


class _Growing(NamedTuple):
    """Messages, bytes and the newest timestamp (µs) of the entry that still grows."""

    messages: int
    nbytes: int
    last: int


@dataclass(slots=True)
class _RetentionRule:
    """The limits of a pattern, its horizon, and its messages that have not expired."""

    limits: RetentionLimits
    horizon: Horizon
    messages: int = 0
    nbytes: int = 0

    def has_expired(
        self, messages: int, nbytes: int, last: int, now: int, growing: _Growing | None
    ) -> bool:
        """Return whether messages of which ``last`` is the newest timestamp have expired.

        They are the oldest. ``growing`` is not counted yet.
        """
        limits = self.limits
        more = (0, 0) if growing is None else growing[:2]
        return (
            self.messages + more[0] - messages >= limits.messages + (not messages)
            or self.nbytes + more[1] > limits.nbytes
            or last < now - limits.seconds * MICROSECONDS
        )


def grain_of(limits: Sequence[RetentionLimits]) -> Grain:
    """Return the size of entries that is small enough for ``limits``."""
    nbytes = min([one.nbytes for one in limits], default=inf) / _PART
    messages = min([one.messages for one in limits], default=inf) / _PART
    return Grain(int(max(min(nbytes, ENTRY_BYTES), 1)), int(max(min(messages, 2**62), 1)))


def horizons_of(limits: Sequence[RetentionLimits]) -> list[Horizon]:
    """Return a horizon for each of ``limits``; ``set_horizons`` sets their offsets."""
    return [Horizon(one.pattern, matcher([one.pattern])) for one in limits]


class ExpiredMessages:
    """Finds expired messages in ``catalog``; its horizons are those of ``limits``, in order."""

    def __init__(self, catalog: Catalog, limits: Sequence[RetentionLimits]) -> None:
        self._catalog = catalog
        self._ends: deque[tuple[str, int]] = deque()
        self.begin(limits)

    def begin(self, limits: Sequence[RetentionLimits]) -> None:
        """Count all messages again, for ``limits`` and the catalog's horizons."""
        catalog = self._catalog
        self._rules = [
            _RetentionRule(one, horizon)
            for one, horizon in zip(limits, catalog.horizons, strict=True)
        ]
        self._rule_of = {id(rule.horizon): rule for rule in self._rules}
        self._totals: dict[str, tuple[int, int]] = {}
        self._counted_to = catalog.low

    def step(self, now: int) -> bool:
        """Move the horizons to where they are to be at ``now`` (µs); return if there is more."""
        if self._count():
            return True
        more = False
        for rule in self._rules:
            more = self._expire(rule, now) or more
        return more

    # Counting

    def _count(self) -> bool:
        """Count the messages of entries that get no more records; return if there is more."""
        entries = self._entries(self._counted_to, self._catalog.stop)
        for counted, (_, entry, contents) in enumerate(entries):
            if counted == _STEP:
                return True
            self._note_ended(entry.base)
            self._add(contents, self._catalog.visible(contents, entry.stop))
            self._counted_to = entry.stop
        self._note_ended(self._counted_to)
        return False

    def _add(self, contents: TopicCounts, names: Iterable[str]) -> None:
        by_horizon: dict[int, list[tuple[str, tuple[int, int]]]] = {}
        for name, horizon in zip(names, map(self._catalog.horizon_of, names), strict=True):
            if horizon is not None:
                by_horizon.setdefault(id(horizon), []).append((name, contents[name]))
        for number, counts in by_horizon.items():
            rule = self._rule_of[number]
            rule.messages += sum([messages for _, (messages, _) in counts])
            rule.nbytes += sum([nbytes for _, (_, nbytes) in counts])
            add_counts(self._totals, counts)

    def _subtract(self, name: str, messages: int, nbytes: int) -> None:
        before = self._totals.get(name, (0, 0))
        left = (before[0] - messages, before[1] - nbytes)
        if left[0] > 0:
            self._totals[name] = left
        else:
            self._totals.pop(name, None)
        horizon = self._catalog.horizon_of(name)
        if horizon is not None:
            rule = self._rule_of[id(horizon)]
            rule.messages -= messages
            rule.nbytes -= nbytes

    def end(self, name: str, offset: int) -> None:
        """Stop counting a topic that ended at ``offset``; called in the reactor's thread."""
        self._ends.append((name, offset))

    def _note_ended(self, offset: int) -> None:
        """Stop counting topics that ended at or before ``offset``."""
        while self._ends and self._ends[0][1] <= offset:
            name, _ = self._ends.popleft()
            if name in self._totals:
                self._subtract(name, *self._totals[name])

    def _entries(
        self, start: int, stop: int
    ) -> Iterator[tuple[Segment, IndexEntry, dict[str, tuple[int, int]]]]:
        """Yield the entries of a range that get no more records; all of them end in it."""
        catalog = self._catalog
        for segment in catalog.from_offset(start):
            if segment.base >= stop:
                return
            catalog.use(segment)
            index = segment.index_or_damage()
            closed = len(index) if segment.sealed else index.closed_entries
            for number in range(index.entry_at(start), closed):
                entry = index.entry(number)
                if entry.stop > stop:
                    return
                if entry.stop > start:
                    yield segment, entry, _counted(index.contents(number))

    # Expiry

    def _expire(self, rule: _RetentionRule, now: int) -> bool:
        """Move the horizon of one pattern; return if there is more to do."""
        horizon = rule.horizon
        growing = self._growing(rule)
        for seen, (_, entry, contents) in enumerate(
            self._entries(max(horizon.offset, self._catalog.low), self._counted_to)
        ):
            if seen == _STEP:
                return True
            names = self._names_of(rule, contents, entry)
            messages, nbytes = _sum(contents, names)
            if names and not rule.has_expired(messages, nbytes, entry.last, now, growing):
                return False
            # Before the horizon moves, by which these messages are known to be visible.
            for name in names:
                self._subtract(name, *contents[name])
            horizon.offset = entry.stop
        if growing is not None and rule.has_expired(0, 0, growing.last, now, growing):
            # It is counted in the next step, and may expire.
            self._catalog.segments[-1].index.close_entry()
            return True
        return False

    def _growing(self, rule: _RetentionRule) -> _Growing | None:
        """Return the messages of a pattern in the entry that still grows; None if it has none."""
        index = self._catalog.segments[-1].index
        number = index.closed_entries
        if number >= len(index):
            return None
        entry, contents = index.entry(number), _counted(index.contents(number))
        names = self._names_of(rule, contents, entry)
        return _Growing(*_sum(contents, names), entry.last) if names else None

    def _names_of(
        self, rule: _RetentionRule, contents: dict[str, tuple[int, int]], entry: IndexEntry
    ) -> list[str]:
        catalog = self._catalog
        return [
            name
            for name in catalog.visible(contents, entry.stop)
            if catalog.horizon_of(name) is rule.horizon
        ]

    def drop(self, segment: Segment) -> None:
        """Stop counting the messages of a segment that is removed before they have expired."""
        for _, entry, contents in self._entries(segment.base, min(segment.stop, self._counted_to)):
            for name in self._catalog.visible(contents, entry.stop):
                self._subtract(name, *contents[name])
        self._counted_to = max(self._counted_to, segment.stop)
        for rule in self._rules:
            rule.horizon.offset = max(rule.horizon.offset, segment.stop)


def _counted(contents: TopicCounts) -> TopicCounts:
    """Return the messages that count in limits.

    Lost offsets do not: most of those that are passed after a loss of power had no messages.
    """
    return {**contents, LOST: (0, 0)} if LOST in contents else contents


def _sum(contents: TopicCounts, names: Sequence[str]) -> tuple[int, int]:
    """Return the messages and bytes of the topics ``names``."""
    return sum(contents[name][0] for name in names), sum(contents[name][1] for name in names)
