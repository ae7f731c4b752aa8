"""The interface of the backplane that shares sessions among brokers, as the broker calls it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pubsub.errors import Refused

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.broker.delivery.start_positions import Position
    from pubsub.broker.slices import Work
    from pubsub.broker.topic_space.topics import Topic


@dataclass(frozen=True, slots=True)
class SessionContent:
    """The state with which another broker resumes a session.

    ``live`` are the topics of which everything was given to the client, ``behind`` those that
    continue at a position. ``notes`` is further state of the protocol.
    """

    live: Collection[str] = ()
    behind: Mapping[str, Position] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)


class SharedClient(Protocol):
    """A session that other brokers can resume."""

    def content(self) -> SessionContent:
        """Return the present state of the session."""

    @property
    def is_lost(self) -> bool:
        """True while the client has no connection."""

    @property
    def is_movable(self) -> bool:
        """False if no other broker may take the session while the client is connected."""

    @property
    def can_merge(self) -> bool:
        """Whether ``merge`` is possible."""

    def merge(self, content: SessionContent) -> Work:
        """Return the work of going on with the session that another broker had under the key.

        The client has begun this one while brokers could not ask each other. Its subscriptions
        stay, and those of ``content`` continue where they were.
        """

    def lose(self) -> Work:
        """Return the work of giving up the connection, as another broker resumes the session."""

    def forget(self) -> Work:
        """Return the work of ending the session here, as another broker has it."""


class KeyedListener(Protocol):
    """A listener, as keys of its sessions have it."""

    protocol: str


class SessionSharing(Protocol):
    """Shares sessions; set as ``SessionRegistry.sharing``. Keys are those of ``key``."""

    def key(self, listener: KeyedListener, *parts: bytes) -> str:
        """Return the key of the session that ``parts`` tell from others of this listener.

        It does not show them.
        """

    def share(self, key: str, client: SharedClient) -> None:
        """Share a session from now on, or its changes. This is done soon."""

    def has(self, key: str) -> bool:
        """Return whether this broker shares a session under ``key``."""

    def end(self, key: str) -> None:
        """The session has ended."""

    def take(
        self, key: str, displace: bool = True, wanted: Callable[[], bool] = lambda: True
    ) -> Deferred[SessionContent | None]:
        """Take a session over from another broker; None if there is none.

        Without ``displace``, one that is connected there is not taken. If others are taken first,
        nothing is done unless it is still ``wanted`` then. That has a deadline, and does not fail.
        ``share`` or ``end`` follows.
        """

    def leaving(self) -> None:
        """The broker stops: everything that was published has been delivered."""

    def leave(self) -> Deferred[None]:
        """All connections are closed; fires when other brokers can have the sessions."""


def known_topics(content: SessionContent, make: Callable[[str], Topic]) -> dict[Topic, Position]:
    """Return the topics of a session that was taken, with their positions.

    ``make`` returns a topic, or raises Refused if it cannot be here.
    """
    found: dict[Topic, Position] = {}
    for name, at in content.behind.items():
        with suppress(Refused):
            found[make(name)] = at
    return found
