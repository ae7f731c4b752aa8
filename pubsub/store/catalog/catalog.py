"""The catalog of a log: its segments in order, and the messages in them that are hidden.

The broker's threads and other processes read through it. It is changed by replacing a tuple, so
that a reader works on the segments that existed when it began.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Lock

from pubsub.store.catalog.damage import Damage
from pubsub.store.catalog.read_errors import ReadErrors
from pubsub.store.records.record import Found
from pubsub.store.segments.segment import Segment
from pubsub.store.segments.segment_index import IndexEntry

# Segments whose index is in memory, the bytes of these indexes, which have the names of all topics
# of a segment, and bytes of records that are in memory.
_SEGMENTS = 64
_INDEX_BYTES = 32 * 1024**2
_CACHED_BYTES = 16 * 1024**2
# Of the objects of a record, beside its bytes in the file: a record may be a single message.
_RECORD_BYTES = 720
# Topics whose horizon is remembered: clients make up their names.
_TOPICS = 20_000
CACHE_BYTES = _CACHED_BYTES
"""Memory of the process that readers take."""

FoundOrGap = Found | tuple[int, int]


@dataclass(slots=True)
class Horizon:
    """Messages before ``offset`` of the topics that match ``pattern`` have expired."""

    pattern: str
    matches: Callable[[str], bool]
    offset: int = 0


@dataclass
class Catalog:
    """The segments, in order, of a log that begins at the offset ``low``.

    ``ended`` has the offset at which each topic that ended did. ``end`` is the offset after the
    last message if that is known otherwise than from the segments, as the last ones are missing.
    ``damage`` has the damage that readers and checks found so far. ``is_written`` is True in the
    process that writes the log: no other one may remove its files.

    The first of ``horizons`` that matches a topic applies.
    """

    segments: tuple[Segment, ...] = ()
    low: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    horizons: Sequence[Horizon] = ()
    end: int = 0
    damage: Damage = field(default_factory=Damage)
    is_written: bool = False

    def __post_init__(self) -> None:
        self._used: OrderedDict[Segment, None] = OrderedDict()
        self._records: OrderedDict[tuple[int, int, int], tuple[int, list[FoundOrGap]]] = (
            OrderedDict()
        )
        self._record_bytes = 0
        self._lock = Lock()
        self._horizon_of: dict[str, Horizon | None] = {}
        self.read_errors = ReadErrors(self.damage)

    @property
    def first(self) -> int:
        """The smallest offset that can still be read."""
        if any(one.pattern == "*" for one in self.horizons):
            return max(self.low, min(one.offset for one in self.horizons))
        return self.low

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return max(self.segments[-1].stop if self.segments else 0, self.end)

    def from_offset(self, offset: int) -> Sequence[Segment]:
        """Return the segments from the one that has ``offset`` on."""
        segments = self.segments
        at = bisect_right(segments, offset, key=lambda segment: segment.base)
        while at > 0 and segments[at - 1].stop > offset:
            at -= 1
        return segments[at:]

    def hidden_before(self, topic: str) -> int:
        """Return the offset before which no message of ``topic`` is to be read."""
        horizon = self.horizon_of(topic)
        return max(self.ended.get(topic, 0), 0 if horizon is None else horizon.offset)

    def hides(self, offset: int, topics: frozenset[str] | None) -> bool:
        """Return whether some messages from ``offset`` on may be hidden, of ``topics`` or, if that
        is None, of any."""
        if all(one.offset <= offset for one in self.horizons):
            return False
        return topics is None or any(self.hidden_before(one) > offset for one in topics)

    def end_topic(self, topic: str, offset: int) -> None:
        """Hide the messages of ``topic`` before ``offset``."""
        with self._lock:
            self.ended[topic] = offset

    def forget_ended(self, low: int) -> None:
        """Forget the topics that ended by ``low``, as nothing before it can be read."""
        with self._lock:
            for topic in [name for name, offset in self.ended.items() if offset <= low]:
                del self.ended[topic]

    def ended_by(self, offset: int) -> dict[str, int]:
        """Return the topics that ended at ``offset`` or before, with their offsets."""
        with self._lock:
            return {name: at for name, at in self.ended.items() if at <= offset}

    def forget_ended_topics(self, topics: Mapping[str, int]) -> None:
        """Forget that ``topics`` ended at these offsets, as no segment has messages of theirs."""
        with self._lock:
            for name, offset in topics.items():
                if self.ended.get(name) == offset:
                    del self.ended[name]

    def horizon_of(self, topic: str) -> Horizon | None:
        """Return the horizon that applies to ``topic``."""
        try:
            return self._horizon_of[topic]
        except KeyError:
            # In this order: results for horizons that are replaced meanwhile are discarded.
            cache, horizons = self._horizon_of, self.horizons
            found = next((one for one in horizons if one.matches(topic)), None)
            if len(cache) >= _TOPICS:
                cache.clear()
            cache[topic] = found
            return found

    def forget_patterns(self) -> None:
        """Determine the horizon of each topic again, because the horizons have changed."""
        self._horizon_of = {}

    def visible(self, topics: Iterable[str], before: int) -> frozenset[str]:
        """Return those of ``topics`` that may have messages before ``before`` to be read."""
        if not self.ended and all(one.offset < before for one in self.horizons):
            return frozenset(topics)
        return frozenset([name for name in topics if self.hidden_before(name) < before])

    def is_lost(self, segment: Segment) -> bool:
        """Return whether the file of ``segment``, which is not there, is lost for good."""
        return self.is_written and not segment.removed

    def use(self, segment: Segment) -> None:
        """Keep the index of ``segment`` in memory, and release those that were not read for long.

        Called before the index is read, so that one more than those of the bounds is in memory.
        """
        with self._lock:
            if segment.removed:
                return
            is_new = segment not in self._used
            self._used[segment] = None
            self._used.move_to_end(segment)
            released = self._take_surplus() if is_new else []
        for one in released:
            one.release()

    def _take_surplus(self) -> list[Segment]:
        """Remove the segments beyond the bounds from those in use, and return them."""
        room, kept = _INDEX_BYTES, 0
        for segment in reversed(self._used):
            room -= segment.index_bytes
            if kept == _SEGMENTS or (kept and room < 0):
                break
            kept += 1
        return [self._used.popitem(last=False)[0] for _ in range(len(self._used) - kept)]

    def records(self, segment: Segment, entry: IndexEntry) -> list[FoundOrGap]:
        """Return the records of an entry, verified, and its damaged ranges of offsets."""
        key = (segment.head.sequence, entry.number, entry.end)
        with self._lock:
            cached = self._records.get(key)
            if cached is not None:
                self._records.move_to_end(key)
                return cached[1]
        found, is_whole = self.read_errors.records(segment, entry)
        if not is_whole:
            return found
        size = entry.end - entry.position + _RECORD_BYTES * len(found)
        with self._lock:
            if size <= _CACHED_BYTES // 4 and key not in self._records:
                self._records[key] = size, found
                self._record_bytes += size
                while self._record_bytes > _CACHED_BYTES:
                    _, (least, _) = self._records.popitem(last=False)
                    self._record_bytes -= least
        return found

    def replace(self, removed: Sequence[Segment], added: Sequence[Segment]) -> None:
        """Put ``added`` in the place of ``removed``.

        These are kept only by those who read them: an open file would keep its space on the disk.
        """
        with self._lock:
            for one in removed:
                one.removed = True
                self._used.pop(one, None)
            left = [one for one in self.segments if one not in removed]
            self.segments = tuple(sorted((*left, *added), key=lambda one: one.place))


def set_horizons(catalog: Catalog, horizons: Sequence[Horizon], known: Mapping[str, int]) -> None:
    """Give ``catalog`` its horizons, with the offsets that are ``known`` for their patterns.

    Readers may use the catalog meanwhile. Messages that no pattern kept before stay hidden.
    """
    first = catalog.first
    for one in horizons:
        one.offset = known.get(one.pattern, first)
    catalog.horizons = horizons
    catalog.forget_patterns()
