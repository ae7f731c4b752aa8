"""What every driver can do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from tests.unit.streams import Client, House

TOPIC, OTHER = "shared", "other"
NOT_AUTHORIZED, NOT_FOUND, WRONG_KEY = "not-authorized", "topic-not-found", "wrong-queue-key"
TOO_LARGE, RATE_LIMITED = "too-large", "rate-limited"


class Driver:
    """Clients of one protocol at ``house``, each connected anew.

    ``settings`` are those its listener needs for TOPIC and OTHER to be topics. A message that is
    published may have ``limit`` bytes, one that is delivered ``carries``. ``opens`` if a publisher
    has to make the topic himself, ``text`` if only UTF-8 can be published, ``polls`` if messages
    come only when asked for, ``closes`` if a message too large ends the connection.
    """

    name: ClassVar[str]
    settings: ClassVar[Mapping[str, object]] = {}
    limit: ClassVar[int]
    carries: ClassVar[int] = 1_048_576
    opens: ClassVar[bool] = False
    text: ClassVar[bool] = False
    polls: ClassVar[bool] = False
    closes: ClassVar[bool] = False

    def __init__(self, house: House) -> None:
        self.house = house

    def connect(self) -> Client:
        """A connection that has said nothing yet."""
        return self.house.connect(self.name)

    # Requests

    def open(self, topic: str = TOPIC) -> None:
        """Make ``topic``, unless it is there."""

    def publisher(self, topic: str = TOPIC) -> Client:
        """A client that may publish on ``topic``, which exists."""
        raise NotImplementedError

    def publish(self, client: Client, *payloads: bytes, topic: str = TOPIC) -> bytes:
        """Requests to publish."""
        raise NotImplementedError

    def subscriber(self, topic: str = TOPIC) -> Client:
        """A client that is subscribed."""
        client = self.listener()
        answer = self.ask(client, self.subscribe(client, topic))
        assert answer == self.subscribed(topic), answer
        return client

    def listener(self) -> Client:
        """A client that may subscribe and has not."""
        return self.connect()

    def subscribe(self, client: Client, topic: str = TOPIC) -> bytes:
        """A request to subscribe."""
        raise NotImplementedError

    def unsubscribe(self, client: Client, topic: str = TOPIC) -> bytes | None:
        """A request to unsubscribe; None where the protocol has none."""
        raise NotImplementedError

    def ask(self, client: Client, request: bytes) -> bytes:
        """What comes at once when ``client`` sends ``request``."""
        client.send(request)
        self.house.pump(3)
        return client.take()

    # Answers

    def accepted(self, answer: bytes, number: int = 1) -> None:
        """``answer`` is what so many messages published are answered with."""
        assert answer == b"", answer

    def subscribed(self, topic: str) -> bytes:
        """What success of a subscription is answered with."""
        return b""

    def refused(self, reason: str, topic: str = TOPIC) -> bytes:
        """What a message that is not published, for ``reason``, is answered with."""
        raise NotImplementedError

    def not_subscribed(self, reason: str, topic: str = TOPIC) -> bytes:
        """The same of a subscription."""
        return self.refused(reason, topic)

    def revoked(self) -> bytes:
        """What a subscriber is told when it may read the topic no longer."""
        return b""

    def turned_away(self) -> bytes:
        """What a connection over quota is told before it is closed."""
        raise NotImplementedError

    def malformed(self) -> tuple[bytes, bytes, bool]:
        """Bytes that are none of the protocol's, the answer, and whether it then closes."""
        raise NotImplementedError

    def too_large(self, client: Client) -> bytes:
        """What is answered to the publication of a byte more than ``limit``."""
        return self.ask(client, self.publish(client, b"x" * (self.limit + 1)))

    # Deliveries

    def messages(self, client: Client) -> list[bytes]:
        """The payloads that a subscriber has got since the last time, and nothing else."""
        self.house.clock.advance(0.05)
        self.house.pump(3)
        return list(self.payloads(client.take()))

    def payloads(self, data: bytes) -> Iterator[bytes]:
        """Those of the messages in ``data``, which holds whole ones."""
        raise NotImplementedError

    # What closed topics are tried with

    def come_back(self, client: Client) -> Client | None:
        """The subscriber ``client``, whose connection has gone, on a new one.

        None where the protocol knows nothing of the kind.
        """
        return None

    def attempts(self, topic: str = TOPIC) -> Mapping[str, Callable[[], bytes]]:
        """Further ways to reach ``topic``, by name: each gives back what it brought to light."""
        return {}
