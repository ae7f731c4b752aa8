"""The base class of tests of messages that are let go."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.slow_policy import AUTO, SlowPolicy
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.service import BrokerService
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topics import Topic
from pubsub.kernel import Columns
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Held, Lines, Reader, Transport, clock_at, make_broker, make_listener

KIB = 1024
POLICY = SlowPolicy(AUTO, 4 * KIB, 30)
"""The high-water mark is 1 KiB."""


class LetGoCase(SynchronousTestCase):
    """A broker with the topics news and sport, which are stored, and chat, which is not."""

    def setUp(self) -> None:
        self.start_broker(MemoryStore(10_000, 2**26))

    def start_broker(self, store: MemoryStore, limits: BrokerLimits | None = None) -> None:
        self.clock: Clock = clock_at()
        self.broker: BrokerService = make_broker(self.clock, limits, store)
        self.news, self.sport, self.chat = map(self.broker.topics.create, ("news", "sport", "chat"))
        self.chat.set_durability(Durability.NONE)
        self.closed: list[str] = []
        self.publisher = make_listener(self.broker).publisher(Held(), b"alice")

    def subscriber(
        self, *topics: Topic, policy: SlowPolicy = POLICY, reader: Reader | None = None
    ) -> Transport:
        transport = Transport()
        reader = reader or Reader(evict=self.closed.append)
        traffic = self.broker.counters.traffic["toy"]
        box = transport.outbox = Outbox(self.broker.cursors, transport, policy, reader, traffic)
        for topic in topics:
            self.broker.router.subscribe(box, topic, Lines(topic.name[:1].encode()))
        return transport

    def box(self, transport: Transport) -> Outbox:
        assert transport.outbox is not None
        return transport.outbox

    def publish(self, topic: Topic, *payloads: bytes) -> None:
        """Publish in a tick of its own."""
        self.publisher.publish(topic, Columns.of(list(payloads)))
        self.advance(1)

    def advance(self, count: int = 20) -> None:
        for _ in range(count):
            self.clock.advance(0)

    def read_all(self, transport: Transport) -> None:
        transport.drain()
        self.advance()

    def numbers(self, transport: Transport) -> list[bytes]:
        return [line.rstrip(b".") for line in transport.data.splitlines()]

    def drops(self) -> dict[tuple[str, str], int]:
        return {(topic, why): n for (_, topic, why), n in self.broker.counters.drops.items()}

    def stuck(self, *topics: Topic, policy: SlowPolicy = POLICY) -> Transport:
        """Return a subscriber that does not read, and whose queue was freed."""
        transport = self.subscriber(*topics, policy=policy)
        self.box(transport).pause()
        for number in range(4):
            self.publish(topics[0], b"%d" % number + b"." * 400)
        assert self.box(transport).cursor is not None
        return transport
