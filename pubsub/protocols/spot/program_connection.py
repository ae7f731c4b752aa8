"""A SUB connected to a PUB or XPUB socket: its messages are published here (spot §7.6)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.protocols.spot.listener_roles import XSubSide
from pubsub.protocols.spot.outgoing_connection import OutgoingConnection, PeerEvents
from pubsub.protocols.spot.zmtp import Command, encode_command, encode_message, ping

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.protocols.spot.message_heads import Publication
    from pubsub.protocols.spot.role import SocketRole


class ProgramConnection(OutgoingConnection):
    """One connection to a program that only publishes."""

    socket_type = b"SUB"

    def __init__(self, listener: Listener, node: PeerEvents) -> None:
        super().__init__(listener, node)
        self._mixes = listener.shared("spot-program-mixes", partial(_make_mixes, listener))

    def handshake_done(self) -> SocketRole:
        """See ``ZmtpConnection``."""
        self.encrypt()
        role = XSubSide(self, self._mixes, self._node.endpoint.encode())
        if not self._is_publisher:
            self._node.set_publisher(False)
            self.abort("not a publisher")
            return role
        self.is_open = True
        if self.handshake.has_commands:
            self.reply(encode_command(Command(b"SUBSCRIBE")))
        else:
            self.reply(encode_message([b"\x01"]))
        self._node.opened(self)
        return role

    def send_ping(self) -> None:
        """See ``OutgoingConnection``."""
        self.reply(ping(b""))


def _make_mixes(listener: Listener) -> AddressMixes:
    def topic_of(publication: Publication) -> Topic:
        return listener.topics.existing(publication.topic)

    return AddressMixes(listener, topic_of)
