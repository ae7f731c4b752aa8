"""The base class of tests of routers."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.topic_space.topics import Topic
from tests.unit.fakes import Bench, Lines, Transport, batch_of


class RouterCase(SynchronousTestCase):
    """A router and two topics."""

    def setUp(self) -> None:
        self.bench = Bench()
        self.router = self.bench.router
        self.news, self.sport = Topic("news"), Topic("sport")
        self.offset = 0

    def subscriber(self, *topics: Topic, encoding: Lines | None = None) -> Transport:
        transport = self.bench.outbox()
        for topic in topics:
            self.router.subscribe(self.box(transport), topic, encoding or Lines())
        return transport

    def box(self, transport: Transport) -> Outbox:
        assert transport.outbox is not None
        return transport.outbox

    def route(self, topic: Topic, *payloads: bytes) -> None:
        self.router.route(topic, batch_of(payloads, topic.name, offset=self.offset))
        self.offset += len(payloads)
