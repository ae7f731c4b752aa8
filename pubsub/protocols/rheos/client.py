"""A blocking publisher for rheos, which acknowledges every request (on a sync topic from the disk).

Topics are created before the first message; FAILED for a topic that exists is ignored.
"""

from __future__ import annotations

import secrets
from uuid import UUID

from pubsub.broker.topics import MAX_NAME, topic_name
from pubsub.errors import ConfigurationError, InvalidTopicName
from pubsub.kernel import Columns
from pubsub.protocols.rheos.client_connection import (
    Format,
    PublisherConnection,
    SubscriberConnection,
)
from pubsub.protocols.rheos.codec import (
    HEADER_SIZE,
    MAX_PAYLOAD,
    NIL,
    SUCCESS,
    Ack,
    Codec,
    Opcode,
    Request,
    RheosError,
)
from pubsub.protocols.rheos.delivery import sender_id
from pubsub.settings import Setting, choice
from pubsub.wire.blocking_publisher import Address, BlockingPublisher
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide, PublisherOptions
from pubsub.wire.client_wire import ClientWire, Role, Traits, WireConnection, WireOptions

_UUID_BYTES = 16
_NAME_LENGTH = 2


class RheosPublisher(BlockingPublisher):
    """``layout`` and ``checksum`` must be those of the listener. The sender is a random UUID."""

    protocol = "rheos"

    def __init__(self, address: Address, layout: str = "spec", checksum: bool = False) -> None:
        super().__init__(address)
        self._codec = Codec(layout, checksum)
        self._client_id = secrets.token_bytes(_UUID_BYTES)
        self._created: set[str] = set()
        # For each request without a reply, whether it publishes.
        self._awaited: list[bool] = []

    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        name = topic.encode()
        before = b""
        if topic not in self._created:
            self._created.add(topic)
            before = self._codec.encode(Request(Opcode.CREATE, self._client_id, name))
            self._awaited.append(False)
        try:
            request = self._codec.encode(Request(Opcode.PUBLISH, self._client_id, name, payload))
        except OverflowError:
            raise self.impossible(f"{len(payload)} bytes are too many for this layout") from None
        if len(request) > HEADER_SIZE + MAX_PAYLOAD:
            raise self.impossible(f"{len(payload)} bytes are too many")
        self._awaited.append(True)
        return before + request

    def confirm(self, count: int, last: bool) -> None:
        failed = 0
        for publishes in self._awaited:
            failed += (self._acknowledgment().code != SUCCESS) and publishes
        self._awaited = []
        if failed:
            raise self.refused("FAILED; the broker's log has the reason", failed)

    def _acknowledgment(self) -> Ack:
        while True:
            try:
                reply = self.stream.receive(self._codec.decode_answer)
            except RheosError as error:
                raise self.refused(f"malformed reply ({error}); check the layout") from None
            if isinstance(reply, Ack):
                return reply


class RheosWire(ClientWire):
    """rheos in the layout, with the checksums and the envelopes of the listener.

    The sender is the client id, if that is a UUID, or the UUID that the broker makes from such a
    sender of another protocol.
    """

    name = "rheos"
    traits = Traits(Level.STORED, unsubscribes=False)

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        values = options.values
        codec = Codec(values["layout"], values["checksum"] == "crc32")
        self._form = Format(codec, values["envelope"] == "topic")
        if not self._form.envelope:
            self.single_topic = "set envelope=topic in the listener and in the URL"
        self._client_id = _client_id(options.client_id)
        data_length = codec.layout.data_length
        # The room that is left for the message does not depend on the length of the topic's name.
        room = MAX_PAYLOAD - _NAME_LENGTH - MAX_NAME - data_length
        self._limit = min(room, 256**data_length - 1)

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
        """See ``ClientWire``. Each subscriber has an id of its own, as it cannot unsubscribe."""
        if role is Role.PUBLISHER:
            return PublisherConnection(self._form, self._client_id)
        return SubscriberConnection(self._form, secrets.token_bytes(_UUID_BYTES))


def _client_id(name: bytes) -> bytes:
    """Return the client id for a client of this name; raises ConfigurationError."""
    if not name:
        return secrets.token_bytes(_UUID_BYTES)
    try:
        found = UUID(name.decode()).bytes
    except ValueError:
        return sender_id("", name)
    if found == NIL:
        raise ConfigurationError("client id: rheos does not take the nil UUID")
    return found


def make_publisher(options: PublisherOptions) -> RheosPublisher:
    """See ``ClientSide``."""
    values = options.values
    return RheosPublisher(options.address, values["layout"], values["checksum"] == "crc32")


CLIENT = ClientSide(
    make_publisher,
    make_wire=RheosWire,
    parameters=(
        Setting("layout", choice("spec", "original"), "spec", "that of the listener"),
        Setting("checksum", choice("none", "crc32"), "none", "that of the listener"),
        Setting("envelope", choice("none", "topic"), "none", "that of the listener"),
    ),
)
