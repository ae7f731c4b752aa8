"""``WideMix``: the audiences of all topics of a listener, for reads of any of them."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access import AccessRules
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.publishing import address_mixes
from pubsub.broker.publishing.address_mixes import AddressMixes
from pubsub.broker.routing import wide_mix
from pubsub.broker.routing.combination_cache import PastCombinations
from pubsub.broker.routing.dispatcher import Dispatcher
from pubsub.broker.routing.topic_mix import TopicMix
from pubsub.broker.routing.wide_mix import WideMix, WideRead
from pubsub.broker.slices import Slices
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topics import Topic
from pubsub.kernel import Columns
from tests.profiles import examples
from tests.unit.fakes import Lines, Reader, Transport, clock_at, make_broker, make_listener
from tests.unit.mixed_wires import STEPS, WANTED, CafeWire, RheosWire, outcome

MEMORY = 10_000_000


class SameTests(SynchronousTestCase):
    """Nothing but the work is different"""

    @examples(1)
    @given(st.sampled_from((CafeWire, RheosWire)), WANTED, STEPS)
    def test_clients_receive_the_same(
        self, make: Callable[[], CafeWire | RheosWire], wanted: list[set[int]], steps: list[Any]
    ) -> None:
        expected = outcome(make, wanted, steps)

        def at_once(_slices: Slices, work: Any, _then: object) -> None:
            for _ in work:
                pass

        with (
            patch.object(PastCombinations, "note", lambda _past, _key: False),
            patch.object(Slices, "run_later", at_once),
        ):
            assert outcome(make, wanted, steps) == expected


class WideCase(SynchronousTestCase):
    """A broker with five topics, whose addresses are their names, and a subscriber of four"""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.broker = make_broker(self.clock, BrokerLimits(max_memory=MEMORY))
        self.topics = {name: self.broker.topics.create(name) for name in "abcde"}
        self.mixes = AddressMixes(make_listener(self.broker), self.resolve)
        self.patch(  # type: ignore[no-untyped-call]
            PastCombinations, "note", lambda _past, _key: False
        )
        self.outbox, self.transport = self.subscriber("abcd")

    def resolve(self, address: str) -> Topic:
        return self.broker.topics.named(address[0])

    def subscriber(self, names: str) -> tuple[Any, Transport]:
        transport = Transport()
        outbox = make_listener(self.broker).outbox(transport, Reader())
        transport.outbox = outbox
        for name in names:
            self.broker.router.subscribe(outbox, self.topics[name], Lines(name.encode()))
        return outbox, transport

    def read(self, *addresses: str) -> object:
        """Publish a message to each address; return what they were published through."""
        columns = Columns.of(
            [str(n).encode() for n in range(len(addresses))],
            list(range(len(addresses))),
            list(addresses),
        )
        found = self.mixes.find(columns)
        assert found is not None
        self.broker.dispatcher.publish_mixed(*found, b"me", "cafe")
        return found[0]

    def work(self) -> None:
        """Let the slices do what they have."""
        for _ in range(50):
            self.clock.advance(0)

    def is_wide(self, *addresses: str) -> bool:
        return isinstance(self.read(*addresses), WideRead)


class UseTests(WideCase):
    """When the audiences are there, and what they get"""

    def test_the_first_read_has_them_made(self) -> None:
        assert not self.is_wide("a", "b")
        assert not self.is_wide("b", "a")
        self.work()
        assert self.is_wide("b", "a")

    def test_the_history_gets_the_same_names_for_all_reads(self) -> None:
        self.read(*"abcde")
        self.work()
        for addresses in ("edcba", "cebda"):
            assert self.is_wide(*addresses)
        batches = self.successResultOf(self.broker.store.read(5, None, 2**20)).batches
        assert [[one.topic for _, one in batch.runs()] for batch in batches] == [
            list("edcba"),
            list("cebda"),
        ]
        assert batches[0].topics is batches[1].topics
        assert [batch.offset for batch in batches] == [5, 10]
        # A read of fewer messages has names of its own.
        assert self.is_wide("b", "a")
        batches = self.successResultOf(self.broker.store.read(15, None, 2**20)).batches
        assert [batch.topics for batch in batches] == [("b", "a")]

    def test_messages_arrive_in_the_order_of_publishing(self) -> None:
        self.read("d", "c", "b", "a", "e")
        self.work()
        self.transport.writes.clear()
        assert self.is_wide("c", "e", "a", "d")
        self.work()
        assert self.transport.writes == [b"c0\na2\nd3\n"]

    def test_messages_are_counted_for_their_topics(self) -> None:
        self.read("a", "b", "c", "d", "e")
        self.work()
        assert self.is_wide("e", "b")
        self.broker.dispatcher.settle()
        assert {name: topic.messages for name, topic in self.topics.items()} == {
            "a": 1, "b": 2, "c": 1, "d": 1, "e": 2,
        }  # fmt: skip

    def test_the_history_has_the_topics_of_the_read_alone(self) -> None:
        self.read("a", "b", "c", "d", "e")
        self.work()
        assert self.is_wide("e", "b")
        batches = self.successResultOf(self.broker.store.read(5, None, 2**20)).batches
        assert [batch.topics for batch in batches] == [("e", "b")]

    def test_a_new_topic_is_added_when_as_many_were_routed(self) -> None:
        self.read("a", "b")
        self.work()
        assert not self.is_wide("a", "c")
        self.work()
        assert self.is_wide("a", "b")
        assert not self.is_wide("a", "c")
        self.work()
        assert self.is_wide("c", "a", "b")

    def test_subscriptions_that_change(self) -> None:
        self.read("a", "b")
        self.work()
        other, transport = self.subscriber("ac")
        assert self.is_wide("b", "a")
        self.work()
        assert b"".join(transport.writes) == b"a1\n"
        self.broker.router.unsubscribe(other, self.topics["a"])
        assert self.is_wide("b", "a")
        self.work()
        assert b"".join(transport.writes) == b"a1\n"
        assert b"".join(self.transport.writes).endswith(b"b0\na1\nb0\na1\n")

    def test_a_subscription_between_two_reads_of_a_tick(self) -> None:
        self.read("a", "b")
        self.work()
        assert self.is_wide("b", "a")
        _, transport = self.subscriber("a")
        assert self.is_wide("a", "b")
        self.work()
        assert b"".join(transport.writes) == b"a0\n"
        assert b"".join(self.transport.writes).endswith(b"b0\na1\na0\nb1\n")

    def test_many_subscriptions_that_change_do_so_in_slices(self) -> None:
        self.patch(wide_mix, "_CHANGED", 1)  # type: ignore[no-untyped-call]
        self.read("a", "b")
        self.work()
        for _ in range(2):
            self.subscriber("a")
        assert not self.is_wide("b", "a")
        self.work()
        assert self.is_wide("b", "a")

    def test_subscribers_that_are_behind_learn_what_has_passed(self) -> None:
        self.read("a", "b")
        self.work()
        self.broker.router.fall_behind(self.outbox, self.topics["b"])
        while not self.is_wide("b", "a"):
            self.work()
        assert self.topics["b"].passed >= 1
        assert self.topics["a"].passed == 0


class LimitTests(WideCase):
    """When there are none"""

    def test_two_addresses_of_a_topic(self) -> None:
        for addresses in (("a", "b"), ("a1", "b")):
            while not self.is_wide(*addresses):
                self.work()
        assert not self.is_wide("a", "a1")

    def test_a_topic_that_ends_and_comes_back(self) -> None:
        self.read("a", "b")
        self.work()
        self.broker.topics.remove(self.topics["b"])
        assert self.mixes.find(Columns.of([b"1", b"2"], [0, 1], ["a", "b"])) is None
        self.topics["b"] = self.broker.topics.create("b")
        self.broker.router.subscribe(self.outbox, self.topics["b"], Lines(b"again"))
        self.work()
        self.transport.writes.clear()
        while not self.is_wide("a", "b"):
            self.work()
        self.work()
        assert self.transport.writes[-1].endswith(b"a0\nagain1\n")

    def test_a_topic_that_ends_and_comes_back_while_the_mix_is_made(self) -> None:
        self.patch(wide_mix, "_STEP", 1)  # type: ignore[no-untyped-call]
        with patch.object(Slices, "run_later") as run_later:
            self.read("a", "b", "c")
        work, then = run_later.call_args.args
        assert [next(work) for _ in "abc"] == [None] * 3
        self.broker.topics.remove(self.topics["b"])
        self.topics["b"] = self.broker.topics.create("b")
        assert not self.is_wide("a", "b")
        assert list(work)
        then()
        self.is_wide("a", "b")
        self.work()
        assert self.is_wide("a", "b")

    def test_too_many_audiences(self) -> None:
        self.patch(wide_mix, "_AUDIENCES", 2)  # type: ignore[no-untyped-call]
        for name in "ab":
            self.subscriber(name)
        used = self.broker.memory.used
        self.read("a", "b")
        self.work()
        for _ in range(wide_mix._PATIENCE):
            assert not self.is_wide("a", "b")
            self.work()
        assert self.broker.memory.used == used + 2 * address_mixes._TOPIC_BYTES
        self.patch(wide_mix, "_AUDIENCES", 12)  # type: ignore[no-untyped-call]
        assert not self.is_wide("a", "b")
        self.work()
        assert self.is_wide("a", "b")

    def test_audiences_that_become_too_many(self) -> None:
        self.patch(wide_mix, "_AUDIENCES", 2)  # type: ignore[no-untyped-call]
        self.patch(wide_mix, "_MESSAGES", 1)  # type: ignore[no-untyped-call]
        self.read("a", "b")
        self.work()
        self.subscriber("a")
        assert self.is_wide("a", "b")
        self.subscriber("b")
        assert not self.is_wide("a", "b")
        assert self.mixes._wide._mix is None

    def test_few_messages_for_many_audiences(self) -> None:
        for name in "ab":
            self.subscriber(name)
        self.read("a", "b", "c")
        self.work()
        assert self.is_wide("a", "b")
        self.patch(wide_mix, "_MESSAGES", 30)  # type: ignore[no-untyped-call]
        assert not self.is_wide("a", "b")

    def test_too_many_subscribers(self) -> None:
        self.patch(wide_mix, "_LOOKED_AT", 3)  # type: ignore[no-untyped-call]
        self.subscriber("ab")
        for _ in range(3):
            assert not self.is_wide("a", "b")
            self.work()

    def test_messages_behind_those_that_are_routed_in_slices(self) -> None:
        self.read("a", "b")
        self.work()
        self.broker.router.waiting = 1  # type: ignore[assignment]
        assert self.mixes._wide.read_of(("a", "b")) is None

    def test_more_topics_than_a_remembered_combination_has(self) -> None:
        names = [f"topic {number}" for number in range(1100)]
        for name in names:
            self.topics[name] = self.broker.topics.create(name)
        self.patch(  # type: ignore[no-untyped-call]
            self.mixes, "_resolve", lambda address: self.broker.topics.named(address)
        )
        assert not self.is_wide(*names)
        for _ in range(100):
            self.clock.advance(0)
        assert self.is_wide(*reversed(names))
        self.patch(address_mixes, "_AT_ONCE", 1000)  # type: ignore[no-untyped-call]
        assert self.mixes.find(Columns.of([b""] * 1100, list(range(1100)), names)) is None


class MemoryTests(WideCase):
    """What is held"""

    def test_it_is_counted_and_returned(self) -> None:
        used = self.broker.memory.used
        self.read("a", "b")
        self.work()
        assert self.broker.memory.used > used
        self.mixes.clear()
        assert self.broker.memory.used == used
        assert not self.is_wide("a", "b")

    def test_it_is_given_up_when_memory_is_full(self) -> None:
        used = self.broker.memory.used
        self.read("a", "b")
        self.work()
        self.broker.memory.add(MEMORY)
        assert self.broker.memory.used == used + MEMORY
        assert not self.is_wide("a", "b")
        self.work()
        assert not self.is_wide("a", "b")
        self.broker.memory.free(MEMORY)
        assert not self.is_wide("a", "b")
        self.work()
        assert self.is_wide("a", "b")

    def test_topics_that_have_ended_do_not_stay_in_memory(self) -> None:
        self.patch(address_mixes, "MAX_ENDED", 2)  # type: ignore[no-untyped-call]
        self.patch(self.mixes, "_resolve", self.broker.topics.named)  # type: ignore[no-untyped-call]
        names = [f"short-lived/{number}" for number in range(3)]
        for name in names:
            self.broker.topics.create(name)
        self.read("a", "b", *names)
        self.work()
        assert self.is_wide("a", "b")
        self.work()
        for name in names:
            self.broker.topics.remove(self.broker.topics.named(name))
        self.broker.dispatcher.settle()
        gc.collect()
        alive = {one.name for one in gc.get_objects() if type(one) is Topic}
        assert "a" in alive
        assert alive.isdisjoint(names)
        while not self.is_wide("a", "b"):
            self.work()

    def test_audiences_that_take_too_much_memory(self) -> None:
        self.patch(wide_mix, "_PLACE_BYTES", 10**9)  # type: ignore[no-untyped-call]
        for _ in range(wide_mix._PATIENCE):
            assert not self.is_wide("a", "b")
            self.work()
        assert self.mixes._wide._routed < 0
        assert self.mixes._wide._mix is None

    def test_audiences_that_cannot_be_made_once(self) -> None:
        """They are looked for again, like those that were too many."""
        failing = patch.object(TopicMix, "prepare", side_effect=MemoryError("no memory"))
        with failing:
            self.read("a", "b")
            self.work()
        assert len(self.flushLoggedErrors(MemoryError)) == 1  # type: ignore[no-untyped-call]
        assert self.broker.memory.used < 100_000
        for _ in range(wide_mix._PATIENCE + 2):
            self.read("a", "b")
            self.work()
        assert self.is_wide("a", "b")

    def test_work_under_way_ends_with_it(self) -> None:
        self.read("a", "b")
        assert len(self.broker.slices) == 1
        self.broker.memory.add(MEMORY)
        self.broker.memory.free(MEMORY)
        self.work()
        assert len(self.broker.slices) == 0
        assert not self.is_wide("a", "b")

    def test_the_work_is_done_in_slices(self) -> None:
        known = {str(number): Topic(str(number)) for number in range(1000)}
        for topic in known.values():
            topic.set_hosted(True)
        wide = WideMix(self.broker.router, self.broker.slices)
        given: list[Any] = []
        with patch.object(Slices, "run_later", lambda _slices, work, _then: given.append(work)):
            wide.note_other(1000, known)
        (work,) = given
        assert sum(1 for _ in work) > 1000 / 50
        assert wide.read_of(["7", "3"]) is not None

    def test_audiences_that_are_too_many_for_the_reads_are_not_made_again(self) -> None:
        self.read("a", "b")
        self.work()
        assert self.is_wide("b", "a")
        self.patch(wide_mix, "_MESSAGES", 1000)  # type: ignore[no-untyped-call]
        for _ in range(20):
            assert not self.is_wide("a", "b")
            assert len(self.broker.slices) == 0
        for _ in range(2):
            self.read("c", "a")
        assert len(self.broker.slices) == 1


class WholeTests(WideCase):
    """Reads that are published as messages of all topics of the listener"""

    def setUp(self) -> None:
        super().setUp()
        self.rules = make_listener(self.broker).access
        self.closed: set[str] = set()
        self.read(*"abcde")
        self.work()
        # Has all topics looked at.
        self.whole(*"edcba")
        self.transport.writes.clear()

    def whole(self, *addresses: str) -> bool:
        """Publish a message to each address; return whether it was as messages of all topics."""
        access = AccessRules(lambda: self.rules.view, self.closed)
        distinct = list(dict.fromkeys(addresses))
        columns = Columns.of(
            [str(n).encode() for n in range(len(addresses))],
            [distinct.index(one) for one in addresses],
            distinct,
        )
        found = self.mixes.find(columns, access=access)
        assert found is not None
        self.broker.dispatcher.publish_mixed(*found, b"me", "cafe")
        self.work()
        return found[0] is self.mixes._wide._mix

    def test_as_many_messages_as_topics(self) -> None:
        assert self.whole(*"ebeac")
        assert self.transport.writes == [b"b1\na3\nc4\n"]
        assert not self.whole(*"ebea")

    def test_two_addresses_of_a_topic(self) -> None:
        for _ in range(3):
            self.read("b2", "c", "d")
        self.work()
        self.whole("b", "a", "b2", "c", "d", "e")
        self.transport.writes.clear()
        assert self.whole("b", "a", "b2", "b", "d")
        assert self.transport.writes == [b"b0\na1\nb2\nb3\nd4\n"]

    def test_messages_are_counted_for_their_topics(self) -> None:
        assert self.whole(*"bbbee")
        self.broker.dispatcher.settle()
        assert {name: topic.messages for name, topic in self.topics.items()} == {
            "a": 2, "b": 5, "c": 2, "d": 2, "e": 4,
        }  # fmt: skip

    def test_the_history_gets_their_topics(self) -> None:
        assert self.whole(*"ccaac")
        (batch,) = self.successResultOf(self.broker.store.read(10, None, 2**20)).batches
        assert [(one.topic, one.count) for _, one in batch.runs()] == [("c", 2), ("a", 2), ("c", 1)]

    def test_an_unknown_address(self) -> None:
        assert not self.whole(*"aaab", "b3")

    def test_a_topic_without_messages_that_the_client_may_not_publish_to(self) -> None:
        self.closed = {"d"}
        assert not self.whole(*"abcab")

    def test_a_topic_without_messages_that_is_stored_differently(self) -> None:
        self.broker.topics.named("d").set_durability(Durability.NONE)
        assert not self.whole(*"abcab")

    def test_topics_that_expire_are_not_used_by_messages_of_others(self) -> None:
        self.broker.topics.expire = True
        self.topics["d"].idle_since = 7.0
        assert not self.whole(*"abcab")
        assert self.topics["d"].idle_since == 7.0

    def test_other_brokers_get_the_topics_of_the_read(self) -> None:
        forwarded: list[list[str]] = []

        class Forwarding:
            def published(self, topics: Any, batch: Any) -> None:
                forwarded.append([one.name for one in topics])

        self.broker.router.forwarding = Forwarding()  # type: ignore[assignment]
        assert not self.whole(*"cacac")
        assert forwarded == [["c", "a"]]


class DispatchTests(WideCase):
    """``Dispatcher.publish_mixed``"""

    def test_other_brokers_get_the_topics_of_the_read(self) -> None:
        self.read("a", "b", "c")
        self.work()
        published: list[tuple[list[str], list[int]]] = []

        class Forwarding:
            def published(self, topics: Any, batch: Any) -> None:
                published.append(([one.name for one in topics], batch.columns.indexes()))

        self.broker.router.forwarding = Forwarding()  # type: ignore[assignment]
        dispatcher: Dispatcher = self.broker.dispatcher
        found = self.mixes.find(Columns.of([b"1", b"2", b"3"], [0, 1, 0], ["c", "a"]))
        assert found is not None
        assert isinstance(found[0], WideRead)
        dispatcher.publish_mixed(*found, b"me", "cafe")
        assert published == [(["c", "a"], [0, 1, 0])]
