"""``BrokerList``: brokers that share one history, of which one at a time plans the ranges.

Offsets are those of the broker that plans. They show the amount to read, and where to divide it;
the ranges lie between shared positions, which are the same at all brokers. When the broker that
plans cannot be reached, the next one does so, and offsets are looked up again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from pubsub.pipeline.histories.history import (
    BatchOrGap,
    HistoryRefused,
    OtherBroker,
    PartitionBounds,
    TopicSize,
    Unreachable,
    WrongHistory,
)

if TYPE_CHECKING:
    from pubsub.client.history_replies import HistoryBounds
    from pubsub.pipeline.histories.http_history import HttpHistory

_Result = TypeVar("_Result")
_PlaceKey = tuple[int, str, str]
"""The number of a broker, its epoch, and a position."""
# Positions whose offsets are known; a batch has one for each task.
_MADE = 4096


class BrokerList:
    """Implements ``History`` with the offsets of the broker that plans.

    Its methods raise OtherBroker if that is another one from now on.
    """

    def __init__(self, brokers: Sequence[HttpHistory], shared: str, fail_on_loss: bool) -> None:
        self.brokers = tuple(brokers)
        self.shared = shared
        self._fail_on_loss = fail_on_loss
        self.planner = 0
        """The number of the broker that plans."""
        # The offsets of positions that this broker has made in this epoch.
        self._made: dict[_PlaceKey, int] = {}
        # Those of the first messages behind positions.
        self._first: dict[_PlaceKey, int] = {}

    def _ask(self, call: Callable[[HttpHistory], _Result]) -> _Result:
        try:
            return call(self.brokers[self.planner])
        except (Unreachable, WrongHistory) as error:
            self._move(error)
        except HistoryRefused as error:
            if not error.elsewhere:
                raise
            self._move(error)
        raise AssertionError("another broker plans")

    def _move(self, error: Unreachable | WrongHistory | HistoryRefused) -> None:
        self.planner = (self.planner + 1) % len(self.brokers)
        self._made.clear()
        self._first.clear()
        raise OtherBroker(error) from None

    # Positions

    def _shared_bounds(
        self, timestamp: int | None = None, at: int | None = None, begin: str | None = None
    ) -> HistoryBounds:
        def ask(broker: HttpHistory) -> HistoryBounds:
            skip = begin is not None and not self._fail_on_loss
            return broker.shared_bounds(self.shared, timestamp, at, begin, skip)

        return self._ask(ask)

    def position(self, offset: int, begin: str | None) -> str:
        """Return the shared position of an offset, with all that is before ``begin``."""
        found = self._shared_bounds(at=offset, begin=begin)
        assert found.position is not None
        if begin is not None and same_place(found.position, begin):
            return begin
        _note(self._made, (self.planner, found.epoch, found.position), offset)
        return found.position

    def is_exact(self, position: str, epoch: str) -> bool:
        """Return whether all that is between the position and an earlier one is before its offset.

        So it is for positions that the broker that plans has made in ``epoch``.
        """
        return (self.planner, epoch, position) in self._made

    def place(self, position: str, is_end: bool) -> tuple[int, str]:
        """Return the offset and the epoch of a position at the broker that plans.

        The offset is that of the first message behind it. For the end of a range, no message before
        it has a higher offset.
        """
        found = self._shared_bounds(begin=position)
        key = self.planner, found.epoch, position
        made = self._made.get(key)
        if is_end and made is not None:
            return made, found.epoch
        assert found.low is not None
        assert found.high is not None
        assert found.at is not None
        last = min(found.high, found.at)
        if is_end:
            return last, found.epoch
        if key not in self._first:
            # The broker looks no further than to a checkpoint of its log, and behind a position
            # that it has made may be messages that were read at another broker. A batch of nothing
            # else would look like the end of the history.
            first = self._first_behind(position, found.low if made is None else made, last)
            _note(self._first, key, first)
        return self._first[key], found.epoch

    def _first_behind(self, position: str, low: int, high: int) -> int:
        """Return the offset of the first message that is not before ``position``, at least."""
        while low < high:
            middle = (low + high + 1) // 2
            found = self._shared_bounds(at=middle, begin=position).position
            assert found is not None
            if same_place(found, position):
                low = middle
            else:
                high = middle - 1
        return low

    # History

    def bounds(self, timestamp: int | None = None) -> PartitionBounds:
        """See ``History``. The history ends with the messages that other brokers can have."""
        found = self._shared_bounds(timestamp)
        end = found.next if found.at is None else found.at
        # Messages before it may be at this broker only, or at others only.
        first = min(max(found.first, found.whole), end)
        offset = end if found.offset is None else min(max(found.offset, first), end)
        return PartitionBounds(first, end, found.epoch, offset)

    def topics(self, start: int, stop: int) -> list[TopicSize]:
        """See ``History``."""
        return self._ask(lambda broker: broker.topics(start, stop))

    def read(
        self, start: int, stop: int, topics: frozenset[str] | None, headers: bool, epoch: str
    ) -> Iterator[BatchOrGap]:
        """See ``History``."""
        found = iter(self.brokers[self.planner].read(start, stop, topics, headers, epoch))
        while (item := self._ask(lambda _: next(found, None))) is not None:
            yield item

    def cuts(self, start: int, stop: int) -> list[int]:
        """See ``History``."""
        return []

    def check(self, position: int, epoch: str) -> None:
        """See ``History``."""
        self._ask(lambda broker: broker.check(position, epoch))

    def report_position(
        self, reader: str, position: int, epoch: str, quiet: tuple[int, str] | None = None
    ) -> bool:
        """See ``History``. Quiet ranges are not stored, as other brokers would not know them."""
        if quiet is not None:
            return False
        return self._ask(lambda broker: broker.report_position(reader, position, epoch))

    def quiet_until(self, reader: str, start: int, topics: str) -> int | None:
        """See ``History``."""
        return None

    # Leases

    def hold_reader(self, reader: str, holder: str) -> float:
        """See ``LeasedHistory``: at all brokers that can be reached, of which there must be one."""
        seconds = []
        for broker in self.brokers:
            try:
                seconds.append(broker.hold_reader(reader, holder))
            except Unreachable as error:
                failure = error
        if not seconds:
            raise failure
        return min(seconds)

    def release_reader(self, reader: str, holder: str) -> None:
        """See ``LeasedHistory``."""
        for broker in self.brokers:
            with suppress(Unreachable):
                broker.release_reader(reader, holder)


def _note(places: dict[_PlaceKey, int], key: _PlaceKey, offset: int) -> None:
    places[key] = offset
    if len(places) > _MADE:
        del places[next(iter(places))]


def same_place(one: str, other: str) -> bool:
    """Return whether the same messages are before two shared positions."""
    # How far the stream was read says nothing about them.
    return bool(json.loads(one)["next"] == json.loads(other)["next"])
