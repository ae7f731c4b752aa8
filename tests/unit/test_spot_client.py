"""The blocking publisher of spot: the bytes it sends, and its handling of replies."""

from __future__ import annotations

from pubsub.protocols.spot.client import SpotPublisher
from pubsub.wire.blocking_publisher import NotPublished
from tests.unit import brokers
from tests.unit.raising import raised
from tests.unit.sockets import ADDRESS, PublisherCase
from tests.unit.streams import House


class PublisherTests(PublisherCase):
    """With a broker in memory or scripted replies"""

    READY = brokers.ready(b"ROUTER")
    PONG = b"\x04\x0d\x04PONG" + (1).to_bytes(8, "big")

    def publish(self, *payloads: bytes, sender: bytes | None = None) -> None:
        with SpotPublisher(ADDRESS) as publisher:
            for payload in payloads:
                publisher.add("news", payload, sender)
            publisher.finish()

    def refused(self, *replies: bytes) -> str:
        self.scripted(*replies)
        return str(raised(NotPublished, self.publish, b"x"))

    def test_the_bytes_sent(self) -> None:
        house = House({"spot": {}})
        self.over(house, "spot", piece=5)
        self.publish(b"one", b"two")
        ping = b"\x04\x0f\x04PING\x00\x00" + (1).to_bytes(8, "big")
        assert self.sent() == (
            brokers.ready(b"DEALER")
            + brokers.publish(b"news", b"one")
            + brokers.publish(b"news", b"two")
            + ping
            + brokers.QUERY
        )
        assert self.published(house, "news") == [b"one", b"two"]

    def test_the_sender_is_the_origin(self) -> None:
        house = House({"spot": {}})
        self.over(house, "spot")
        self.publish(b"one", sender=b"ada")
        assert brokers.message(b"", b"\x01", b"ada", b"news", b"one") in self.sent()
        assert self.published(house, "news") == [b"one"]

    def test_topics_that_are_not_listed_were_refused(self) -> None:
        self.over(House({"spot": {"allow-publish": "allowed/*"}}), "spot")
        error = raised(NotPublished, self.publish, b"x")
        assert "1 topics are not hosted there" in str(error)
        assert "'news'" in str(error)

    def test_a_ping_is_answered(self) -> None:
        ping = b"\x04\x09\x04PING\x00\x00me"
        listed = brokers.message(b"", b"\x05", (1).to_bytes(4, "little"), b"news")
        self.scripted(self.READY + ping + self.PONG + listed)
        self.publish(b"x")
        assert b"\x04\x07\x04PONGme" in self.sent()

    def test_peers_that_are_not_this_broker(self) -> None:
        assert "not a spot broker" in self.refused(b"HTTP/1.1 400 ".ljust(64))
        assert "ROUTER" in self.refused(brokers.ready(b"PUB"))
        assert "violates ZMTP" in self.refused(self.READY + b"\xff" * 20)
        unknown = brokers.message(b"", b"\x7e")
        assert "the reply is malformed" in self.refused(self.READY + self.PONG + unknown)

    def test_other_messages_before_the_list_are_ignored(self) -> None:
        delivery = brokers.message(b"", b"\x01", b"news", b"hi")
        listed = brokers.message(b"", b"\x05", (1).to_bytes(4, "little"), b"news")
        self.scripted(self.READY + self.PONG + delivery + listed)
        self.publish(b"x")

    def test_messages_that_cannot_be_expressed(self) -> None:
        error = raised(NotPublished, SpotPublisher(ADDRESS).add, "t", bytes(2**20 + 1))
        assert "1048577" in str(error)
