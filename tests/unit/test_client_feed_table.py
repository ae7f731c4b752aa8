"""Many subscriptions of one client, and a program that closes some when it gets a notice."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import Gap, MessageBatch, Notice, Subscription
from pubsub.client.feed import Feed
from pubsub.client.feed_table import FeedTable
from pubsub.wire.client_events import Interest
from tests.unit.client_runtime import MemoryRuntime
from tests.unit.streams import House


class Unread(set[Any]):
    """The interests that a feed withholds, at which nothing may look."""

    def __contains__(self, one: object) -> bool:
        raise AssertionError("a feed of other topics was looked at")


def feed(*names: str, prefixes: Iterable[str] = (), start: int | None = None) -> Feed:
    interests = [Interest(name, start=start) for name in names]
    return Feed(interests + [Interest(one, prefix=True) for one in prefixes], 1000, True)


class FeedTableTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.table = FeedTable()

    def add(self, *names: str, **rest: Any) -> Feed:
        made = feed(*names, **rest)
        self.table.add(made)
        return made

    def test_a_message_looks_at_the_feeds_of_its_topic_alone(self) -> None:
        """With a look at each, thousands of subscriptions cost milliseconds for each message."""
        for number in range(5000):
            self.add(f"other/{number}").withheld = Unread()
        wanted = self.add("wanted")
        assert self.table.of_topic("wanted") == [wanted]
        assert self.table.of_topic("nobody's") == []

    def test_names_and_prefixes(self) -> None:
        both = self.add("game:1", prefixes=["game:", "g"])
        name = self.add("game:1")
        prefix = self.add(prefixes=["game:"])
        started = self.add("game:1", start=5)
        found = self.table.of_topic("game:1")
        assert set(found) == {both, name, prefix, started}
        assert len(found) == 4
        assert set(self.table.of_topic("game:2")) == {both, prefix}
        assert self.table.of_topic("go") == [both]

    def test_the_last_feed_of_an_interest_leaves_it(self) -> None:
        first, second = self.add("a", "b"), self.add("a")
        assert self.table.remove(first) == [Interest("b")]
        assert self.table.of_topic("a") == [second]
        assert self.table.remove(first) == []
        assert self.table.remove(second) == [Interest("a")]
        # Messages may still be on their way.
        assert [self.table.of_topic(name) for name in "ab"] == [[], []]
        assert (list(self.table), self.table.interests) == ([], [])

    def test_what_a_feed_withholds(self) -> None:
        made = self.add("a")
        made.withheld.add(Interest("a"))
        assert self.table.of_topic("a") == []
        made.withheld.clear()
        self.table.withheld_changed()
        assert self.table.of_topic("a") == [made]

    def test_it_is_full_while_one_of_its_feeds_is(self) -> None:
        first, second = self.add("a"), self.add("b")
        assert not self.table.full
        for one in (first, second):
            one.full = True
            self.table.filled(one)
        first.full = False
        assert self.table.full
        self.table.remove(second)
        assert not self.table.full


class NoticeTests(SynchronousTestCase):
    """``on_event`` may close subscriptions"""

    def test_the_others_get_their_gaps(self) -> None:
        runtime = MemoryRuntime(House({"spot": {}}))
        subscriptions: dict[str, Subscription[Notice]] = {}

        def on_event(notice: Notice) -> None:
            if isinstance(notice, Gap) and notice.topics == ("a",):
                subscriptions["a"].close()

        client: Any = runtime.client("spot", on_event=on_event)
        for topic in "abc":
            subscriptions[topic] = client.subscribe(topic, events=True)
            runtime.run(subscriptions[topic].accepted())
        for stream in runtime.streams:
            stream.snap()
        runtime.settle()
        runtime.advance(1)
        runtime.run(client.publish("b", b"x", confirm=True))
        runtime.settle()
        assert self.kinds(runtime, subscriptions["a"]) == []
        assert self.kinds(runtime, subscriptions["b"]).count(Gap) == 1
        assert self.kinds(runtime, subscriptions["c"]).count(Gap) == 1

    def kinds(self, runtime: MemoryRuntime, subscription: Subscription[Notice]) -> list[type]:
        """Return the kinds of the items up to the first batch, or to the end."""
        found: list[type] = []
        while True:
            work = runtime.begin(subscription.next_item(0.001))
            try:
                item = work.result()
            except TimeoutError:
                return found
            if item is None or isinstance(item, MessageBatch):
                return found
            found.append(type(item))
