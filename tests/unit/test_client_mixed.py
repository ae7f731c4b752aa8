"""Messages of several topics that arrive together, in the subscriptions of a client."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import Message, MessageBatch
from pubsub.client.messages import MixedBatch
from pubsub.client.subscription import Subscription
from pubsub.kernel import Columns
from pubsub.wire.client_columns import messages_of
from pubsub.wire.client_events import Messages, MixedMessages
from tests.unit.cafe_wire import hs_pub, publish
from tests.unit.client_runtime import MemoryRuntime
from tests.unit.streams import House

SENT = [
    ("cafe/1", b"a"), ("cafe/2", b"b"), ("cafe/2", b"c"), ("cafe/1", b"d"), ("cafe/3", b"e"),
]  # fmt: skip
RUNS = [
    ("cafe/1", [b"a"]), ("cafe/2", [b"b", b"c"]), ("cafe/1", [b"d"]), ("cafe/3", [b"e"]),
]  # fmt: skip


def content(item: object) -> tuple[str, list[bytes]]:
    """Return the topic and the payloads of a batch."""
    assert isinstance(item, MessageBatch)
    return item.topic, item.payloads


class SubscriptionTests(SynchronousTestCase):
    """Three topics of which messages alternate, over each protocol that delivers by itself"""

    def setUp(self) -> None:
        self.house = House({"cafe": {}, "spot": {}, "rheos": {}})

    def subscribed(self, protocol: str, *topics: str) -> Subscription[Any]:
        self.runtime = MemoryRuntime(self.house)
        return self.begun(self.runtime.client(protocol), *topics)

    def begun(self, client: Any, *topics: str) -> Subscription[Any]:
        subscription: Subscription[Any] = client.subscribe(*topics)
        work = self.runtime.begin(subscription.accepted())
        self.runtime.advance(2)
        work.result()
        return subscription

    def publish(self) -> None:
        """Publish SENT, so that it arrives in one read."""
        publisher = self.house.connect("cafe")
        publisher.send(hs_pub(1))
        publisher.send(b"".join(publish(int(topic[-1]), payload) for topic, payload in SENT))
        self.runtime.advance(2)

    def message(self, subscription: Subscription[Any]) -> Message:
        found = self.runtime.run(subscription.__anext__())
        assert isinstance(found, Message)
        return found

    def test_messages_in_the_order_of_publishing(self) -> None:
        for protocol in ("cafe", "spot"):
            subscription = self.subscribed(protocol, "cafe/1", "cafe/2", "cafe/3")
            self.publish()
            found = [self.message(subscription) for _ in SENT]
            assert [(one.topic, one.payload) for one in found] == SENT, protocol

    def test_they_arrive_together(self) -> None:
        subscription = self.subscribed("cafe", "cafe/1", "cafe/2", "cafe/3")
        self.publish()
        item = self.runtime.run(subscription.next_whole())
        assert isinstance(item, MixedBatch)
        assert len(item) == len(SENT)
        assert [(one.topic, one.payload) for one in item] == SENT
        times = {one.timestamp for one in item}
        assert times == {item.last_timestamp()}
        assert None not in times

    def test_batches_have_one_topic(self) -> None:
        subscription = self.subscribed("spot", "cafe/1", "cafe/2", "cafe/3")
        self.publish()
        items = [self.runtime.run(subscription.next_item()) for _ in RUNS]
        assert list(map(content, items)) == RUNS
        batches = subscription.batches()
        self.publish()

        async def taken() -> list[object]:
            return [await anext(batches) for _ in RUNS]

        assert list(map(content, self.runtime.run(taken()))) == RUNS

    def test_messages_after_the_first_batch(self) -> None:
        subscription = self.subscribed("cafe", "cafe/1", "cafe/2", "cafe/3")
        self.publish()
        first = self.runtime.run(subscription.next_item())
        assert content(first) == RUNS[0]
        rest = [self.message(subscription) for _ in SENT[1:]]
        assert [(one.topic, one.payload) for one in rest] == SENT[1:]

    def test_each_that_waits_gets_a_batch(self) -> None:
        subscription = self.subscribed("cafe", "cafe/1", "cafe/2", "cafe/3")
        works = [self.runtime.begin(subscription.next_item()) for _ in RUNS]
        self.publish()
        assert [content(work.result()) for work in works] == RUNS

    def test_closing_forgets_the_rest(self) -> None:
        subscription = self.subscribed("cafe", "cafe/1", "cafe/2", "cafe/3")
        self.publish()
        self.runtime.run(subscription.next_item())
        subscription.close()
        assert self.runtime.run(subscription.next_item()) is None

    def test_subscriptions_of_other_topics(self) -> None:
        self.runtime = MemoryRuntime(self.house)
        client = self.runtime.client("cafe")
        all_three = self.begun(client, "cafe/1", "cafe/2", "cafe/3")
        two = self.begun(client, "cafe/2", "cafe/3")
        self.publish()
        assert [self.message(all_three)[:2] for _ in SENT] == SENT
        wanted = [one for one in SENT if one[0] != "cafe/1"]
        assert [self.message(two)[:2] for _ in wanted] == wanted


class EventTests(SynchronousTestCase):
    """The events of a wire"""

    def test_all_columns_are_cut(self) -> None:
        mixed = MixedMessages(
            ("a", "b"), Columns.of([b"1", b"2", b"3"], [1, 0, 0]), [5, 6, 7], [8, 9, 10],
            [b"x", b"y", b"z"], [{}, {"k": b"v"}, {}],
        )  # fmt: skip
        runs = list(mixed.runs())
        assert [(one.topic, one.columns.payloads()) for one in runs] == [
            ("b", [b"1"]), ("a", [b"2", b"3"]),
        ]  # fmt: skip
        second = runs[1]
        assert (second.timestamps, second.offsets) == ([6, 7], [9, 10])
        assert (second.senders, second.headers) == ([b"y", b"z"], [{"k": b"v"}, {}])
        batch = MixedBatch(mixed)
        assert (batch.last_offset(), batch.last_timestamp()) == (10, 7)
        assert list(batch) == [message for part in batch.parts() for message in part]
        assert batch.held > MessageBatch(second).held
        # A program that prints an item sees what it is.
        assert repr(batch) == f"<MixedBatch: {len(batch)} of {len(mixed.topics)} topics>"
        assert repr(MessageBatch(second)) == f"<MessageBatch: 2 of {second.topic!r}>"

    def test_addresses_of_one_topic(self) -> None:
        columns = Columns.of([b"1", b"2"], [0, 1])
        (event,) = messages_of(columns, ["a", "a"], [b"x", b"y"])
        assert isinstance(event, Messages)
        assert (event.topic, event.columns.payloads()) == ("a", [b"1", b"2"])
        assert event.senders == [b"x", b"y"]

    def test_addresses_of_topics_that_repeat(self) -> None:
        columns = Columns.of([b"1", b"2", b"3"], [0, 1, 2])
        (event,) = messages_of(columns, ["a", "b", "a"])
        assert isinstance(event, MixedMessages)
        assert [(run.topic, run.columns.payloads()) for run in event.runs()] == [
            ("a", [b"1"]), ("b", [b"2"]), ("a", [b"3"]),
        ]  # fmt: skip
