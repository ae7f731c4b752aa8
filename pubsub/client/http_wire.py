"""The HTTP API as a wire: its WebSocket, of the subprotocol ``pubsub.v1.json``. Sans-IO.

Messages are published and delivered in binary frames, so that payloads are sent as they are. Of
each topic, the position after the last message is kept, and continued from on the next connection.
``docs/websocket.md`` is the specification.
"""

from __future__ import annotations

from pubsub.client.http_connection import encode
from pubsub.client.http_roles import HttpPublisher, HttpSubscriber
from pubsub.client.http_session import HttpSession
from pubsub.kernel import Columns
from pubsub.settings import SIZE, Setting
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide, TokenUse
from pubsub.wire.client_wire import (
    ClientWire,
    Headers,
    Role,
    Traits,
    WireConnection,
    WireOptions,
    text_problem,
)

# Bytes of a request beside payload and headers, and of a header beside name and value, at most.
_AROUND, _AROUND_HEADER = 4096, 32


class HttpWire(ClientWire):
    """The broker's HTTP API."""

    name = "http"
    traits = Traits(
        Level.STORED, survives=True, history=True, senders=True, headers=True, prefixes=True
    )

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        self.limit = max(options.values["max-message"] - _AROUND, 0)

    def envelope_problem(
        self, columns: Columns, sender: bytes | None, headers: Headers | None
    ) -> str:
        """See ``ClientWire``. The headers are in base64."""
        size = columns.largest
        for name, value in (headers or {}).items():
            size += len(encode(name).encode()) + (len(value) + 2) // 3 * 4 + _AROUND_HEADER
        if headers and size > self.limit:
            return f"{size} bytes with its headers are more than {self.limit}"
        return text_problem(sender)

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
