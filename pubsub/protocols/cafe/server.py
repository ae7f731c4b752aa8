"""cafe's server: the stream connection, the factory, the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.interfaces import IProtocolFactory
from zope.interface import implementer

from pubsub.errors import Refused
from pubsub.interfaces import IDatagramSource
from pubsub.protocols.cafe.channels import CHANNELS, Channels
from pubsub.protocols.cafe.codec import HEADER, ErrorCode
from pubsub.protocols.cafe.conversation import Conversations
from pubsub.protocols.cafe.datagram import CafeDatagrams
from pubsub.protocols.cafe.handshake import NO_PASSWORD, OPTIONAL, REQUIRED
from pubsub.protocols.cafe.refusals import GOODBYE, code_of, error
from pubsub.protocols.cafe.served_client import DISPLACED, ClientState, label_of
from pubsub.settings import BOOLEAN, NETWORKS, SECONDS, Setting, choice
from pubsub.wire.connection import Connection, ConnectionFactory
from pubsub.wire.replies import reply_to_messages

if TYPE_CHECKING:
    from collections.abc import Iterable

    from twisted.internet.interfaces import IAddress

    from pubsub.broker.clients.sessions import Session
    from pubsub.broker.credentials.passwords import PasswordCheck
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.publishing.publisher import PublishingConnection
    from pubsub.broker.topic_space.topics import Topic

SETTINGS: tuple[Setting, ...] = (
    Setting(
        "client-id-password",
        choice(NO_PASSWORD, OPTIONAL, REQUIRED),
        NO_PASSWORD,
        "whether the ClientID may or must be USER:PASSWORD, of the users in password-file",
    ),
    Setting("channels", CHANNELS, "0-255", "channels of the listener, and their topics"),
    Setting(
        "udp",
        BOOLEAN,
        False,
        "serve UDP too, on the same port; a source address proves nothing",
        flag="udp",
    ),
    Setting(
        "udp-packing",
        BOOLEAN,
        False,
        "send several frames in a datagram of up to 1400 bytes; the client must expect it",
        flag="udp-packing",
    ),
    Setting(
        "udp-timeout",
        SECONDS,
        300,
        "seconds without a datagram after which a UDP client's session ends; 0: never",
        flag="udp-timeout",
    ),
    Setting(
        "udp-trusted",
        NETWORKS,
        "",
        "networks whose UDP subscribers need not send anything, beside loopback",
        flag="udp-trusted",
    ),
)


class CafeConnection(Connection):
    """A client on TCP or TLS: a ``ServedClient`` over a stream."""

    has_handshake = True
    name = b""
    session: Session | None = None
    password_check: PasswordCheck | None = None

    def __init__(self, listener: Listener, conversations: Conversations) -> None:
        super().__init__(listener)
        self._conversations = conversations
        # An attribute of the class would be searched for with each read.
        self.state = ClientState.NEW

    def consume(self, data: bytes) -> tuple[int, int]:
        """See ``Connection``."""
        publisher, conversations = self.publisher, self._conversations
        if publisher is not None and publisher.publish_alike(conversations.heads, data):
            return len(data), HEADER.size
        return conversations.consume(self, data)

    def pong(self, data: bytes) -> None:
        """See ``ServedClient``."""
        reply_to_messages(self, data)

    def hold_input(self) -> None:
        """See ``ServedClient``."""
        self.hold("password")

    def resume_input(self) -> None:
        """See ``ServedClient``."""
        if not self.closing:
            self.release("password")
            self.parse_buffered()

    @property
    def label(self) -> str:
        """See ``Connection``."""
        return label_of(self)

    @property
    def publishing(self) -> PublishingConnection | None:
        """See ``ServedClient``."""
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

    def shared_sessions(self) -> Iterable[str]:
        """See ``Connection``."""
        return () if self.session is None or not self.session.key else (self.session.key,)

    def displaced(self) -> None:
        """See ``ServedClient``."""
        self.abort(DISPLACED)

    def ended(self) -> None:
        """See ``Connection``."""
        self._conversations.ended(self)


@implementer(IDatagramSource)
class CafeFactory(ConnectionFactory):
    """Builds stream connections, and the datagram protocol beside them if it is enabled."""

    def __init__(self, listener: Listener) -> None:
        super().__init__(listener)
        channels = Channels(listener.settings["channels"], listener.topics)
        self._conversations = Conversations(listener, channels)

    def buildProtocol(self, addr: IAddress | None) -> CafeConnection:
        """See IProtocolFactory."""
        return CafeConnection(self.listener, self._conversations)

    def datagram_protocol(self) -> CafeDatagrams | None:
        """See IDatagramSource."""
        if not self.listener.settings["udp"]:
            return None
        return CafeDatagrams(self.listener)


def make_factory(listener: Listener) -> IProtocolFactory:
    """See IWireProtocol."""
    if listener.settings["client-id-password"] != NO_PASSWORD:
        listener.passwords.accept("client-id-password")
    listener.authenticates_requests(lambda settings: settings["client-id-password"] == REQUIRED)
    return CafeFactory(listener)
