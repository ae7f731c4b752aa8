"""A blocking publisher for nsd, where every request has a response.

On a sync channel the response is sent when the message is on disk. A message is published on the
channel of an identity. The identity of each topic has its name and is opened first.
"""

from __future__ import annotations

import hashlib
import json
import secrets

from pubsub.errors import ConfigurationError
from pubsub.kernel import Columns
from pubsub.protocols.nsd import client_connection
from pubsub.protocols.nsd.client_subscriber import NsdSession, NsdSubscriber
from pubsub.protocols.nsd.codec import MAX_LINE, MAX_NAME
from pubsub.wire.blocking_publisher import Address, BlockingPublisher
from pubsub.wire.client_events import Level
from pubsub.wire.client_side import ClientSide, PublisherOptions
from pubsub.wire.client_wire import ClientWire, Role, Traits, WireConnection, WireOptions

_SUCCESS = "SuccessResponse"
_SHOWN = 200
# Bytes of a line around the body, at most: the names of topic and sender, escaped.
_AROUND = 4096


class NsdPublisher(BlockingPublisher):
    """Publishes text: payloads that are not UTF-8 are an error."""

    protocol = "nsd"

    def __init__(self, address: Address) -> None:
        super().__init__(address)
        self._opened: set[str] = set()
        self._requests = 0

    def encode(self, topic: str, payload: bytes, sender: bytes | None) -> bytes:
        try:
            body = payload.decode()
        except UnicodeDecodeError:
            raise self.impossible("the value is not UTF-8") from None
        before = b""
        if topic not in self._opened:
            self._opened.add(topic)
            before = _line({"_class": "OpenRequest", "identity": topic})
            self._requests += 1
        name = "" if sender is None else sender.decode(errors="replace")
        message = {"_class": "Message", "from": name, "when": 0, "body": body}
        line = _line({"_class": "PublishRequest", "identity": topic, "message": message})
        if len(line) > MAX_LINE:
            raise self.impossible(f"{len(payload)} bytes; the limit of a line is {MAX_LINE}")
        self._requests += 1
        return before + line

    def confirm(self, count: int, last: bool) -> None:
        requests, self._requests = self._requests, 0
        errors = [error for _ in range(requests) if (error := self._error()) is not None]
        if errors:
            raise self.refused(errors[0], len(errors))

    def _error(self) -> str | None:
        """Return the error in the next response, if any."""
        line = self.stream.receive(_next_line)
        try:
            answer = json.loads(line)
            if answer["_class"] == _SUCCESS:
                return None
            return str(answer["error"])[:_SHOWN]
        except (ValueError, KeyError, TypeError):
            return "the broker does not speak nsd"


def _line(request: dict[str, object]) -> bytes:
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _next_line(data: bytes, at: int) -> tuple[bytes, int] | None:
    end = data.find(b"\n", at)
    return None if end < 0 else (data[at:end], end + 1)


class NsdWire(ClientWire):
    """nsd. Of each topic that a client subscribes to, the identity is made up from its id.

    Without an id it is random, and given up when the client says goodbye.
    """

    name = "nsd"
    traits = Traits(
        Level.STORED, resumes=True, survives=True, history=True, offsets=True, senders=True
    )

    def __init__(self, options: WireOptions) -> None:
        super().__init__(options)
        if len(options.client_id) > MAX_NAME:
            raise ConfigurationError(f"client id: nsd takes up to {MAX_NAME} bytes")
        self._name = options.client_id.decode(errors="replace")
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

    def connect(self, role: Role, session: object = None) -> WireConnection:
        """See ``ClientWire``."""
        if role is Role.PUBLISHER:
            return client_connection.NsdPublisher(self._name)
        known = session if isinstance(session, NsdSession) else None
        return NsdSubscriber(self._identity, known, keep=bool(self._name))

    def _identity(self, topic: str) -> str:
        """Return the identity under which a topic is read: short, whatever the names."""
        text = f"{self._identities}\n{topic}".encode()
        return f"reader-{hashlib.sha256(text).hexdigest()[:32]}"


def make_publisher(options: PublisherOptions) -> NsdPublisher:
    """See ``ClientSide``."""
    return NsdPublisher(options.address)


CLIENT = ClientSide(make_publisher, columns=("key",), make_wire=NsdWire, port=7071)
