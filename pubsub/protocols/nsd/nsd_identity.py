"""``NsdIdentity``: the state of one identity (nsd §1.2)."""

from __future__ import annotations

from pubsub.protocols.nsd.moved_identity import MovedIdentity


class NsdIdentity:
    """The state of one identity: whether it has opened its channel, and its subscriptions.

    ``idle_since`` is the time at which it was found unused; None if it was used since. ``owner`` is
    the user that its subscriptions belong to; empty if there is none. ``moved`` is for brokers that
    share identities.
    """

    __slots__ = ("channels", "idle_since", "moved", "name", "opened", "owner")

    def __init__(self, name: str, opened: bool = False, channels: set[str] | None = None) -> None:
        self.name = name
        self.opened = opened
        self.owner = ""
        self.idle_since: float | None = None
        self.moved: MovedIdentity | None = None
        self.channels = set() if channels is None else channels

    @property
    def is_blank(self) -> bool:
        """Whether nothing distinguishes it from an unknown identity.

        The client library makes identities up; they would stay for ever.
        """
        return not (self.channels or self.opened or self.owner or self.moved is not None)

    def share(self) -> MovedIdentity:
        """Return the part for brokers that share identities."""
        if self.moved is None:
            self.moved = MovedIdentity()
            self.moved.count(self.channels)
        return self.moved

    def add(self, channel: str) -> None:
        """Subscribe."""
        self.channels.add(channel)
        if self.moved is not None:
            self.moved.count((channel,))

    def discard(self, channel: str) -> None:
        """Unsubscribe."""
        self.channels.discard(channel)
        if self.moved is not None:
            self.moved.count((channel,), -1)
