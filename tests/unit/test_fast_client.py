"""The blocking publisher of fast: the bytes it sends, and its handling of replies."""

from __future__ import annotations

from pubsub.protocols.fast.client import FastPublisher
from pubsub.wire.blocking_publisher import ConnectionBroken, NotPublished
from tests.unit import fast_wire
from tests.unit.raising import raised
from tests.unit.sockets import ADDRESS, PublisherCase


class PublisherTests(PublisherCase):
    """With a broker in memory or scripted replies"""

    TOKEN = fast_wire.OWNER
    # The reply to a request that is refused in any case: all before it has been handled.
    DONE = fast_wire.error(fast_wire.UNSUBSCRIBE, fast_wire.NO_TOPIC, 0)

    def publisher(self, token: bytes = TOKEN) -> FastPublisher:
        return FastPublisher(ADDRESS, token.decode())

    def publish(self, *payloads: bytes, token: bytes = TOKEN) -> None:
        with self.publisher(token) as publisher:
            for payload in payloads:
                publisher.add("news", payload)
            publisher.finish()

    def refused(self, *replies: bytes) -> str:
        """The error of a message on a topic that exists, with these replies to it."""
        self.scripted(self.DONE, *replies)
        return str(raised(NotPublished, self.publish, b"x"))

    def test_the_bytes_for_a_topic_that_exists(self) -> None:
        house = fast_wire.Fast(self)
        house.owner()
        self.over(house, "fast")
        self.publish(b"one", b"two")
        probe = fast_wire.unsubscribe(self.TOKEN, 0)
        assert self.sent() == (
            fast_wire.unsubscribe(self.TOKEN)
            + probe
            + fast_wire.publish(self.TOKEN, b"one", b"two")
            + probe
        )
        assert self.published(house, "news") == [b"one", b"two"]

    def test_a_topic_that_does_not_exist_is_created(self) -> None:
        house = fast_wire.Fast(self)
        self.over(house, "fast")
        self.publish(b"one")
        assert fast_wire.create(self.TOKEN) in self.sent()
        assert self.published(house, "news") == [b"one"]

    def test_the_topic_cannot_be_created(self) -> None:
        missing = fast_wire.error(fast_wire.UNSUBSCRIBE, fast_wire.NO_TOPIC)
        failed = fast_wire.error(fast_wire.CREATE, fast_wire.NO_PERMISSION)
        self.scripted(missing + self.DONE, failed + self.DONE)
        error = str(raised(NotPublished, self.publish, b"x"))
        assert "topic 'news': MISSING_PERMISSION" in error

    def test_another_key(self) -> None:
        house = fast_wire.Fast(self)
        house.owner()
        self.over(house, "fast")
        error = raised(NotPublished, self.publish, b"x", b"y", token=fast_wire.grant(key="k2"))
        assert "WRONG_QUEUE_KEY" in str(error)
        assert self.published(house, "news") == []

    def test_a_bad_token(self) -> None:
        self.over(fast_wire.Fast(self), "fast")
        assert "BAD_TOKEN" in str(raised(NotPublished, self.publish, b"x", token=b"a.b.c"))

    def test_refusals_are_counted(self) -> None:
        errors = fast_wire.error(fast_wire.PUBLISH, fast_wire.TOO_LARGE)
        limited = fast_wire.error(fast_wire.PUBLISH, 99)
        assert "2 messages refused: TOO_LARGE" in self.refused(errors + limited + self.DONE)
        assert "a message refused: code 99" in self.refused(limited + self.DONE)

    def test_an_error_before_the_end(self) -> None:
        error = fast_wire.error(fast_wire.PUBLISH, fast_wire.TOO_LARGE)
        assert "TOO_LARGE" in self.refused(error, b"")

    def test_the_end_without_an_error(self) -> None:
        self.scripted(self.DONE, b"")
        raised(ConnectionBroken, self.publish, b"x")

    def test_deliveries_are_ignored(self) -> None:
        self.scripted(self.DONE + fast_wire.message(b"hi") + self.DONE)
        self.publish(b"x")

    def test_replies_of_another_protocol(self) -> None:
        self.scripted(b"HTTP/1.1 400 Bad Request")
        assert "does not speak fast" in str(raised(NotPublished, self.publish, b"x"))

    def test_the_length_of_a_token(self) -> None:
        for wrong in (b"", b"t" * 256):
            assert "1 to 255" in str(raised(NotPublished, self.publisher, wrong))
