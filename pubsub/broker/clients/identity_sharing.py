"""The interface of the backplane that shares nsd's identities among brokers, as nsd calls it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.slices import Work

MAX_CHANNELS = 480 * 1024
"""Bytes of the channels of one identity that can be shared, as ``channel_bytes`` counts them."""


class FormerNumbers(NamedTuple):
    """The numbers up to ``until`` that the broker with the history ``log`` gave to messages.

    A client with such a number has the messages before the offset that is ``shift`` smaller.
    """

    until: int
    log: str
    shift: int


@dataclass(frozen=True, slots=True)
class IdentityContent:
    """An identity. Numbers of messages are offsets plus 1 plus ``shift``, and above ``former``."""

    opened: bool = False
    owner: str = ""
    channels: Collection[str] = ()
    shift: int = 0
    former: tuple[FormerNumbers, ...] = ()

    def former_of(self, number: int) -> FormerNumbers | None:
        """Return the numbers that ``number`` belongs to; None if it is one of this broker's."""
        return next((one for one in self.former if number <= one.until), None)


class ClaimedIdentity(NamedTuple):
    """An identity that this broker has now; ``places`` is where known numbers continue here."""

    content: IdentityContent
    places: Mapping[int, Position]


class IdentityClaim(NamedTuple):
    """A request for an identity.

    ``new`` is the identity to make if there is none. ``after`` is the number with which the client
    continues. ``check`` raises Refused if the client may not have the identity of another broker.
    """

    name: str
    new: IdentityContent | None
    after: int
    check: Callable[[IdentityContent], None]


class IdentityHolder(Protocol):
    """The identities of this broker."""

    def names(self) -> Iterable[str]:
        """Return the names of the identities that are here."""

    def content(self, name: str) -> IdentityContent | None:
        """Return an identity that is here."""

    def place(self, name: str, number: int) -> Position | None:
        """Return where a client of an identity that is here continues, if that is known."""

    def last_number(self, name: str) -> int:
        """Return the number that a client of an identity here has; 0 if it is not known."""

    def given(self) -> Sequence[int]:
        """Return the offsets behind the messages that clients were given last, in that order."""

    def adopt(self, name: str, claimed: ClaimedIdentity) -> Work:
        """Return the work of having this identity, in place of what is here of it.

        Raises Refused, and leaves nothing behind then.
        """

    def release(self, name: str) -> None:
        """Another broker has the identity from now on, or gets it."""

    def engine_reached(self) -> None:
        """Changes can be shared again."""


class IdentitySharing(Protocol):
    """Shares identities; set as ``SessionRegistry.identities``."""

    holder: IdentityHolder | None
    is_there: bool
    """Whether the engine is there."""

    @property
    def max_channels(self) -> int:
        """Bytes of the channels of one identity that can be shared at present."""

    @property
    def limit(self) -> int:
        """The offset before which messages may be given to clients."""

    def is_current(self, name: str) -> bool:
        """Return whether the identity is certainly this broker's."""

    def when_there(self) -> Deferred[bool]:
        """Return whether the engine is there, after a short time at most."""

    def look(self, name: str) -> Deferred[IdentityContent | None]:
        """Return the identity as all brokers know it. Fails with BackplaneAway."""

    def claim(self, claim: IdentityClaim) -> Deferred[None]:
        """Take the identity over, make it, or make sure that this broker has it.

        It is not here afterwards if there is none. Fails with the error of ``check``, those of
        ``adopt``, or with BackplaneAway.
        """

    def place(self, former: FormerNumbers, number: int) -> Deferred[Position]:
        """Return where a client with the former ``number`` continues here."""

    def changed(self, name: str) -> None:
        """Write the identity soon, as it is then."""

    def when_written(self, name: str, call: Callable[[str | None], None]) -> None:
        """Call ``call`` once: with None when the changes so far are written, or with a reason."""

    def ended(self, name: str, content: IdentityContent) -> None:
        """An identity that was here has ended."""


def channel_bytes(channel: str) -> int:
    """Return the bytes that ``channel`` takes in the value of an identity, at most."""
    escaped = sum([5 for one in channel if one < " " or one in '"\\'])
    return len(channel.encode()) + escaped + 3
