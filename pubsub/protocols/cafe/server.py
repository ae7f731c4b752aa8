"""cafe's server: the stream connection, the factory, the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocolFactory
from zope.interface import implementer

from pubsub.errors import Refused
from pubsub.interfaces import IDatagramSource
from pubsub.protocols.cafe.channels import CHANNELS, Channels
from pubsub.protocols.cafe.codec import ErrorCode
from pubsub.protocols.cafe.conversation import Conversation
from pubsub.protocols.cafe.datagram import CafeDatagrams
from pubsub.protocols.cafe.error_codes import GOODBYE, code_of, error
from pubsub.settings import BOOLEAN, Setting
from pubsub.wire.connection import Connection, ConnectionFactory

if TYPE_CHECKING:
    from twisted.internet.interfaces import IAddress

    from pubsub.broker.listener import Listener
    from pubsub.broker.publisher import PublishingConnection
    from pubsub.broker.topics import Topic

SETTINGS: tuple[Setting, ...] = (
    Setting("channels", CHANNELS, "0-255", "channels offered, and the topics they stand for"),
    Setting(
        "udp",
        BOOLEAN,
        False,
        "serve UDP too, on the same port; a source address proves nothing",
        flag="udp",
    ),
)


class CafeConnection(Conversation, Connection):
    """A client on TCP or TLS."""

    def __init__(self, listener: Listener, channels: Channels) -> None:
        Connection.__init__(self, listener)
        self._channels = channels

    @property
    def publishing(self) -> PublishingConnection | None:
        """See ``Link``."""
        return self

    def refusal(self, refused: Refused) -> bytes:
        """See ``Connection``."""
        return error(code_of(refused))

    def revoked(self, topic: Topic) -> None:
        """See ``Connection`` (cafe §5.4)."""
        self.reply(error(ErrorCode.UNAUTHORIZED))

    def goodbye(self) -> bytes:
        """See ``Connection``."""
        return GOODBYE


@implementer(IDatagramSource)
class CafeFactory(ConnectionFactory):
    """Builds stream connections, and the datagram protocol beside them if asked to."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        self._channels = Channels(listener.settings["channels"], listener.topics)

    def buildProtocol(self, addr: IAddress | None) -> CafeConnection:
        """See IProtocolFactory."""
        return CafeConnection(self.listener, self._channels)

    def datagram_protocol(self) -> CafeDatagrams | None:
        """See IDatagramSource."""
        if not self.listener.settings["udp"]:
            return None
        return CafeDatagrams(self.listener)


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    return CafeFactory(listener)
