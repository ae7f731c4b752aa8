"""rheos's client: the parameters of its URLs, and its wire."""

from __future__ import annotations

import secrets
from uuid import UUID

from pubsub.broker.topic_space.topic_names import MAX_NAME
from pubsub.errors import ConfigurationError
from pubsub.protocols.rheos.client_connection import (
    ListenerLayout,
    PublisherConnection,
    SubscriberConnection,
)
from pubsub.protocols.rheos.codec import (
    MAX_PAYLOAD,
    NIL,
    Codec,
)
from pubsub.protocols.rheos.response_encoding import sender_id
from pubsub.settings import Setting, choice
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide
from pubsub.wire.client_wire import ClientWire, Role, Traits, WireConnection, WireOptions

_UUID_BYTES = 16
_NAME_LENGTH = 2


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
        self._layout = ListenerLayout(codec, values["envelope"] == "topic")
        if not self._layout.envelope:
            self.single_topic = "set envelope=topic in the listener and in the URL"
        self._client_id = _client_id(options.client_id)
        data_length = codec.layout.data_length
        # The room that is left for the message does not depend on the length of the topic's name.
        room = MAX_PAYLOAD - _NAME_LENGTH - MAX_NAME - data_length
        self.limit = min(room, 256**data_length - 1)

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``. Each subscriber has an id of its own, as it cannot unsubscribe."""
        if role is Role.PUBLISHER:
            return PublisherConnection(self._layout, self._client_id)
        return SubscriberConnection(self._layout, secrets.token_bytes(_UUID_BYTES))


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


CLIENT = ClientSide(
    RheosWire,
    port=7072,
    parameters=(
        Setting("layout", choice("spec", "original"), "spec", "that of the listener"),
        Setting("checksum", choice("none", "crc32"), "none", "that of the listener"),
        Setting("envelope", choice("none", "topic"), "none", "that of the listener"),
    ),
)
