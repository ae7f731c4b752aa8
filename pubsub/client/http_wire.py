"""The HTTP API as a wire: its WebSocket, of the subprotocol ``pubsub.v1.json``. Sans-IO.

Messages are published and delivered in binary frames, so that payloads are sent as they are. Of
each topic, the position after the last message is kept, and continued from on the next connection.
``docs/websocket.md`` is the specification.
"""

from __future__ import annotations

from pubsub.client.http_roles import HttpPublisher, HttpSession, HttpSubscriber
from pubsub.settings import SIZE, Setting
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide, TokenUse
from pubsub.wire.client_wire import ClientWire, Role, Traits, WireConnection, WireOptions

# Bytes of a request beside the payload, at most.
_AROUND = 4096


class HttpWire(ClientWire):
    """The broker's HTTP API."""

    name = "http"
    traits = Traits(
        Level.STORED,
        resumes=True,
        survives=True,
        history=True,
        offsets=True,
        timestamps=True,
        senders=True,
        headers=True,
    )

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        self.limit = max(options.values["max-message"] - _AROUND, 0)

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``."""
        if role is Role.PUBLISHER:
            return HttpPublisher(self.options)
        return HttpSubscriber(self.options, session if isinstance(session, HttpSession) else None)


CLIENT = ClientSide(
    HttpWire,
    columns=("key", "headers"),
    token=TokenUse.OPTIONAL,
    port=7080,
    parameters=(Setting("max-message", SIZE, "1M", "that of the listener"),),
)
