"""Gathering in any order of publishes and subscriptions: it is as if nothing was gathered."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.routing.batch import Page
from pubsub.broker.topic_space.topics import Topic
from pubsub.interfaces import Encoding
from pubsub.kernel import Columns, HeadTable
from pubsub.protocols.cafe.channels import MessageEncoding
from pubsub.protocols.cafe.codec import Publish, encode
from pubsub.protocols.cafe.message_heads import learn_publish
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import Held, Lines, Reader, Transport, clock_at, make_broker, make_listener

TOPICS = "tuv"
# Those of the topics that several subscribers want.
CHANNELS = {topic: channel for channel, topic in enumerate(TOPICS, 1)}
SUBSCRIBERS = 3
ACTIONS = st.one_of(
    st.tuples(st.sampled_from("abc"), st.sampled_from(TOPICS), st.just(1) | st.integers(1, 20)),
    st.tuples(
        st.sampled_from(["subscribe", "unsubscribe"]),
        st.integers(0, SUBSCRIBERS - 1),
        st.sampled_from(TOPICS),
    ),
    st.tuples(
        st.just("mixed"),
        st.sampled_from("abc"),
        # Also more than are gathered.
        st.lists(st.sampled_from(TOPICS), min_size=2, max_size=5) | st.just(list(TOPICS) * 22),
    ),
    st.sampled_from(["turn", "turn"]),
)


class EveryOrderTests(SynchronousTestCase):
    """Publishers a, b and c, topics t, u and v, and three subscribers"""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.store = MemoryStore(10_000, 2**20)
        self.broker = make_broker(self.clock, store=self.store)
        self.router = self.broker.router
        self.listener = make_listener(self.broker)
        self.heads = HeadTable(learn_publish)
        self.topics = {name: self.broker.topics.create(name) for name in TOPICS}
        self.publishers = {name: self.listener.publisher(Held(), name.encode()) for name in "abc"}
        self.transports = [Transport() for _ in range(SUBSCRIBERS)]
        self.outboxes = [self.listener.outbox(one, Reader()) for one in self.transports]
        self.sent: list[tuple[str, bytes, bytes]] = []
        self.expected: list[list[bytes]] = [[] for _ in range(SUBSCRIBERS)]

    def publish(self, publisher: Publisher, topic: Topic, payloads: list[bytes]) -> None:
        """Publish as protocols do, with the heads of cafe."""
        channel = CHANNELS[topic.name]
        data = b"".join(encode(Publish(channel, payload)) for payload in payloads)
        if publisher.publish_alike(self.heads, data):
            return
        columns = self.heads.scan(data)
        assert (columns.addresses, columns.end) == ([channel], len(data))
        if self.router.gathers and publisher.publish_soon(topic, columns):
            return
        publisher.publish(topic, columns)

    def publish_mixed(self, publisher: Publisher, names: list[str], payloads: list[bytes]) -> None:
        """Publish messages of several topics as protocols do."""
        mix = self.router.mix(self.topics.values())
        columns = Columns.of(payloads, [mix.names.index(name) for name in names])
        if self.router.gathers and publisher.publish_mixed_soon(mix.topics, columns):
            return
        assert publisher.publish_mixed(mix, columns) is not None

    def note(self, topic: str, sender: bytes, payloads: list[bytes]) -> None:
        self.sent += [(topic, sender, payload) for payload in payloads]
        for outbox, expected in zip(self.outboxes, self.expected, strict=True):
            if self.topics[topic] in outbox.subscriptions:
                expected += payloads

    def act(self, number: int, action: Any, with_lines: set[int]) -> None:
        if action == "turn":
            self.clock.advance(0)
        elif action[0] == "mixed":
            _, name, topics = action
            payloads = [b"%d.%d;" % (number, one) for one in range(len(topics))]
            self.publish_mixed(self.publishers[name], topics, payloads)
            for topic, payload in zip(topics, payloads, strict=True):
                self.note(topic, name.encode(), [payload])
        elif action[0] == "subscribe":
            _, place, topic = action
            lines = place in with_lines
            encoding: Encoding = Lines() if lines else MessageEncoding(CHANNELS[topic])
            self.router.subscribe(self.outboxes[place], self.topics[topic], encoding)
        elif action[0] == "unsubscribe":
            self.router.unsubscribe(self.outboxes[action[1]], self.topics[action[2]])
        else:
            name, topic, count = action
            payloads = [b"%d.%d;" % (number, one) for one in range(count)]
            self.publish(self.publishers[name], self.topics[topic], payloads)
            self.note(topic, name.encode(), payloads)

    def shown(self, page: Page) -> list[tuple[str, bytes, bytes]]:
        """Return topic, sender and payload of each message of a page."""
        return [
            (run.topic, run.sender, payload)
            for batch in page.batches
            for _, run in batch.runs()
            for payload in run.payloads()
        ]

    @given(st.lists(ACTIONS, max_size=60), st.sets(st.integers(0, SUBSCRIBERS - 1)))
    def test_it_is_as_if_nothing_was_gathered(
        self, actions: list[Any], with_lines: set[int]
    ) -> None:
        """Subscribers ``with_lines`` get frames that depend on the sender."""
        self.setUp()
        for number, action in enumerate(actions):
            self.act(number, action, with_lines)
        self.clock.advance(0)
        page = self.successResultOf(self.store.read(0, None, 2**20))
        assert self.shown(page) == self.sent
        joined = self.successResultOf(self.store.read(0, None, 2**20, joined=True))
        assert self.shown(joined) == self.sent
        numbers = [batch.sequence for batch in page.batches]
        assert numbers == [batch.offset for batch in page.batches]
        for transport, expected in zip(self.transports, self.expected, strict=True):
            assert re.findall(rb"\d+\.\d+;", b"".join(transport.writes)) == expected
        delivered = self.broker.counters.traffic[self.listener.protocol].written.messages
        assert delivered == sum(map(len, self.expected))
        for publisher, name in zip(self.publishers.values(), self.publishers, strict=True):
            assert publisher.messages == sum(one[1] == name.encode() for one in self.sent)
        self.broker.dispatcher.settle()
        for name, topic in self.topics.items():
            assert topic.messages == sum(one[0] == name for one in self.sent)
