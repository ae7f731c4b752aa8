"""Gathering in any order of publishes and subscriptions: it is as if nothing was gathered."""

from __future__ import annotations

import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.publisher import Publisher
from pubsub.broker.topics import Topic
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
    st.sampled_from(["mixed", "turn", "turn"]),
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

    def note(self, topic: str, sender: bytes, payloads: list[bytes]) -> None:
        self.sent += [(topic, sender, payload) for payload in payloads]
        for outbox, expected in zip(self.outboxes, self.expected, strict=True):
            if self.topics[topic] in outbox.subscriptions:
                expected += payloads

    def act(self, number: int, action: Any, encodings: dict[str, Encoding]) -> None:
        if action == "turn":
            self.clock.advance(0)
        elif action == "mixed":
            mix = self.router.mix(self.topics.values())
            payload = b"%d.0;" % number
            self.publishers["a"].publish_mixed(mix, Columns.of([payload], [mix.names.index("u")]))
            self.note("u", b"a", [payload])
        elif action[0] == "subscribe":
            topic = action[2]
            self.router.subscribe(self.outboxes[action[1]], self.topics[topic], encodings[topic])
        elif action[0] == "unsubscribe":
            self.router.unsubscribe(self.outboxes[action[1]], self.topics[action[2]])
        else:
            name, topic, count = action
            payloads = [b"%d.%d;" % (number, one) for one in range(count)]
            self.publish(self.publishers[name], self.topics[topic], payloads)
            self.note(topic, name.encode(), payloads)

    @given(st.lists(ACTIONS, max_size=60), st.sampled_from(["", "u", TOPICS]))
    def test_it_is_as_if_nothing_was_gathered(
        self, actions: list[Any], depend_on_sender: str
    ) -> None:
        self.setUp()
        encodings: dict[str, Encoding] = {
            topic: Lines() if topic in depend_on_sender else MessageEncoding(channel)
            for topic, channel in CHANNELS.items()
        }
        for number, action in enumerate(actions):
            self.act(number, action, encodings)
        self.clock.advance(0)
        page = self.successResultOf(self.store.read(0, None, 2**20))
        stored = [
            (run.topic, run.sender, payload)
            for batch in page.batches
            for _, run in batch.runs()
            for payload in run.payloads()
        ]
        assert stored == self.sent
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
