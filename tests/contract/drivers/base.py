"""The interface of the drivers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from tests.unit.streams import Client, House

TOPIC, OTHER = "shared", "other"
NOT_AUTHORIZED, NOT_FOUND, WRONG_KEY = "not-authorized", "topic-not-found", "wrong-queue-key"
TOO_LARGE, RATE_LIMITED = "too-large", "rate-limited"


class Driver:
    """Makes clients of one protocol at ``house``, each with a new connection.

    ``settings`` are those that its listener needs for TOPIC and OTHER to be topics. A published
    message has at most ``limit`` bytes, a delivered one ``carries``. ``opens`` is true if a
    publisher must create its topic, ``text`` if only UTF-8 can be published, ``polls`` if messages
    arrive only on request, ``closes`` if a message that is too large ends the connection,
    ``conceals`` if a client without the right to a topic cannot find out whether it exists.
    """

    name: ClassVar[str]
    settings: ClassVar[Mapping[str, object]] = {}
    limit: ClassVar[int]
    carries: ClassVar[int] = 1_048_576
    opens: ClassVar[bool] = False
    text: ClassVar[bool] = False
    polls: ClassVar[bool] = False
    closes: ClassVar[bool] = False
    conceals: ClassVar[bool] = True

    def __init__(self, house: House) -> None:
        self.house = house

    def connect(self) -> Client:
        """Return a connection that has sent nothing."""
        return self.house.connect(self.name)

    # Requests

    def open(self, topic: str = TOPIC) -> None:
        """Create ``topic`` unless it exists."""

    def publisher(self, topic: str = TOPIC) -> Client:
        """Return a client that may publish to ``topic``, which exists."""
        raise NotImplementedError

    def publish(self, client: Client, *payloads: bytes, topic: str = TOPIC) -> bytes:
        """Return requests to publish."""
        raise NotImplementedError

    def subscriber(self, topic: str = TOPIC) -> Client:
        """Return a client that is subscribed."""
        client = self.listener()
        answer = self.ask(client, self.subscribe(client, topic))
        assert answer == self.subscribed(topic), answer
        return client

    def listener(self) -> Client:
        """Return a client that can subscribe and has not done so."""
        return self.connect()

    def subscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        """Return a request to subscribe."""
        raise NotImplementedError

    def unsubscribe(self, client: Client, topic: str = TOPIC) -> bytes | None:
        """Return a request to unsubscribe, or None if the protocol has none."""
        raise NotImplementedError

    def questions(self, client: Client) -> Mapping[str, bytes]:
        """Return requests that are answered at once and change nothing, by name.

        ``client`` is one that may publish to TOPIC, which exists.
        """
        raise NotImplementedError

    def ask(self, client: Client, request: bytes) -> bytes:
        """Send ``request`` and return the bytes that ``client`` receives at once."""
        client.send(request)
        self.house.pump(3)
        return client.take()

    # Answers

    def accepted(self, answer: bytes, number: int = 1) -> None:
        """Assert that ``answer`` accepts this number of messages."""
        assert answer == b"", answer

    def subscribed(self, topic: str) -> bytes:
        """Return the reply to a successful subscription."""
        return b""

    def refused(self, reason: str, topic: str = TOPIC) -> bytes:
        """Return the reply to a message that is refused for ``reason``."""
        raise NotImplementedError

    def not_subscribed(self, reason: str, topic: str = TOPIC) -> bytes:
        """Return the reply to a subscription that is refused for ``reason``."""
        return self.refused(reason, topic)

    def revoked(self) -> bytes:
        """Return the bytes that a subscriber gets when it loses the right to read the topic."""
        return b""

    def over_quota_reply(self) -> bytes:
        """Return the bytes that a connection over quota receives before it is closed."""
        raise NotImplementedError

    def malformed(self) -> tuple[bytes, bytes, bool]:
        """Return malformed bytes, the reply to them, and whether the connection then closes."""
        raise NotImplementedError

    def too_large(self, client: Client) -> bytes:
        """Publish one byte more than ``limit`` and return the reply."""
        return self.ask(client, self.publish(client, b"x" * (self.limit + 1)))

    # Deliveries

    def messages(self, client: Client) -> list[bytes]:
        """Return the payloads received since the last call. Fails for anything but messages."""
        self.house.clock.advance(0.05)
        self.house.pump(3)
        return list(self.payloads(client.take()))

    def ask_for_messages(self, client: Client) -> None:
        """Request messages without reading them, if they arrive on request only."""

    def remaining(self, client: Client) -> list[bytes]:
        """Return the bytes that a subscriber receives when it reads again after a pause."""
        return self.messages(client)

    def payloads(self, data: bytes) -> Iterator[bytes]:
        """Return the payloads of the messages in ``data``, which must be complete."""
        raise NotImplementedError

    # Attempts to reach closed topics

    def resume(self, client: Client) -> Client | None:
        """Return the subscriber ``client``, whose connection is lost, on a new connection.

        None if the protocol cannot resume.
        """
        return None

    def attempts(self, topic: str = TOPIC) -> Mapping[str, Callable[[], bytes]]:
        """Return other ways to reach ``topic``, by name; each call returns the revealed bytes."""
        return {}
