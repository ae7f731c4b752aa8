"""Gathering among changes of subscriptions and rights: it is as if nothing was gathered."""

from __future__ import annotations

import re
from itertools import count, islice
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.broker.publishing.publisher import Publisher
from pubsub.broker.routing.batch import Page
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import NotAuthorized
from pubsub.interfaces import Encoding
from pubsub.kernel import Columns, HeadTable
from pubsub.protocols.cafe.channels import MessageEncoding
from pubsub.protocols.cafe.codec import Publish, encode
from pubsub.protocols.cafe.message_heads import learn_publish
from pubsub.store.memory_store import MemoryStore
from tests.profiles import examples
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
        st.sampled_from(["a", "ab", "abcab", "acac"]),
        # Also more than are gathered.
        st.lists(st.sampled_from(TOPICS), min_size=2, max_size=5) | st.just(list(TOPICS) * 22),
    ),
    st.sampled_from(["turn", "turn"]),
    st.tuples(st.just("rights"), st.sampled_from("ac"), st.sets(st.sampled_from(TOPICS))),
    st.tuples(st.just("key"), st.sampled_from(TOPICS)),
)


class EveryOrderTests(SynchronousTestCase):
    """Publishers a and b with equal rights, c with others; topics t, u, v; three subscribers"""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.store = MemoryStore(10_000, 2**20)
        self.broker = make_broker(self.clock, store=self.store)
        self.router = self.broker.router
        self.listener, other = make_listener(self.broker), make_listener(self.broker)
        self.listeners = {"a": self.listener, "b": self.listener, "c": other}
        self.denied: dict[str, set[str]] = {"a": set(), "b": set(), "c": set()}
        self.heads = HeadTable(learn_publish)
        self.topics = {name: self.broker.topics.create(name) for name in TOPICS}
        places = {channel: self.topics[name] for name, channel in CHANNELS.items()}
        self.mixes = AddressMixes(self.listener, places.__getitem__)
        self.publishers = {name: self.listener.publisher(Held(), name.encode()) for name in "abc"}
        self.publishers["c"].access = other.access
        self.transports = [Transport() for _ in range(SUBSCRIBERS)]
        self.outboxes = [self.listener.outbox(one, Reader()) for one in self.transports]
        self.sent: list[tuple[str, bytes, bytes]] = []
        self.expected: list[list[bytes]] = [[] for _ in range(SUBSCRIBERS)]

    def read(self, publisher: Publisher, names: list[str], payloads: list[bytes]) -> list[str]:
        """Publish as protocols do, with the heads of cafe; return the topics that are refused."""
        sent = zip(names, payloads, strict=True)
        data = b"".join([encode(Publish(CHANNELS[name], payload)) for name, payload in sent])
        if publisher.publish_alike(self.heads, data):
            return []
        columns = self.heads.scan(data)
        assert columns.end == len(data)
        if len(columns.addresses) > 1 and self.publish_mixed(publisher, columns):
            return []
        refused = []
        for _, run in columns.runs():
            topic = self.topics[TOPICS[run.addresses[0] - 1]]
            try:
                self.publish(publisher, topic, run)
            except NotAuthorized:
                refused.append(topic.name)
        return refused

    def publish_mixed(self, publisher: Publisher, columns: Columns) -> bool:
        if self.mixes.publish_soon(columns, publisher):
            return True
        mixed = self.mixes.find(columns, access=publisher.access)
        return mixed is not None and publisher.publish_mixed(*mixed) is not None

    def publish(self, publisher: Publisher, topic: Topic, columns: Columns) -> None:
        if not (self.router.gathers and publisher.publish_soon(topic, columns)):
            publisher.publish(topic, columns)

    def send(self, name: str, topics: list[str], payloads: list[bytes]) -> None:
        """Publish messages of these topics, and note those that are to be accepted."""
        closed = {topic for topic in TOPICS if self.topics[topic] in self.broker.queue_keys}
        refused = self.read(self.publishers[name], topics, payloads)
        assert set(refused) == set(topics) & (closed | self.denied[name])
        for topic, payload in zip(topics, payloads, strict=True):
            if topic not in refused:
                self.note(topic, name.encode(), [payload])

    def note(self, topic: str, sender: bytes, payloads: list[bytes]) -> None:
        self.sent += [(topic, sender, payload) for payload in payloads]
        for outbox, expected in zip(self.outboxes, self.expected, strict=True):
            if self.topics[topic] in outbox.subscriptions:
                expected += payloads

    def act(self, number: int, action: Any, with_lines: set[int]) -> None:
        payloads = (b"%d.%d;" % (number, one) for one in count())
        match action:
            case "turn":
                self.clock.advance(0)
            case "mixed", names, topics:
                for name in names:
                    self.send(name, topics, list(islice(payloads, len(topics))))
            case "subscribe", place, topic:
                lines = place in with_lines
                encoding: Encoding = Lines() if lines else MessageEncoding(CHANNELS[topic])
                self.router.subscribe(self.outboxes[place], self.topics[topic], encoding)
            case "unsubscribe", place, topic:
                self.router.unsubscribe(self.outboxes[place], self.topics[topic])
            case "rights", name, denied:
                self.change_rights(name, denied)
            case "key", topic:
                keys = self.broker.queue_keys
                if self.topics[topic] in keys:
                    keys.drop(topic)
                else:
                    keys.close(self.topics[topic], b"key", "s", "c")
            case name, topic, number:
                self.send(name, [topic] * number, list(islice(payloads, number)))

    def change_rights(self, name: str, denied: set[str]) -> None:
        listener = self.listeners[name]
        allowed = [topic for topic in TOPICS if topic not in denied]
        listener.reconfigure({**listener.settings, "allow-publish": allowed})
        for other in self.listeners:
            if self.listeners[other] is listener:
                self.denied[other] = denied

    def shown(self, page: Page) -> list[tuple[str, bytes, bytes]]:
        """Return topic, sender and payload of each message of a page."""
        return [
            (run.topic, run.sender, payload)
            for batch in page.batches
            for _, run in batch.runs()
            for payload in run.payloads()
        ]

    @examples(2)
    @given(st.lists(ACTIONS, min_size=10, max_size=60), st.sets(st.integers(0, SUBSCRIBERS - 1)))
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
