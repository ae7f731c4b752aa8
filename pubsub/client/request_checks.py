"""Checks that a wire can address, carry and confirm a request, before anything is queued."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pubsub.client.client_errors import (
    InvalidTopic,
    NotExpressible,
    TopicNotAddressable,
    Unconfirmable,
)
from pubsub.client.client_url import wires_for
from pubsub.kernel import Columns
from pubsub.wire.client_events import Interest, Level
from pubsub.wire.client_wire import ClientWire, Headers

BytesLike = bytes | bytearray | memoryview
"""A payload, beside ``str``. Other objects with the buffer interface are accepted too."""
_MAX_NAME = 255


def check_topic(wire: ClientWire, topic: str) -> None:
    """Raise TypeError, or InvalidTopic or TopicNotAddressable if the wire has no address for it."""
    if not isinstance(topic, str):
        raise TypeError(f"the name of a topic must be str, not {_kind(topic)}")
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= _MAX_NAME:
        raise InvalidTopic(f"the name of a topic is 1 to {_MAX_NAME} bytes of UTF-8")
    problem = wire.topic_problem(topic)
    if problem:
        wires = wires_for(topic, wire.name)
        text = f"{wire.name} cannot address {topic!r}: {problem}; {', '.join(wires)} can"
        raise TopicNotAddressable(text, topic, wires)


def check_subscription(
    wire: ClientWire, topics: Sequence[str], prefixes: Sequence[str], start: int | None
) -> None:
    """As ``check_topic`` for each topic, and raise NotExpressible if the wire cannot have all."""
    for topic in topics:
        check_topic(wire, topic)
    if wire.single_topic and len(set(topics)) > 1:
        raise NotExpressible(
            f"a subscription over {wire.name} has one topic here: subscribe to each, or "
            f"{wire.single_topic}"
        )
    if prefixes and not wire.traits.prefixes:
        raise NotExpressible(f"{wire.name} cannot subscribe to prefixes; use http or spot")
    if prefixes and start is not None:
        raise NotExpressible(
            "a prefix begins with new messages: give prefixes= and start= to two subscriptions"
        )


def interests_of(
    topics: Sequence[str], prefixes: Sequence[str], start: int | None
) -> list[Interest]:
    """Return what a subscription asks for, each once. Raises TypeError, NotExpressible.

    The names of topics are checked by ``check_topic``.
    """
    names_of(prefixes, "prefixes")
    if start is not None and (not isinstance(start, int) or isinstance(start, bool)):
        raise TypeError(f"start must be an offset, an int, not {_kind(start)}")
    if start is not None and start < 0:
        raise NotExpressible("start must be an offset of 0 or more")
    for topic in topics:
        if isinstance(topic, list | tuple | set):
            raise TypeError(
                f"the name of a topic must be str, not {_kind(topic)}; subscribe(*topics) takes "
                "several topics"
            )
    starts = [as_prefix(one) for one in prefixes]
    if not topics and not starts:
        raise NotExpressible("a subscription needs at least one topic or prefix")
    interests = [Interest(topic, start=start) for topic in dict.fromkeys(topics)]
    return interests + [Interest(one, prefix=True, start=start) for one in dict.fromkeys(starts)]


def names_of(names: Iterable[str], what: str = "topics") -> Iterable[str]:
    """Return ``names``. Raises TypeError for a text, whose letters would each be a name."""
    if isinstance(names, str | bytes) or not isinstance(names, Iterable):
        raise TypeError(f"{what} must be a list of str, not {_kind(names)}")
    return names


def as_prefix(value: str) -> str:
    """Return ``value``, the beginning of names. Raises TypeError, NotExpressible."""
    if not isinstance(value, str):
        raise TypeError(f"a prefix must be str, not {_kind(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        text = f"the prefix {value!r} cannot be encoded in UTF-8; choose another"
        raise NotExpressible(text) from None
    return value


def check_message(
    wire: ClientWire, columns: Columns, sender: bytes | None, headers: Headers | None
) -> None:
    """Raise NotExpressible if the wire cannot carry the messages."""
    problem = wire.payload_problem(columns) or wire.envelope_problem(columns, sender, headers)
    if problem:
        raise NotExpressible(f"{wire.name} cannot carry the message: {problem}")


def as_bytes(value: BytesLike | str, what: str = "a payload") -> bytes:
    """Return ``value`` as bytes, text in UTF-8. Raises TypeError, NotExpressible."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise NotExpressible(f"{what} cannot be encoded in UTF-8: {error.reason}") from None
    try:
        return bytes(memoryview(value))
    except TypeError:
        text = f"{what} must be bytes, an object like bytes, or str, not {_kind(value)}"
        raise TypeError(text) from None


def as_payloads(values: Iterable[BytesLike | str]) -> list[bytes]:
    """Return payloads as a list of bytes; see ``as_bytes``."""
    if isinstance(values, str | BytesLike):
        raise TypeError(f"payloads must be a list of payloads, not {_kind(values)}; use publish")
    payloads: list[Any] = values if isinstance(values, list) else list(values)
    # One pass in C is enough for the usual list.
    return payloads if set(map(type, payloads)) == {bytes} else [as_bytes(one) for one in payloads]


def check_headers(headers: Headers) -> dict[str, bytes]:
    """Return a copy of ``headers``. Raises TypeError, and NotExpressible for a name."""
    if not isinstance(headers, Mapping):
        raise TypeError(f"headers must be a mapping of str to bytes, not {_kind(headers)}")
    checked: dict[str, bytes] = {}
    for name, value in headers.items():
        if not isinstance(name, str):
            raise TypeError(f"the name of a header must be str, not {_kind(name)}: {name!r}")
        if not isinstance(value, BytesLike):
            raise TypeError(f"the value of the header {name!r} must be bytes, not {_kind(value)}")
        try:
            name.encode()
        except UnicodeEncodeError:
            text = f"the name of the header {name!r} cannot be encoded in UTF-8; choose another"
            raise NotExpressible(text) from None
        checked[name] = bytes(value)
    return checked


def _kind(value: object) -> str:
    return type(value).__name__


def check_level(wire: ClientWire, confirm: bool | Level) -> None:
    """Raise Unconfirmable if the wire does not reach the level that ``confirm`` demands.

    Raises TypeError for what is neither a bool nor a level.
    """
    if not isinstance(confirm, int) or int(confirm) not in (False, *Level):
        raise TypeError(f"confirm must be True, False or a Level, not {confirm!r}")
    if confirm and Level(confirm) > wire.traits.level:
        raise Unconfirmable(
            f"{wire.name} confirms that a message was handled, not that it is stored; nsd, rheos "
            "and http do"
        )


def check_durability(wire: ClientWire, topic: str, durability: str | None) -> None:
    """Raise Unconfirmable if the durability requires more than the wire can confirm."""
    if durability == "sync":
        raise Unconfirmable(
            f"{topic!r} is on disk before it is confirmed (durability sync), and {wire.name} "
            "confirms only that a message was handled; use nsd, rheos or http, or "
            "confirm=Level.HANDLED"
        )


def check_reader(reader: str, interests: Sequence[Interest]) -> None:
    """Raise TypeError, or NotExpressible if there is no such reader of ``interests``."""
    if not isinstance(reader, str):
        raise TypeError(f"the name of a reader must be str, not {_kind(reader)}")
    try:
        size = len(reader.encode())
    except UnicodeEncodeError:
        size = 0
    if not 1 <= size <= _MAX_NAME:
        raise NotExpressible(f"the name of a reader is 1 to {_MAX_NAME} bytes of UTF-8")
    if len(interests) > 1 or interests[0].prefix:
        # The order of the messages of several topics may be another one after a reconnection, so
        # that one position would not tell those that are missing.
        raise NotExpressible("a reader has one topic: subscribe to each with a reader of its own")


def check_count(count: int) -> None:
    """Raise TypeError, or NotExpressible if it is not a number of messages."""
    if not isinstance(count, int) or isinstance(count, bool):
        raise TypeError(f"count must be an int, not {_kind(count)}")
    if count < 1:
        raise NotExpressible("count must be 1 or more")
