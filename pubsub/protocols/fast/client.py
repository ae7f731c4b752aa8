"""fast's client: what its URLs contain, and its wire."""

from __future__ import annotations

from pubsub.broker.topics import fnv1a32, topic_name
from pubsub.errors import ConfigurationError, InvalidTopicName
from pubsub.kernel import Columns
from pubsub.protocols.fast.client_connection import NO_TOPIC, SubscriberConnection
from pubsub.protocols.fast.client_publisher import PublisherConnection
from pubsub.settings import SIZE, Setting
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide, TokenUse
from pubsub.wire.client_wire import ClientWire, Role, Traits, WireConnection, WireOptions

MAX_TOKEN = 255


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


CLIENT = ClientSide(
    FastWire,
    port=7074,
    token=TokenUse.NEEDED,
    parameters=(Setting("max-payload", SIZE, "1M", "that of the listener"),),
)
