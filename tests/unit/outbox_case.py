"""The base class of tests of outboxes."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.slow_policy import SlowPolicy
from pubsub.broker.topic_space.topics import Topic
from tests.unit.fakes import Bench, Lines, Transport, batch_of

KIB = 1024


class OutboxCase(SynchronousTestCase):
    """A router, a topic, and a way to publish on it."""

    def setUp(self) -> None:
        self.bench = Bench()
        self.topic = Topic("t")
        self.offset = 0

    def subscriber(self, policy: SlowPolicy | None = None, label: str = "bob") -> Transport:
        transport = self.bench.outbox(policy, label)
        assert transport.outbox is not None
        self.bench.router.subscribe(transport.outbox, self.topic, Lines())
        return transport

    def publish(self, *payloads: bytes, topic: Topic | None = None) -> None:
        """Publish a batch in a tick of its own."""
        target = topic or self.topic
        self.bench.router.route(target, batch_of(payloads, target.name, offset=self.offset))
        self.offset += len(payloads)
        self.bench.turn()

    def drops(self) -> dict[tuple[str, str, str], int]:
        return dict(self.bench.counters.drops)
