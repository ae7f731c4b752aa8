"""Subscriptions of a client that the broker refuses in part, or that end while it is away."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import MessageBatch, SubscriptionRefused
from pubsub.client.base_client import Client
from pubsub.client.subscription import Subscription
from tests.unit.client_runtime import MemoryRuntime
from tests.unit.raising import raised
from tests.unit.streams import House

_ONE = {"allow-subscribe": "cafe/7"}


class SharedConnectionTests(SynchronousTestCase):
    """With a broker that permits the topic cafe/7, and a publisher over rheos"""

    def setUp(self) -> None:
        house = House({"cafe": _ONE, "nsd": _ONE, "spot": _ONE, "rheos": {}})
        self.runtime = MemoryRuntime(house)
        self.publisher = MemoryRuntime(house).client("rheos")
        self.received: list[bytes] = []

    def publish(self, *payloads: bytes, topic: str = "cafe/7") -> None:
        """Publish as the other client, and let everything arrive."""
        runtime: Any = self.publisher._runtime
        runtime.run(self.publisher.publish_many(topic, list(payloads), confirm=True))
        self.runtime.advance(2)

    def listen(self) -> None:
        """Record what arrives over the newest connection."""
        observer = self.runtime.streams[-1].observer
        handle = observer.received

        def record(data: bytes) -> None:
            self.received.append(data)
            handle(data)

        observer.received = record  # type: ignore[method-assign]

    def accepted(self, client: Client, *topics: str) -> Subscription[Any]:
        subscription = client.subscribe(*topics)
        work = self.runtime.begin(subscription.accepted())
        self.runtime.advance(2)
        work.result()
        return subscription

    def payloads(self, subscription: Subscription[Any]) -> list[bytes]:
        found: list[bytes] = []
        while True:
            work = self.runtime.begin(subscription.next_item(0.5))
            self.runtime.advance(1)
            try:
                item = work.result()
            except TimeoutError:
                return found
            assert isinstance(item, MessageBatch)
            found += item.payloads

    def test_the_topics_beside_a_refused_one_are_not_served_further(self) -> None:
        for protocol in ("cafe", "nsd", "spot"):
            client = self.runtime.client(protocol)
            work = self.runtime.begin(client.subscribe("cafe/7", "cafe/8").accepted())
            self.runtime.advance(2)
            raised(SubscriptionRefused, work.result)
            self.listen()
            self.publish(b"to nobody")
            assert b"to nobody" not in b"".join(self.received), protocol
            # What was published before it is not in the next one.
            again = self.accepted(client, "cafe/7")
            self.publish(b"to %b" % protocol.encode())
            assert self.payloads(again) == [b"to %b" % protocol.encode()]
            self.runtime.run(client.close())

    def test_a_topic_of_another_subscription_stays(self) -> None:
        for protocol in ("cafe", "nsd", "spot"):
            client = self.runtime.client(protocol)
            other = self.accepted(client, "cafe/7")
            work = self.runtime.begin(client.subscribe("cafe/7", "cafe/8").accepted())
            self.runtime.advance(2)
            raised(SubscriptionRefused, work.result)
            self.publish(b"a", b"b")
            assert self.payloads(other) == [b"a", b"b"], protocol
            self.runtime.run(client.close())

    def test_a_subscription_that_is_closed_while_the_broker_is_away(self) -> None:
        """The session that is resumed has it still: it is ended there."""
        house = House({"spot": {}, "rheos": {}})
        self.runtime = MemoryRuntime(house)
        self.publisher = MemoryRuntime(house).client("rheos")
        client = self.runtime.client("spot")
        gone, again, kept = (self.accepted(client, name) for name in ("a", "b", "c"))
        self.runtime.down = True
        self.runtime.streams[-1].snap()
        self.runtime.advance(1)
        gone.close()
        again.close()
        again = client.subscribe("b")
        self.runtime.down = False
        self.runtime.advance(11)
        self.listen()
        for topic in ("a", "b", "c"):
            self.publish(topic.encode() * 9, topic=topic)
        assert b"a" * 9 not in b"".join(self.received)
        assert (self.payloads(again), self.payloads(kept)) == ([b"b" * 9], [b"c" * 9])

    def test_subscriptions_during_a_handshake_are_requested_once(self) -> None:
        client = self.runtime.client("cafe")
        first = client.subscribe("cafe/7")
        # The transport is there, and the broker has not replied.
        self.runtime.house.clock.advance(0)
        (stream,) = self.runtime.streams
        before = stream.sent
        second = client.subscribe("cafe/7")
        assert stream.sent == before
        self.runtime.advance(2)
        self.publish(b"x")
        assert (self.payloads(first), self.payloads(second)) == ([b"x"], [b"x"])

    def test_one_that_is_forgotten_ends(self) -> None:
        """Its messages, which nobody can take any more, would stop the reads of the others."""
        for protocol in ("cafe", "nsd", "spot"):
            client = self.runtime.client(protocol, feed_bytes=1000)
            kept = self.accepted(client, "cafe/7")
            self.accepted(client, "cafe/7")
            # An item that is awaited keeps the subscription.
            work = self.runtime.begin(client.subscribe("cafe/7").next_item())
            self.publish(b"a" * 900)
            assert work.result() is not None
            self.publish(b"b" * 900)
            assert self.payloads(kept) == [b"a" * 900, b"b" * 900], protocol
            self.publish(b"c")
            assert self.payloads(kept) == [b"c"], protocol
            self.runtime.run(client.close())

    def test_one_that_is_forgotten_before_it_was_refused_leaves_no_connection(self) -> None:
        client = self.runtime.client("nsd")
        client.subscribe("cafe/8", start=0)
        self.runtime.advance(2)
        (stream,) = self.runtime.streams
        assert stream.closed
        self.runtime.run(client.close())
