"""A client with an identity, and its access by the rules of its listener."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.credentials.identity import Identity

if TYPE_CHECKING:
    from pubsub.broker.access_rules.access import AccessRules
    from pubsub.broker.delivery.outbox import Outbox
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.publisher import Publisher


class Identified:
    """The base of connections.

    Both attributes are found when they are first asked for, by when the handshakes below the
    protocol are done; an idle connection has neither.
    """

    listener: Listener
    publisher: Publisher | None
    outbox: Outbox | None
    _identity: Identity | None = None
    _access: AccessRules | None = None

    def transport_identity(self) -> Identity:
        """The identity that the transport proves; anonymous at the client's address if none."""
        raise NotImplementedError

    @property
    def identity(self) -> Identity:
        """The identity that the client has proved."""
        if self._identity is None:
            self._identity = self.transport_identity()
        return self._identity

    @property
    def access(self) -> AccessRules:
        """The rights of the client. The object follows changes of the rules."""
        if self._access is None:
            self._access = self.listener.access_for(self.identity)
        return self._access

    def identify(self, identity: Identity) -> None:
        """Replace the identity, for example when a password or token has been verified.

        Every live subscription is checked again by the rules for the new identity, in slices.
        Earlier messages were checked by the rules for the old one.
        """
        if identity == self._identity:
            return
        self._identity = identity
        self._access = self.listener.access_for(identity)
        if self.publisher is not None:
            self.publisher.access = self._access
        if self.outbox is not None:
            self.listener.slices.run(self.listener.router.recheck_subscriber(self.outbox))
