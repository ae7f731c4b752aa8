"""fast's client: the parameters of its URLs, and its wire."""

from __future__ import annotations

from pubsub.broker.topic_space.topic_names import fnv1a32
from pubsub.errors import ConfigurationError
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
        self.use_token(options.token or "")
        self.limit = options.values["max-payload"]

    def use_token(self, token: str) -> None:
        """See ``ClientWire``."""
        raw = token.encode()
        if not 0 < len(raw) <= MAX_TOKEN:
            raise ConfigurationError(f"token: fast needs one of 1 to {MAX_TOKEN} bytes")
        self._token = raw

    def topic_problem(self, topic: str) -> str:
        """See ``ClientWire``."""
        problem = super().topic_problem(topic)
        if not problem and fnv1a32(topic.encode()) == NO_TOPIC:
            problem = "its id is 0"
        return problem

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``."""
        if role is Role.PUBLISHER:
            return PublisherConnection(self._token, self.limit)
        return SubscriberConnection(self._token)


CLIENT = ClientSide(
    FastWire,
    port=7074,
    token=TokenUse.NEEDED,
    parameters=(Setting("max-payload", SIZE, "1M", "that of the listener"),),
)
