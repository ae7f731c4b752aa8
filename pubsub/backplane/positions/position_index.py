"""``PositionIndex``: the shared position of each offset of this log, and the other way. Sans-IO.

While messages are appended, it makes a checkpoint from time to time: an offset, and the next
message of each run there. Since the last checkpoint it knows every stretch of messages. Between two
others the log has to be read.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from pubsub.backplane.positions.missing_messages import MissingMessages
from pubsub.backplane.positions.shared_position import (
    Extent,
    KnownRun,
    KnownRuns,
    SharedPosition,
    pruned,
)
from pubsub.store.records.block_columns import HAS_HEADERS, RUN

if TYPE_CHECKING:
    from pubsub.store.records.block import Block

POINTS = "shared-positions"
"""The table of the metadata with the checkpoints by offset."""
KNOWN = "shared-runs"
"""The table with the runs of all brokers."""
# A checkpoint follows this number of appends, of stretches, of messages, or of bytes.
_APPENDS, _STRETCHES, _MESSAGES, _BYTES = 4096, 2048, 65_536, 16 * 1024**2
_PAIR, _KNOWN = struct.Struct("<QQ"), struct.Struct("<QQ")
ListedRuns = dict[int, int]
"""The next message of each run that a position at some place has to list."""


OriginMessages = tuple[int, int, int, int, int]
"""Offset, run, sequence, number and bytes of consecutive messages."""


class OffsetStretch(NamedTuple):
    """Consecutive messages of one run, with consecutive sequences."""

    offset: int
    run: int
    sequence: int
    number: int


class Range(NamedTuple):
    """The place of a position in this log.

    Everything before ``start`` lies before the position, nothing from ``stop`` on does. Between
    them ``extent`` tells.
    """

    start: int
    stop: int
    extent: Extent


class PositionIndex:
    """The checkpoints; ``put`` and ``delete`` are those of the store."""

    def __init__(
        self,
        put: Callable[[str, str, bytes], object],
        delete: Callable[[str, str], object],
    ) -> None:
        self._put, self._delete = put, delete
        self.runs = KnownRuns()
        self.kept: tuple[int, ...] = ()
        """Former runs of this broker of which messages may be recovered."""
        self._offsets: list[int] = []
        # As they are stored: as objects they would take several times the memory.
        self._states: list[bytes] = []
        self.state: ListedRuns = {}
        """At the end of the log."""
        self.end = 0
        self._stretches: list[OffsetStretch] = []
        self._appends = self._messages = self._nbytes = 0

    # Runs

    def learn(self, origin: str, run: int) -> None:
        """Messages of ``run`` follow, which ``origin`` has numbered."""
        if run not in self.runs:
            self._keep(self.runs.add(origin, run))

    def learn_former(self, run: int, present: int) -> None:
        """Messages of a former run of this broker follow, although ``present`` has begun."""
        if run not in self.runs:
            self._keep(self.runs.add_before(run, present))

    def recovered(self, run: int, end: int) -> None:
        """The messages of ``run`` before the offset ``end`` are behind those of a later run."""
        self.runs[run].recovered = end
        self._keep([run])

    def _keep(self, runs: Iterable[int]) -> None:
        for run in runs:
            known = self.runs[run]
            value = _KNOWN.pack(known.order, known.recovered) + known.origin.encode()
            self._put(KNOWN, f"{run:015x}", value)

    # Restoring

    def restore(
        self, runs: Iterable[tuple[str, bytes]], points: Iterable[tuple[str, bytes]], end: int
    ) -> int | None:
        """Take the checkpoints of a log that ends at ``end``; return the last one's offset.

        None without one.
        """
        for key, value in runs:
            order, recovered = _KNOWN.unpack_from(value)
            origin = value[_KNOWN.size :].decode()
            self.runs.load(int(key, 16), KnownRun(origin, order, recovered))
        for key, value in sorted(points):
            if int(key, 16) <= end:
                self._offsets.append(int(key, 16))
                self._states.append(value)
            else:
                self._delete(POINTS, key)
        if not self._offsets:
            return None
        self.state, self.end = self._state(-1), self._offsets[-1]
        return self.end

    def begin(self, offset: int) -> None:
        """The log begins with ``offset``, and none of its runs is known."""
        self.end = offset
        self._point()

    # Appending

    def add(self, offset: int, run: int, sequence: int, count: int, nbytes: int) -> None:
        """The log has these messages of a known run behind all others."""
        stretches = self._stretches
        if stretches:
            last = stretches[-1]
            if (
                last.run == run
                and last.offset + last.number == offset
                and last.sequence + last.number == sequence
            ):
                stretches[-1] = OffsetStretch(last.offset, run, last.sequence, last.number + count)
            else:
                stretches.append(OffsetStretch(offset, run, sequence, count))
        else:
            stretches.append(OffsetStretch(offset, run, sequence, count))
        self.state[run] = sequence + count
        self.end = offset + count
        self._appends += 1
        self._messages += count
        self._nbytes += nbytes
        if (
            self._appends >= _APPENDS
            or len(stretches) >= _STRETCHES
            or self._messages >= _MESSAGES
            or self._nbytes >= _BYTES
        ):
            self._point()

    def _point(self) -> None:
        """Make a checkpoint at the end of the log."""
        listed = pruned(self.state, self.runs, self.end, self.kept)
        value = b"".join([_PAIR.pack(*pair) for pair in listed.items()])
        self._offsets.append(self.end)
        self._states.append(value)
        self._put(POINTS, f"{self.end:016x}", value)
        self._stretches = []
        self._appends = self._messages = self._nbytes = 0

    def forget(self, first: int) -> None:
        """The log begins with the offset ``first`` now."""
        gone = bisect_right(self._offsets, first) - 1
        for offset in self._offsets[: max(gone, 0)]:
            self._delete(POINTS, f"{offset:016x}")
        if gone > 0:
            del self._offsets[:gone], self._states[:gone]

    def _state(self, place: int) -> ListedRuns:
        return dict(_PAIR.iter_unpack(self._states[place]))

    @property
    def points(self) -> int:
        """The number of checkpoints."""
        return len(self._offsets)

    # From offsets to positions

    def before(self, offset: int) -> tuple[int, ListedRuns]:
        """Return the last checkpoint up to ``offset``, or the first."""
        place = max(bisect_right(self._offsets, offset) - 1, 0)
        return self._offsets[place], self._state(place)

    def recent(self, offset: int) -> ListedRuns | None:
        """Return the state at ``offset``; None if the log has to be read to find it."""
        point, state = self.before(offset)
        if offset <= point:
            return state
        if point != self._offsets[-1]:
            return None
        for one in self._stretches:
            if one.offset >= offset:
                break
            state[one.run] = one.sequence + min(one.number, offset - one.offset)
        return state

    def position(self, state: Mapping[int, int], offset: int, stream: int) -> SharedPosition:
        """Return the position at ``offset``, where the log has ``state``."""
        origins: dict[str, dict[int, int]] = {}
        for run, following in pruned(state, self.runs, offset, self.kept).items():
            origins.setdefault(self.runs[run].origin, {})[run] = following
        return SharedPosition(stream, origins)

    # From positions to offsets

    def find(self, position: SharedPosition, strict: bool = True) -> Range:
        """Return where ``position`` is; raises UnknownPosition if it is ``strict``."""
        extent = self.runs.extent(position, strict)
        point = self._last_within(extent)
        start = self._offsets[point]
        last = len(self._offsets) - 1
        if point == last:
            start = self._start_within(extent, start)
        stop = self._first_beyond(extent, point)
        if stop is None:
            return Range(start, max(self._stop_within(extent), start), extent)
        return Range(start, max(stop, start), extent)

    def covers(self, position: SharedPosition, strict: bool = True) -> bool:
        """Return whether the log has, or had, every message before ``position``."""
        listed = pruned(self.state, self.runs, self.end, self.kept)
        return self.runs.extent_of(listed).has_all_of(self.runs.extent(position, strict))

    def lacks(
        self, missing: MissingMessages, low: SharedPosition, high: SharedPosition | None
    ) -> bool:
        """Return whether messages between two positions may be ``missing`` in this log.

        Raises UnknownPosition.
        """
        listed = pruned(self.state, self.runs, self.end, self.kept)
        end = None if high is None else self.runs.extent(high, strict=False)
        return missing.lacks(self.runs.extent(low), end, self.runs.extent_of(listed))

    def _last_within(self, extent: Extent) -> int:
        """Return the last checkpoint before which everything is in ``extent``, or the first."""
        place = bisect_left(
            range(len(self._states)),
            True,
            key=lambda at: not extent.has_all_of(self.runs.extent_of(self._state(at))),
        )
        return max(place - 1, 0)

    def _first_beyond(self, extent: Extent, point: int) -> int | None:
        """Return the offset of a checkpoint behind everything in ``extent``; None without one."""
        place = bisect_left(
            range(len(self._states)),
            True,
            lo=point,
            key=lambda at: self.runs.extent_of(self._state(at)).has_all_of(extent),
        )
        return self._offsets[place] if place < len(self._offsets) else None

    def _start_within(self, extent: Extent, start: int) -> int:
        """Return the first offset since the last checkpoint that is not in ``extent``."""
        for run, offset, sequence, count in [
            (one.run, one.offset, one.sequence, one.number) for one in self._stretches
        ]:
            leading = extent.leading(run, sequence, count)
            if leading < count:
                return offset + leading
            start = offset + count
        return start

    def _stop_within(self, extent: Extent) -> int:
        """Return the offset after the last message in ``extent`` since the last checkpoint."""
        for one in reversed(self._stretches):
            leading = extent.leading(one.run, one.sequence, one.number)
            if leading:
                return one.offset + leading
        return self._offsets[-1]


def messages_of(block: Block, start: int, stop: int) -> Iterator[OriginMessages]:
    """Yield the messages of ``block`` from the offset ``start`` to before ``stop``.

    A block whose offsets and sequences are consecutive is one piece.
    """
    words = memoryview(block.runs)
    first, last = RUN.unpack_from(words), RUN.unpack_from(words, len(words) - RUN.size)
    count = last[0] + (last[1] & ~HAS_HEADERS) - first[0]
    is_whole = start <= block.base + first[0] and block.base + first[0] + count <= stop
    if is_whole and last[7] - first[7] == last[0] - first[0]:
        yield block.base + first[0], block.run, first[7], count, len(block.payloads)
        return
    for at, flagged, _, _, _, _, _, sequence in RUN.iter_unpack(words):
        offset, number = block.base + at, flagged & ~HAS_HEADERS
        skipped = max(start - offset, 0)
        number = min(number, stop - offset) - skipped
        if number > 0:
            yield offset + skipped, block.run, sequence + skipped, number, 0
