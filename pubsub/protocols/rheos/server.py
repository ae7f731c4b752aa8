"""rheos's listener: its settings, and the factory of its connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocolFactory

from pubsub.protocols.rheos.connection import RheosConnection
from pubsub.protocols.rheos.listener_state import ListenerState
from pubsub.settings import Setting, choice, integer
from pubsub.wire.connection import ConnectionFactory

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.listeners.listener import Listener

_BILLION = 10**9
SETTINGS: tuple[Setting, ...] = (
    Setting("layout", choice("spec", "original"), "spec", "layout of requests"),
    Setting(
        "checksum",
        choice("off", "crc32"),
        "off",
        "checksum at the end of requests and acknowledgments",
    ),
    Setting(
        "envelope",
        choice("none", "topic"),
        "none",
        "deliver messages alone, or with their topic's name",
    ),
    Setting("max-ids", integer(1, _BILLION), 1000, "client ids of a connection"),
    Setting("max-subscriptions", integer(0, _BILLION), 10_000, "subscriptions of a client id"),
)


class RheosFactory(ConnectionFactory):
    """Builds the connections of one listener."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.shared = ListenerState(listener)

    def buildProtocol(self, addr: IAddress | None) -> RheosConnection:
        """See IProtocolFactory."""
        return RheosConnection(self.listener, self.shared)


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    return RheosFactory(listener)
