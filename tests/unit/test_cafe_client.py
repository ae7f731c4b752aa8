"""The blocking publisher of cafe: the bytes it sends, and its handling of replies."""

from __future__ import annotations

from pubsub.protocols.cafe.client import CafePublisher
from pubsub.wire.blocking_publisher import ConnectionBroken, NotPublished
from tests.unit import cafe_wire
from tests.unit.raising import raised
from tests.unit.sockets import ADDRESS, PublisherCase
from tests.unit.streams import House


class PublisherTests(PublisherCase):
    """With a broker in memory or scripted replies"""

    def publish(self, *payloads: bytes, topic: str = "cafe/7") -> None:
        with CafePublisher(ADDRESS, client_id=b"spark") as publisher:
            for payload in payloads:
                publisher.add(topic, payload)
            publisher.finish()

    def refused(self, *replies: bytes) -> str:
        """Return the error of two messages after an acknowledged handshake and ``replies``."""
        self.scripted(cafe_wire.ack(1), *replies)
        return str(raised(NotPublished, self.publish, b"one", b"two"))

    def test_the_bytes_sent(self) -> None:
        house = House({"cafe": {}})
        self.over(house, "cafe")
        self.publish(b"one", b"")
        assert self.sent() == (
            cafe_wire.hs_pub(7, b"spark")
            + cafe_wire.publish(7, b"one", b"")
            + cafe_wire.PING
            + cafe_wire.DISCONNECT
        )
        assert self.published(house, "cafe/7") == [b"one", b""]

    def test_topics_are_the_listeners_channels(self) -> None:
        house = House({"cafe": {"channels": "40:orders"}})
        self.over(house, "cafe")
        with CafePublisher(ADDRESS, {40: "orders"}) as publisher:
            publisher.add("orders", b"x")
            publisher.finish()
            raised(NotPublished, publisher.add, "cafe/40", b"x")
        assert self.sent().startswith(cafe_wire.hs_pub(40) + cafe_wire.publish(40, b"x"))
        assert self.published(house, "orders") == [b"x"]

    def test_the_broker_refuses_the_handshake(self) -> None:
        self.over(House({"cafe": {"allow-publish": "allowed/*"}}), "cafe")
        error = raised(NotPublished, self.publish, b"x")
        assert "cafe at broker.example:7070" in str(error)
        assert "UNAUTHORIZED" in str(error)

    def test_other_replies_to_the_handshake(self) -> None:
        for reply, reason in (
            (cafe_wire.error(4), "RATE_LIMIT_EXCEEDED"),
            (cafe_wire.ack(0, 5), "PROTOCOL_VERSION_MISMATCH"),
            (cafe_wire.PONG, "code 0"),
            (b"HTTP/1.1 400 ", "does not speak cafe"),
        ):
            self.scripted(reply)
            assert reason in str(raised(NotPublished, self.publish, b"x"))

    def test_errors_before_the_pong_are_refusals(self) -> None:
        both = cafe_wire.error(3) + cafe_wire.error(4)
        assert "2 messages refused: MESSAGE_TOO_LARGE" in self.refused(both + cafe_wire.PONG)
        assert "a message refused: code 200" in self.refused(cafe_wire.error(200) + cafe_wire.PONG)

    def test_an_error_before_the_end(self) -> None:
        assert "UNAUTHORIZED" in self.refused(cafe_wire.error(8), b"")

    def test_the_end_without_an_error(self) -> None:
        self.scripted(cafe_wire.ack(1), b"")
        raised(ConnectionBroken, self.publish, b"one")

    def test_messages_that_cannot_be_expressed(self) -> None:
        publisher = CafePublisher(ADDRESS)
        assert "'orders'" in str(raised(NotPublished, publisher.add, "orders", b""))
        error = raised(NotPublished, publisher.add, "cafe/1", bytes(1_048_568))
        assert "1048568" in str(error)
