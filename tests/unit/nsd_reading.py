"""nsd's client as it subscribes, and the responses to it, made by hand."""

from __future__ import annotations

import json
from typing import Any

from pubsub.protocols.nsd.client import NsdWire
from pubsub.protocols.nsd.reading_session import NsdSession
from pubsub.wire.client_events import Interest, Opened, Subscribed
from pubsub.wire.client_wire import Role, WireConnection, WireOptions
from tests.unit.nsd_lines import NOTHING, error, get

NEWS, SPORT = Interest("news"), Interest("sport")
MISSING = error("NO SUCH CHANNEL: news")


def make_wire(client_id: bytes = b"ada") -> NsdWire:
    return NsdWire(WireOptions(client_id))


WIRE = make_wire()


def identity(topic: str) -> str:
    """Return the identity of the client "ada" for a topic."""
    connection = WIRE.connect(Role.SUBSCRIBER)
    connection.unsubscribe(Interest(topic))
    name: str = json.loads(connection.take_output())["identity"]
    return name


def own_identity(connection: WireConnection, topic: str) -> str:
    """Return the identity of the session of ``connection`` for a topic."""
    session = connection.session
    assert isinstance(session, NsdSession)
    return WIRE._identity(topic, session.own)


READER, SPORT_READER = identity("news"), identity("sport")


def subscribing(topic: str = "news", **known: object) -> bytes:
    """Return a SubscribeRequest as the client writes it."""
    fields = {"identity": identity(topic), "channel": topic, "position": True, **known}
    request = {"_class": "SubscribeRequest", **fields}
    return json.dumps(request, separators=(",", ":")).encode() + b"\n"


def position(when: object, continues: bool = False, epoch: object = "e1") -> bytes:
    fields = {"when": when, "epoch": epoch, "continues": continues}
    return json.dumps({"_class": "SuccessResponse", **fields}).encode() + b"\n"


def message(when: int, body: str = "x", **extra: object) -> dict[str, Any]:
    return {"_class": "Message", "from": "bob", "when": when, "body": body, **extra}


def listed(*messages: object) -> bytes:
    """Return a MessageListResponse as the broker writes it."""
    response = {"_class": "MessageListResponse", "messages": list(messages)}
    return json.dumps(response, separators=(",", ":")).encode() + b"\n"


def opened(session: object = None) -> WireConnection:
    """Return a subscriber that has sent nothing."""
    connection = WIRE.connect(Role.SUBSCRIBER, session)
    assert connection.open() == []
    assert connection.take_output() == get("pubsub-ping")
    assert connection.receive(NOTHING) == [Opened(session is not None)]
    return connection


def subscribed(*interests: Interest, when: int = 0) -> WireConnection:
    """Return a connection that has polled each of these for the first time."""
    connection = opened()
    for interest in interests:
        connection.subscribe(interest)
        assert connection.receive(position(when)) == [Subscribed(interest)]
    connection.take_output()
    return connection
