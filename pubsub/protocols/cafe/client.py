"""A blocking publisher for cafe.

PUBLISH is not acknowledged, but a refusal is answered with an ERROR, and frames take effect in
order. If there is no ERROR before the PONG to a PING, all messages before the PING were published.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from pubsub.errors import ConfigurationError
from pubsub.kernel import Columns
from pubsub.protocols.cafe.channels import CHANNELS
from pubsub.protocols.cafe.client_connection import CafeSession, Naming
from pubsub.protocols.cafe.client_id import RESUME
from pubsub.protocols.cafe.client_roles import CafePublisher as PublishingConnection
from pubsub.protocols.cafe.client_roles import CafeSubscriber
from pubsub.protocols.cafe.codec import (
    MAGIC,
    MAX_MESSAGE,
    OPCODES,
    CafeError,
    Disconnect,
    Error,
    ErrorCode,
    Frame,
    HandshakeAck,
    HandshakePub,
    Ping,
    Pong,
    Publish,
    decode,
    encode,
)
from pubsub.settings import Setting
from pubsub.wire.blocking_publisher import (
    Address,
    BlockingPublisher,
    BlockingStream,
    ConnectionBroken,
)
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide, PublisherOptions
from pubsub.wire.client_wire import ClientWire, Role, Traits, WireConnection, WireOptions

_PUBLISH = Struct("<HBIB")
_MAX_CLIENT_ID = 255
_MAX_NAME = 231
DEFAULT_CHANNELS: Mapping[int, str] = {number: f"cafe/{number}" for number in range(256)}


class CafePublisher(BlockingPublisher):
    """Publishes as the client ``client_id``; ``channels`` are the topics of the channels."""

    protocol = "cafe"

    def __init__(
        self,
        address: Address,
        channels: Mapping[int, str] = DEFAULT_CHANNELS,
        client_id: bytes = b"",
    ) -> None:
        super().__init__(address)
        self._channels = {name: channel for channel, name in channels.items()}
        self._client_id = client_id[:_MAX_CLIENT_ID]

    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        channel = self._channels.get(topic)
        if channel is None:
            raise self.impossible(f"topic {topic!r} has no channel")
        if len(payload) > MAX_MESSAGE:
            raise self.impossible(f"{len(payload)} bytes; the limit is {MAX_MESSAGE}")
        if self._stream is None:
            self._shake(self.stream, channel)
        head = _PUBLISH.pack(MAGIC, OPCODES[Publish], 1 + len(payload), channel)
        return head + payload

    def _shake(self, stream: BlockingStream, channel: int) -> None:
        stream.send(encode(HandshakePub(channel, self._client_id)))
        answer = self._receive()
        if isinstance(answer, Error):
            raise self.refused(_name(answer.code))
        if not isinstance(answer, HandshakeAck) or answer.status:
            status = answer.status if isinstance(answer, HandshakeAck) else 0
            raise self.refused(_name(status))

    def _receive(self) -> Frame:
        try:
            return self.stream.receive(decode)
        except CafeError as error:
            raise self.refused(f"the broker does not speak cafe ({error})") from None

    def confirm(self, count: int, last: bool) -> None:
        codes: list[int] = []
        try:
            self.stream.send(encode(Ping()))
            while not isinstance(answer := self._receive(), Pong):
                if isinstance(answer, Error):
                    codes.append(answer.code)
        except ConnectionBroken:
            # The broker sends an ERROR before it closes the connection.
            if not codes:
                raise
        if codes:
            raise self.refused(_name(codes[0]), len(codes))
        if last:
            self.stream.send(encode(Disconnect()))


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"code {code}"


class CafeWire(ClientWire):
    """cafe with the channels of the parameter ``channels``, by default those named ``cafe/N``."""

    name = "cafe"
    traits = Traits(Level.HANDLED, resumes=True, timestamps=True)

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        if len(options.client_id) > _MAX_NAME or RESUME in options.client_id:
            raise ConfigurationError(
                f"client id: cafe takes up to {_MAX_NAME} bytes without {RESUME.decode()!r}"
            )
        topics: Mapping[int, str] = options.values["channels"]
        channels = {name: channel for channel, name in topics.items()}
        self._naming = Naming(options.client_id, topics, channels)

    def topic_problem(self, topic: str) -> str:
        """See ``ClientWire``."""
        return "" if topic in self._naming.channels else "it is not the topic of a channel"

    def payload_problem(self, columns: Columns) -> str:
        """See ``ClientWire``."""
        size = columns.largest
        return "" if size <= MAX_MESSAGE else f"{size} bytes are more than {MAX_MESSAGE}"

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``."""
        resume = session if isinstance(session, CafeSession) else None
        if role is Role.PUBLISHER:
            return PublishingConnection(self._naming, resume)
        return CafeSubscriber(self._naming, resume)


def make_publisher(options: PublisherOptions) -> CafePublisher:
    """See ``ClientSide``."""
    return CafePublisher(options.address, options.values["channels"], options.client)


CLIENT = ClientSide(
    make_publisher,
    make_wire=CafeWire,
    port=7070,
    any_topic=False,
    options=(Setting("channels", CHANNELS, "0-255", "those of the listener"),),
)
