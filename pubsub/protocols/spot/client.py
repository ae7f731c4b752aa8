"""A blocking publisher for spot, as a DEALER.

PUBLISH has no reply. Messages take effect in order, so the PONG to a PING confirms that all
messages before it were handled. The final QUERY shows that no topic was refused as a whole: a topic
is listed once a message could be published on it.
"""

from __future__ import annotations

import secrets

from pubsub.broker.topics import topic_name
from pubsub.errors import ConfigurationError, InvalidTopicName
from pubsub.kernel import Columns
from pubsub.protocols.spot.client_connection import (
    PublisherConnection,
    SpotSession,
    SubscriberConnection,
)
from pubsub.protocols.spot.codec import (
    PUBLISH,
    Query,
    QueryResponse,
    SpotError,
    decode_request,
    encode_request,
)
from pubsub.protocols.spot.heads import publish_prefix
from pubsub.protocols.spot.zmtp import (
    GREETING,
    Command,
    FrameLimits,
    Handshake,
    Partial,
    Unit,
    ZmtpError,
    decode,
    encode_message,
    frame_head,
    ping,
    pong,
    ready,
)
from pubsub.settings import SIZE, Setting
from pubsub.wire.blocking_publisher import Address, BlockingPublisher
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide, PublisherOptions
from pubsub.wire.client_wire import ClientWire, Role, Traits, WireConnection, WireOptions

# A list of topics is one message with a frame for each topic.
_LIMITS = FrameLimits(frames=1_000_000)
_MAX_FRAME = _LIMITS.frame
_SHOWN = 3
# Bytes of a random number in hex, which makes the identities of subscribers their own.
_NUMBER_BYTES = 8
# RFC 37 allows 255; a subscriber adds a full stop and the number.
_MAX_CLIENT_ID = 255 - 1 - 2 * _NUMBER_BYTES


class SpotPublisher(BlockingPublisher):
    """Publishes messages; the sender, if there is one, is their origin."""

    protocol = "spot"

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._published: set[bytes] = set()
        self._pings = 0

    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        if len(payload) > _MAX_FRAME:
            raise self.impossible(f"{len(payload)} bytes; the limit is {_MAX_FRAME}")
        if self._stream is None:
            self._shake()
        name = topic.encode()
        self._published.add(name)
        if sender is not None:
            return encode_message([b"", PUBLISH, sender, name, payload])
        return publish_prefix(name) + frame_head(len(payload)) + payload

    def _shake(self) -> None:
        self.stream.send(GREETING + ready(b"DEALER"))
        handshake = Handshake()
        try:
            while not handshake.done:
                self.stream.receive(lambda data, at: _step(handshake, data, at))
        except ZmtpError as error:
            raise self.refused(f"not a spot broker ({error.reason})") from None
        if handshake.socket_type != b"ROUTER":
            raise self.refused("the socket is not a ROUTER")

    def confirm(self, count: int, last: bool) -> None:
        self._pings += 1
        context = self._pings.to_bytes(8, "big")
        self.stream.send(ping(context))
        while Command(b"PONG", context) not in self._unit().commands:
            pass
        if last:
            self._check_topics()

    def _check_topics(self) -> None:
        self.stream.send(encode_request(Query()))
        while True:
            frames = self._unit().frames
            try:
                answer = decode_request(frames) if frames else None
            except SpotError:
                raise self.refused("the reply is malformed") from None
            if isinstance(answer, QueryResponse):
                break
        missing = sorted(self._published - set(answer.topics))
        if missing:
            names = ", ".join(repr(name.decode()) for name in missing[:_SHOWN])
            raise self.refused(
                f"{len(missing)} topics are not hosted there, among them {names}; they are not "
                "permitted, or another broker hosts them"
            )

    def _unit(self) -> Unit:
        try:
            unit = self.stream.receive(self._decode)
        except ZmtpError as error:
            raise self.refused(f"a reply violates ZMTP ({error.reason})") from None
        for command in unit.commands:
            if command.name == b"PING":
                self.stream.send(pong(command))
        return unit

    @staticmethod
    def _decode(data: bytes, at: int) -> tuple[Unit, int] | None:
        unit = decode(data, at, _LIMITS)
        return None if isinstance(unit, Partial) else (unit, unit.end)


def _step(handshake: Handshake, data: bytes, at: int) -> tuple[None, int] | None:
    after, _need = handshake.consume(data, at)
    return None if after == at else (None, after)


class SpotWire(ClientWire):
    """spot as a DEALER whose identity is the client id.

    A subscriber's identity has a random number too: a broker lets whoever knows an identity resume
    its subscriptions.
    """

    name = "spot"
    traits = Traits(Level.HANDLED, resumes=True, senders=True, prefixes=True)

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        if len(options.client_id) > _MAX_CLIENT_ID:
            raise ConfigurationError(f"client id: spot takes up to {_MAX_CLIENT_ID} bytes")
        number = secrets.token_hex(_NUMBER_BYTES).encode()
        self._subscriber = options.client_id + b"." + number
        self._limit: int = options.values["max-message"]

    def topic_problem(self, topic: str) -> str:
        """See ``ClientWire``."""
        try:
            topic_name(topic)
        except InvalidTopicName as error:
            return str(error)
        return ""

    def payload_problem(self, columns: Columns) -> str:
        """See ``ClientWire``."""
        size, limit = columns.largest, self._limit
        return "" if size <= limit else f"{size} bytes are more than {limit}"

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``."""
        if role is Role.PUBLISHER:
            return PublisherConnection(self.options.client_id)
        resume = session if isinstance(session, SpotSession) else None
        return SubscriberConnection(self._subscriber, resume)


def make_publisher(options: PublisherOptions) -> SpotPublisher:
    """See ``ClientSide``."""
    return SpotPublisher(options.address)


CLIENT = ClientSide(
    make_publisher,
    columns=("key",),
    parameters=(Setting("max-message", SIZE, "1M", "that of the listener"),),
    make_wire=SpotWire,
)
