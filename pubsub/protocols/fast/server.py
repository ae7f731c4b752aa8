"""fast's settings, and the factory of a listener (fast §5.3, §7)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocolFactory

from pubsub.errors import NotConfigured
from pubsub.protocols.fast.connection import FastConnection
from pubsub.protocols.fast.listener_state import ListenerState
from pubsub.settings import BOOLEAN, SECONDS, SIZE, Setting, integer
from pubsub.wire.connection import ConnectionFactory

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.listeners.listener import Listener

SETTINGS: tuple[Setting, ...] = (
    Setting("max-payload", SIZE, "1M", "largest payload, in bytes"),
    Setting("max-subscriptions", integer(0, 10**9), 10_000, "subscriptions of a connection"),
    Setting("errors", BOOLEAN, True, "report refusals with ERROR; off: send nothing, as specified"),
    Setting("require-create", BOOLEAN, False, "require the permission `create` in CREATE"),
    Setting(
        "rotation-grace",
        SECONDS,
        0,
        "seconds to subscribe again with the new key after a rotation; 0: not required",
    ),
)


class FastFactory(ConnectionFactory):
    """Builds the connections of one listener."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self.shared = ListenerState(listener)

    def buildProtocol(self, addr: IAddress | None) -> FastConnection:
        """See IProtocolFactory."""
        return FastConnection(self.listener, self.shared)


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    if not listener.tokens.ring.has_issuers:
        raise NotConfigured(
            "no master secret is configured; make one with "
            "`pubsub secret FILE` and give it with --secret-file FILE"
        )
    listener.check_keys_itself()
    listener.authenticates_requests()
    return FastFactory(listener)
