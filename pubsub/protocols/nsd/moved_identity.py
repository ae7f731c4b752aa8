"""``MovedIdentity``: the part of an identity that brokers need which share identities.

The numbers of messages (nsd §4.3) are those of the broker that has the identity. They are offsets
plus 1 plus a shift, by which they are larger than all numbers that its clients have from other
brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from pubsub.broker.clients.identity_sharing import (
    ClaimedIdentity,
    FormerNumbers,
    IdentityContent,
    channel_bytes,
)
from pubsub.broker.delivery.start_positions import Position

# Numbers whose places here are kept for each identity.
_PLACES = 4


class MovedIdentity:
    """``elsewhere`` is true for an identity that this broker knows only as opened.

    ``wanted`` is true if its client has opened it while the engine was away: it is to be subscribed
    to its channel. ``nbytes`` are the bytes of its channels in the shared state. ``last`` is the
    number that the client has after the last list that was sent; 0 if there was none.
    """

    __slots__ = ("elsewhere", "former", "last", "nbytes", "places", "shift", "wanted")

    def __init__(
        self,
        shift: int = 0,
        former: tuple[FormerNumbers, ...] = (),
        elsewhere: bool = False,
        wanted: bool = False,
    ) -> None:
        self.shift, self.former = shift, former
        self.elsewhere, self.wanted = elsewhere, wanted
        self.places: dict[int, Position] = {}
        self.nbytes = self.last = 0

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> MovedIdentity | None:
        """Return the part that is stored in ``record``."""
        if record.keys().isdisjoint(("shift", "former", "elsewhere", "wanted")):
            return None
        former = tuple([FormerNumbers(*one) for one in record.get("former", [])])
        elsewhere, wanted = record.get("elsewhere", False), record.get("wanted", False)
        return cls(record.get("shift", 0), former, elsewhere, wanted)

    @classmethod
    def claimed(cls, claimed: ClaimedIdentity) -> MovedIdentity:
        """Return that of an identity which this broker has now."""
        moved = cls(claimed.content.shift, claimed.content.former)
        moved.places = dict(claimed.places)
        return moved

    def count(self, channels: Iterable[str], sign: int = 1) -> None:
        """Count the bytes of channels that are added, or removed if ``sign`` is -1."""
        self.nbytes += sign * sum(map(channel_bytes, channels))

    def has_room(self, channel: str, most: int) -> bool:
        """Return whether the identity can be shared with this channel, too.

        Its channels may have ``most`` bytes.
        """
        return self.is_too_large(most) or self.nbytes + channel_bytes(channel) <= most

    def is_too_large(self, most: int) -> bool:
        """Return whether the identity has more channels than can be shared.

        An earlier version has made it, or the engine takes less than before.
        """
        return self.nbytes > most

    def record(self) -> dict[str, object]:
        """Return the members to store."""
        members: dict[str, object] = {
            "shift": self.shift,
            "former": [list(one) for one in self.former],
            "elsewhere": self.elsewhere,
            "wanted": self.wanted,
        }
        return {name: value for name, value in members.items() if value}

    def content(self, opened: bool, owner: str, channels: set[str]) -> IdentityContent:
        """Return the identity as other brokers know it."""
        return IdentityContent(opened, owner, tuple(channels), self.shift, self.former)

    def former_of(self, number: int) -> FormerNumbers | None:
        """Return the numbers of another broker that ``number`` is one of, if it is."""
        return next((one for one in self.former if number <= one.until), None)

    def keep(self, number: int, place: Position) -> None:
        """Keep the place here of a former number: a client asks with it until it gets a message."""
        self.places[number] = place
        while len(self.places) > _PLACES:
            del self.places[next(iter(self.places))]
