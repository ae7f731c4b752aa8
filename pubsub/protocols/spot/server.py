"""spot's server: the connection of a client, the factory, the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocolFactory

from pubsub.broker.mixes import AddressMixes
from pubsub.broker.topics import Topic
from pubsub.errors import Refused
from pubsub.protocols.spot.cluster import PEERS, Cluster
from pubsub.protocols.spot.connection import EPOCH, NODE, ZmtpConnection
from pubsub.protocols.spot.heads import KnownPublications, Publication
from pubsub.protocols.spot.roles import RouterSide, XPubSide, XSubSide
from pubsub.protocols.spot.subscriptions import PrefixReaders
from pubsub.protocols.spot.zmtp import (
    SERVER_TYPES,
    Command,
    FrameLimits,
    ZmtpError,
    encode_command,
    encode_message,
    error,
    ping,
    ready,
)
from pubsub.settings import SECONDS, SIZE, Setting, integer, number
from pubsub.wire.connection import ConnectionFactory

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.listener import Listener
    from pubsub.broker.sessions import Session
    from pubsub.protocols.spot.role import Role

SETTINGS: tuple[Setting, ...] = (
    Setting("peers", PEERS, "", "a broker to share topics with; may be repeated", flag="peer"),
    Setting("sync", SECONDS, 10, "seconds between two queries for the topics that a peer hosts"),
    Setting("query-timeout", SECONDS, 2, "seconds that a peer has to answer a query"),
    Setting(
        "confirm-seconds", number(0.1, 3600), 30, "seconds that a peer has to confirm messages"
    ),
    Setting(
        "heartbeat",
        number(1, 3600),
        2,
        "seconds between two heartbeats; a peer that is silent for three times as long is gone",
    ),
    Setting("max-message", SIZE, "1M", "bytes that one frame may have"),
    Setting("max-subscriptions", integer(0, 10**9), 10_000, "subscriptions of a connection"),
)


class _IdentityOwner:
    """The owner of any session: a second client with the same identity displaces nothing."""

    def displaced(self) -> None:
        """See ``Owner``."""


_IDENTITY_OWNER = _IdentityOwner()


class SpotConnection(ZmtpConnection):
    """A socket that has connected to a listener."""

    _ticks_since_ping = 0

    def __init__(self, factory: SpotFactory) -> None:
        super().__init__(factory.listener, factory.limits)
        self._factory = factory

    def connectionMade(self) -> None:
        """See ``Connection``."""
        super().connectionMade()
        if not self.closing:
            self.start()

    def handshake_done(self) -> Role:
        """See ``ZmtpConnection``: our socket type, and so our READY, depends on the peer's."""
        ours = SERVER_TYPES.get(self.handshake.socket_type)
        if ours is None:
            raise ZmtpError("socket-type", error(b"Invalid socket type"))
        properties = {NODE: b"%015x" % self.listener.dispatcher.run_id}
        if self.is_node:
            properties[EPOCH] = self.listener.store.epoch.encode()
        self.reply(ready(ours, properties))
        self.known = self._factory.known[ours]
        if ours == b"ROUTER":
            factory = self._factory
            return RouterSide(self, factory.mixes, factory.prefix_readers, self._session())
        if ours == b"XPUB":
            return XPubSide(self, self._factory.prefix_readers)
        if self.handshake.has_commands:
            self.reply(encode_command(Command(b"SUBSCRIBE")))
        else:
            self.reply(encode_message([b"\x01"]))
        return XSubSide(self, self._factory.mixes)

    def _session(self) -> Session | None:
        """Open or resume the peer's session; None for a peer without an identity (spot §3.5)."""
        identity = self.handshake.metadata.get(b"identity", b"")
        if not identity or self.is_node:
            return None
        sessions, kind = self.listener.sessions, self.listener.session_kind("spot")
        session = sessions.absent(kind, identity)
        if session is not None:
            sessions.resume(session, _IDENTITY_OWNER)
            return session
        try:
            return sessions.open(kind, identity, _IDENTITY_OWNER)
        except Refused as refused:
            self.refuse(refused.reason)
            return None

    def sweep(self, now: float) -> None:
        """See ``Client``. A broker that is held from reading gets heartbeats from here."""
        super().sweep(now)
        self._ticks_since_ping += 1
        if self._ticks_since_ping < self.listener.settings["heartbeat"]:
            return
        self._ticks_since_ping = 0
        if self.is_node and not self.closing and not self.output_full:
            self.reply(ping(b""))


class SpotFactory(ConnectionFactory):
    """Builds the connections of one listener."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.prefix_readers = listener.shared(
            "spot-prefix-readers", lambda: PrefixReaders(listener.topics)
        )
        self.limits = FrameLimits(frame=listener.settings["max-message"])
        # By our socket type: a ROUTER and an XSUB read the same bytes differently.
        self.mixes = AddressMixes(listener.router, self._topic_of)
        self.known: Mapping[bytes, KnownPublications] = {
            ours: KnownPublications(
                self.limits.frame, listener.memory, listener.at_tick_end, self.mixes.clear
            )
            for ours in SERVER_TYPES.values()
        }

    def _topic_of(self, publication: Publication) -> Topic:
        return self.listener.topics.named(publication.topic)

    def buildProtocol(self, addr: IAddress | None) -> SpotConnection:
        """See IProtocolFactory."""
        return SpotConnection(self)


def make_factory(listener: Listener) -> IProtocolFactory:
    """See ``IWireProtocol``; also joins the cluster of the configured peers."""
    for peer in listener.settings["peers"]:
        listener.shared("spot-cluster", lambda: Cluster(listener)).join(peer)
    return SpotFactory(listener)
