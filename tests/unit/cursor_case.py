"""The base class of tests of cursors."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.cursor import Cursor
from pubsub.broker.delivery.history_reads import PAGE_BYTES
from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.slow_policy import DROP, SlowPolicy
from pubsub.broker.service import BrokerService
from pubsub.broker.topic_space.topics import Topic
from pubsub.kernel import Columns
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Lines, Reader, Transport, clock_at, make_broker, make_listener

LARGE = b"." * (PAGE_BYTES // 4)


class CursorCase(SynchronousTestCase):
    """A broker, two topics, and a subscriber that must catch up."""

    def setUp(self) -> None:
        self.start_broker(MemoryStore(1000, 2**26))

    def start_broker(self, store: MemoryStore) -> None:
        self.clock: Clock = clock_at()
        self.broker: BrokerService = make_broker(self.clock, store=store)
        self.news = self.broker.topics.create("news")
        self.sport = self.broker.topics.create("sport")
        self.transport = Transport()
        policy = SlowPolicy(DROP, 2**30)
        traffic = self.broker.counters.traffic["toy"]
        self.box = Outbox(self.broker.cursors, self.transport, policy, Reader(), traffic)
        self.transport.outbox = self.box

    def publish(self, topic: Topic, *payloads: bytes) -> None:
        publisher = make_listener(self.broker).publisher(None, b"alice")
        publisher.publish(topic, Columns.of(list(payloads)))

    def resume(self, *topics: Topic, offset: int = 0, limit: int = 2**20) -> None:
        """Subscribe to ``topics`` from ``offset`` on."""
        self.resume_from(dict.fromkeys(topics, offset), limit)

    def resume_from(self, positions: dict[Topic, int], limit: int = 2**20) -> None:
        for topic, offset in positions.items():
            self.broker.router.subscribe(self.box, topic, Lines(limit=limit), offset)

    @property
    def cursor(self) -> Cursor:
        assert self.box.cursor is not None
        return self.box.cursor

    def advance(self, count: int = 50) -> None:
        for _ in range(count):
            self.clock.advance(0)

    def start_with_large_messages(self, count: int, *topics: Topic) -> None:
        """Publish to ``topics`` in turn; resume both, so that the cursor waits after a page."""
        for number in range(count):
            self.publish(topics[number % len(topics)], b"%d" % number + LARGE)
        self.transport.room = 1
        self.resume(self.news, self.sport)
        self.advance()
        assert b"%d" % (count - 1) not in self.lines()

    def lines(self) -> list[bytes]:
        return [line.rstrip(b".") for line in self.transport.data.splitlines()]
