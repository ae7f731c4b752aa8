"""nsd's client: the parameters of its URLs, and its wire."""

from __future__ import annotations

import hashlib
import secrets

from pubsub.errors import ConfigurationError
from pubsub.kernel import Columns
from pubsub.protocols.nsd import client_connection
from pubsub.protocols.nsd.client_subscriber import NsdSubscriber
from pubsub.protocols.nsd.codec import MAX_LINE, MAX_NAME
from pubsub.protocols.nsd.reading_session import NsdSession
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide
from pubsub.wire.client_wire import (
    ClientWire,
    Headers,
    Role,
    Traits,
    WireConnection,
    WireOptions,
    text_problem,
)

# Bytes of a line around the body, at most: the names of topic and sender, escaped.
_AROUND = 4096


class NsdWire(ClientWire):
    """nsd. Of each topic that a client subscribes to, the identity is made up from its id.

    Without an id it is random, and given up when the client says goodbye.
    """

    name = "nsd"
    traits = Traits(Level.STORED, survives=True, history=True, senders=True)

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        self._login = options.login
        self._name = options.client_id.decode(errors="replace")
        if options.login is not None:
            self._name = self._name or options.login.user
        if len(self._name.encode()) > MAX_NAME:
            raise ConfigurationError(f"client id: nsd takes up to {MAX_NAME} bytes")
        self._identities = self._name or f"client-{secrets.token_hex(8)}"

    def topic_problem(self, topic: str) -> str:
        """See ``ClientWire``."""
        return ""

    def payload_problem(self, columns: Columns) -> str:
        """See ``ClientWire``."""
        try:
            longest = 0
            for payload in columns.payloads():
                # Escaping takes up to six bytes for one.
                size = len(payload)
                if 6 * size > MAX_LINE - _AROUND:
                    size = len(client_connection.json_text(payload))
                else:
                    payload.decode()
                longest = max(longest, size)
        except UnicodeDecodeError:
            return "the payload is not UTF-8"
        if longest > MAX_LINE - _AROUND:
            return f"{longest} bytes are too many for a line"
        return ""

    def envelope_problem(
        self, columns: Columns, sender: bytes | None, headers: Headers | None
    ) -> str:
        """See ``ClientWire``."""
        return super().envelope_problem(columns, sender, headers) or text_problem(sender)

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``."""
        if role is Role.PUBLISHER:
            return client_connection.NsdPublisher(self._name, self._login)
        known = session if isinstance(session, NsdSession) else None
        address = self.options.host, self.options.port
        return NsdSubscriber(self._identity, known, bool(self._name), address, self._login)

    def _identity(self, topic: str, own: str) -> str:
        """Return the identity under which a topic is read: short for any names.

        ``own`` is the mark of a session, or empty if the next one has the same identity.
        """
        text = f"{self._identities}\n{topic}" + (f"\n{own}" if own else "")
        return f"reader-{hashlib.sha256(text.encode()).hexdigest()[:32]}"


CLIENT = ClientSide(NsdWire, columns=("key",), port=7071, logs_in=True)
