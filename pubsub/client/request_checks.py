"""Checks that a wire can address, carry and confirm a request, before anything is queued."""

from __future__ import annotations

from pubsub.client.client_errors import NotExpressible, TopicNotAddressable, Unconfirmable
from pubsub.client.client_url import wires_for
from pubsub.errors import InvalidTopicName
from pubsub.kernel import Columns
from pubsub.wire.client_events import Level
from pubsub.wire.client_wire import ClientWire, Headers

_MAX_NAME = 255


def check_topic(wire: ClientWire, topic: str) -> None:
    """Raise InvalidTopicName or TopicNotAddressable if the wire has no address for ``topic``."""
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= _MAX_NAME:
        raise InvalidTopicName(f"the name of a topic is 1 to {_MAX_NAME} bytes of UTF-8")
    problem = wire.topic_problem(topic)
    if problem:
        wires = wires_for(topic, wire.name)
        text = f"{wire.name} cannot address {topic!r}: {problem}; {', '.join(wires)} can"
        raise TopicNotAddressable(text, topic, wires)


def check_message(
    wire: ClientWire, columns: Columns, sender: bytes | str | None, headers: Headers | None
) -> None:
    """Raise NotExpressible if the wire cannot carry the messages."""
    problem = wire.payload_problem(columns)
    if not problem and sender is not None and not wire.traits.senders:
        problem = "a message's own sender"
    if not problem and headers and not wire.traits.headers:
        problem = "headers"
    if problem:
        raise NotExpressible(f"{wire.name} cannot carry the message: {problem}")


def check_level(wire: ClientWire, confirm: bool | Level) -> None:
    """Raise Unconfirmable if the wire does not reach the level that ``confirm`` demands."""
    if confirm and Level(confirm) > wire.traits.level:
        raise Unconfirmable(
            f"{wire.name} confirms that a message was handled, not that it is stored; nsd, rheos "
            "and http do"
        )
