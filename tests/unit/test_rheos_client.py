"""The blocking publisher of rheos: the bytes it sends, and its handling of replies."""

from __future__ import annotations

from pubsub.protocols.rheos.client import RheosPublisher
from pubsub.wire.blocking_publisher import NotPublished
from tests.unit import rheos_wire
from tests.unit.raising import raised
from tests.unit.sockets import ADDRESS, PublisherCase
from tests.unit.streams import House


class PublisherTests(PublisherCase):
    """With a broker in memory or scripted replies"""

    def test_the_bytes_sent(self) -> None:
        house = House({"rheos": {}})
        self.over(house, "rheos")
        with RheosPublisher(ADDRESS) as publisher:
            publisher.add("news", b"one")
            publisher.add("news", b"two")
            publisher.finish()
        sent = self.sent()
        id = sent[5:21]
        assert sent == rheos_wire.create(id) + rheos_wire.publish(id, b"one", b"two")
        assert self.published(house, "news") == [b"one", b"two"]

    def test_the_original_layout_with_checksums(self) -> None:
        house = House({"rheos": {"layout": "original", "checksum": "crc32"}})
        self.over(house, "rheos")
        with RheosPublisher(ADDRESS, "original", checksum=True) as publisher:
            publisher.add("news", bytes(70_000))
            publisher.finish()
        sent = self.sent()
        id = sent[6:22]
        requests = (
            rheos_wire.original(rheos_wire.CREATE, id, b"news"),
            rheos_wire.original(rheos_wire.PUBLISH, id, b"news", bytes(70_000)),
        )
        assert sent == b"".join(map(rheos_wire.sealed, requests))
        assert self.published(house, "news") == [bytes(70_000)]

    def test_an_existing_topic_is_not_a_refusal(self) -> None:
        ack = rheos_wire.ack(bytes(16))
        self.scripted(rheos_wire.FAILED + ack)
        with RheosPublisher(ADDRESS) as publisher:
            publisher.add("news", b"one")
            publisher.finish()

    def test_failed_publishes_are_counted(self) -> None:
        ack = rheos_wire.ack(bytes(16))
        self.scripted(ack + rheos_wire.FAILED + ack + rheos_wire.FAILED)
        publisher = RheosPublisher(ADDRESS)
        for _ in range(3):
            publisher.add("news", b"")
        assert "2 messages refused" in str(raised(NotPublished, publisher.finish))

    def test_deliveries_between_the_replies_are_ignored(self) -> None:
        ack = rheos_wire.ack(bytes(16))
        self.scripted(ack + rheos_wire.response(rheos_wire.BOB, b"hi") + ack)
        with RheosPublisher(ADDRESS) as publisher:
            publisher.add("news", b"one")
            publisher.finish()

    def test_replies_of_another_protocol(self) -> None:
        self.scripted(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        publisher = RheosPublisher(ADDRESS)
        publisher.add("news", b"")
        assert "rheos at" in str(raised(NotPublished, publisher.finish))

    def test_messages_that_cannot_be_expressed(self) -> None:
        publisher = RheosPublisher(ADDRESS)
        assert "65536 bytes" in str(raised(NotPublished, publisher.add, "t", bytes(65_536)))
        larger = RheosPublisher(ADDRESS, "original")
        size = 2**20 + 1
        assert f"{size} bytes" in str(raised(NotPublished, larger.add, "t", bytes(size)))
