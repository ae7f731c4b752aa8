"""``SessionPositions``: positions of sessions here, and their form for all brokers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from pubsub.backplane.positions.shared_position import UnknownPosition
from pubsub.backplane.sessions.session_entry import SessionEntry
from pubsub.broker.clients.session_sharing import SessionContent
from pubsub.broker.delivery.start_positions import Position, Resumption, offset_of

if TYPE_CHECKING:
    from pubsub.backplane.positions.shared_position import Extent, SharedPosition
    from pubsub.backplane.positions.shared_positions import SharedPositions

# Seconds for which a broker waits for messages that a client was given elsewhere.
SETTLED_AFTER = 10.0
# Different positions of one session; more are written as the next lower one.
_DIFFERENT = 64


class DeliveredBefore:
    """See ``DeliveredElsewhere``: the messages before ``position`` of another broker."""

    __slots__ = ("_clock", "_extent", "_is_settled", "_positions", "_run", "_until", "position")

    def __init__(
        self,
        positions: SharedPositions,
        position: SharedPosition,
        extent: Extent,
        run: int,
        clock: Any,
    ) -> None:
        self._positions, self.position, self._extent = positions, position, extent
        self._run, self._clock = run, clock
        self._until = clock.seconds() + SETTLED_AFTER
        self._is_settled = False

    def prefix(self, run: int, sequence: int, count: int) -> int:
        """See ``DeliveredElsewhere``."""
        return self._extent.leading(run or self._run, sequence, count)

    @property
    def is_settled(self) -> bool:
        """See ``DeliveredElsewhere``: this log has all of them, or does not get them soon."""
        if not self._is_settled:
            late = self._clock.seconds() >= self._until
            self._is_settled = late or self._positions.covers(self.position)
        return self._is_settled


class SessionPositions:
    """Translates the positions of this broker, whose present run is ``run``."""

    def __init__(self, positions: SharedPositions, run: int, clock: Any) -> None:
        self._positions, self._run, self._clock = positions, run, clock

    def at(self, offset: int) -> Deferred[SharedPosition]:
        """Return the position at ``offset``."""
        return self._positions.at(offset)

    async def entry(self, run: str, content: SessionContent, lost: bool) -> SessionEntry:
        """Return the value of a session that has ``content`` now."""
        places = _few(set(content.behind.values()))
        numbers = {place: number for number, place in enumerate(dict.fromkeys(places.values()))}
        positions = tuple([await self.shared(place) for place in numbers])
        behind = {name: numbers[places[at]] for name, at in sorted(content.behind.items())}
        live = tuple(sorted(content.live))
        return SessionEntry(run, live, behind, positions, content.notes, lost)

    async def shared(self, place: Position) -> SharedPosition:
        """Return the position of a client that continues at ``place`` here."""
        here = await self._positions.at(offset_of(place))
        if isinstance(place, Resumption) and isinstance(place.taken, DeliveredBefore):
            try:
                return self._positions.joined(here, place.taken.position)
            except UnknownPosition:
                # Some messages come twice.
                return place.taken.position
        return here

    async def content(self, entry: SessionEntry, broker: SharedPosition | None) -> SessionContent:
        """Return the positions of ``entry`` here; ``broker`` is where its live topics continue."""
        here = [await self.local(one) for one in entry.positions]
        behind: dict[str, Position] = {name: here[at] for name, at in entry.behind.items()}
        if broker is not None and entry.live:
            place = await self.local(broker)
            behind |= dict.fromkeys(entry.live, place)
        return SessionContent((), behind, entry.notes)

    async def local(self, position: SharedPosition) -> Position:
        """Return where a client at ``position`` continues here."""
        found = await self._positions.find(position, strict=False)
        given = DeliveredBefore(self._positions, position, found.extent, self._run, self._clock)
        if found.start >= found.stop and given.is_settled:
            return found.start
        return Resumption(found.start, given)


def _few(places: Iterable[Position]) -> Mapping[Position, Position]:
    """Return the place that is written for each: itself, or a lower one if they are too many."""
    ordered = sorted(places, key=offset_of)
    step = max(-(-len(ordered) // _DIFFERENT), 1)
    return {place: ordered[number // step * step] for number, place in enumerate(ordered)}
