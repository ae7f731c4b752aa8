"""A blocking publisher for fast.

PUBLISH is not acknowledged, but refusals are reported, and packets are handled in order. So the
publisher sends an UNSUBSCRIBE that is certain to be refused; its refusal shows that everything
before it has been handled. A listener with ``errors=off`` sends none, and publishing then fails.
"""

from __future__ import annotations

from struct import Struct

from pubsub.broker.topics import fnv1a32, topic_name
from pubsub.errors import ConfigurationError, InvalidTopicName
from pubsub.kernel import Columns
from pubsub.protocols.fast.client_connection import NO_TOPIC, SubscriberConnection
from pubsub.protocols.fast.client_publisher import PublisherConnection
from pubsub.protocols.fast.codec import (
    PUBLISH,
    TYPES,
    Create,
    Error,
    ErrorCode,
    FastError,
    Unsubscribe,
    decode,
    encode,
)
from pubsub.settings import SIZE, Setting
from pubsub.wire.blocking_publisher import Address, BlockingPublisher, ConnectionBroken
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide, PublisherOptions, TokenUse
from pubsub.wire.client_wire import ClientWire, Role, Traits, WireConnection, WireOptions

_TAIL = Struct(">II")
_UNSUBSCRIBE = TYPES[Unsubscribe]
_CREATE = TYPES[Create]
# A topic id that no topic has.
_NO_TOPIC = 0
MAX_TOKEN = 255


class FastPublisher(BlockingPublisher):
    """Publishes to topics with the token's queue key; topics that do not exist are created.

    The sender is the token's ``sub``.
    """

    protocol = "fast"

    def __init__(self, address: Address, token: str) -> None:
        super().__init__(address)
        self._token = token.encode()
        if not 0 < len(self._token) <= MAX_TOKEN:
            raise self.impossible(f"a token has 1 to {MAX_TOKEN} bytes")
        self._head = bytes((PUBLISH, len(self._token))) + self._token
        self._topics: dict[str, int] = {}

    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        number = self._topics.get(topic)
        if number is None:
            number = self._topics[topic] = fnv1a32(topic.encode())
            self._create_if_missing(topic, number)
        return self._head + _TAIL.pack(number, len(payload)) + payload

    def _create_if_missing(self, topic: str, number: int) -> None:
        """Create the topic if it does not exist; CREATE would change the flags of one that does."""
        self.stream.send(encode(Unsubscribe(self._token, number)))
        if Error(_UNSUBSCRIBE, ErrorCode.NO_SUCH_TOPIC, number) in self._errors():
            self.stream.send(encode(Create(self._token, topic.encode(), 0)))
            for error in self._errors():
                if error.offending == _CREATE:
                    raise self.refused(f"topic {topic!r}: {_name(error.code)}")

    def confirm(self, count: int, last: bool) -> None:
        errors = [error for error in self._errors() if error.offending == PUBLISH]
        if errors:
            raise self.refused(_name(errors[0].code), len(errors))

    def _errors(self) -> list[Error]:
        """Return the errors of everything that was sent."""
        errors: list[Error] = []
        try:
            self.stream.send(encode(Unsubscribe(self._token, _NO_TOPIC)))
            while True:
                packet = self.stream.receive(decode)
                if not isinstance(packet, Error):
                    continue
                if (packet.offending, packet.topic_id) == (_UNSUBSCRIBE, _NO_TOPIC):
                    break
                errors.append(packet)
        except FastError:
            raise self.refused("the broker does not speak fast") from None
        except ConnectionBroken:
            # The broker reported errors before it closed the connection.
            if errors:
                raise self.refused(_name(errors[-1].code), len(errors)) from None
            raise
        if packet.code != ErrorCode.NO_SUCH_TOPIC:
            raise self.refused(_name(packet.code))
        return errors


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"code {code}"


class FastWire(ClientWire):
    """fast with one token for all requests; the sender is the token's ``sub``."""

    name = "fast"
    traits = Traits(Level.HANDLED)

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        self._token = (options.token or "").encode()
        if not 0 < len(self._token) <= MAX_TOKEN:
            raise ConfigurationError(f"token: fast needs one of 1 to {MAX_TOKEN} bytes")
        self._limit: int = options.values["max-payload"]

    def topic_problem(self, topic: str) -> str:
        """See ``ClientWire``."""
        try:
            name = topic_name(topic)
        except InvalidTopicName as error:
            return str(error)
        return "its id is 0" if fnv1a32(name.encode()) == NO_TOPIC else ""

    def payload_problem(self, columns: Columns) -> str:
        """See ``ClientWire``."""
        size, limit = columns.largest, self._limit
        return "" if size <= limit else f"{size} bytes are more than {limit}"

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``."""
        if role is Role.PUBLISHER:
            return PublisherConnection(self._token, self._limit)
        return SubscriberConnection(self._token)


def make_publisher(options: PublisherOptions) -> FastPublisher:
    """See ``ClientSide``."""
    return FastPublisher(options.address, options.token or "")


CLIENT = ClientSide(
    make_publisher,
    token=TokenUse.NEEDED,
    parameters=(Setting("max-payload", SIZE, "1M", "that of the listener"),),
    make_wire=FastWire,
)
