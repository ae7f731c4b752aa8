"""Combinations of topics that come once: they are delivered as those that come often."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.routing import (
    combination_cache,
    gathered_audience,
    gathered_routing,
    passing_mix,
    row_routing,
    sliced_routing,
)
from pubsub.broker.routing.combination_cache import PastCombinations
from pubsub.broker.routing.router import Router
from pubsub.broker.routing.topic_mix import TopicMix
from pubsub.broker.routing.wide_mix import WideMix
from pubsub.broker.topic_space.topics import Recipient
from pubsub.kernel import Columns, Senders
from tests.profiles import examples
from tests.unit import cafe_wire
from tests.unit.fakes import Reader, Transport, clock_at, make_broker, make_listener
from tests.unit.kinds_of_encodings import encoding_of
from tests.unit.mixed_wires import STEPS, WANTED, CafeWire, RheosWire, Step, Wire, outcome
from tests.unit.streams import House


class SameTests(SynchronousTestCase):
    """Nothing but the work is different"""

    @examples(1)
    @given(st.sampled_from((CafeWire, RheosWire)), WANTED, STEPS)
    def test_clients_receive_the_same(
        self, make: Callable[[], Wire], wanted: list[set[int]], steps: list[Step]
    ) -> None:
        found = []
        bounds = (
            (gathered_audience, "_COPIED", 10),
            (gathered_routing, "_AUDIENCES", 0),
        )
        for is_past in (False, True):
            with patch.object(PastCombinations, "note", lambda past, key, is_past=is_past: is_past):
                found.append(outcome(make, wanted, steps))
                for bound in bounds:
                    with (
                        patch.multiple(passing_mix, _SOME=-100, _SUBSCRIBED=100, _PIECES=1),
                        patch.object(*bound),
                        patch.object(gathered_routing, "_DELIVERIES", 2),
                    ):
                        found.append(outcome(make, wanted, steps))
        assert found[1:] == found[:1] * 5


class ChoiceTests(SynchronousTestCase):
    """Which combinations get audiences of their own"""

    def setUp(self) -> None:
        self.house = House({"cafe": {}})
        self.topics = [self.house.broker.topics.create(name) for name in "abc"]

    def test_those_that_come_again(self) -> None:
        wire = CafeWire()
        reader = wire.reader({1, 2})
        for number in (1, 2):
            wire.publisher.send(wire.publish(number, b"first"))
        reader.take()
        read = wire.publish(1, b"x") + wire.publish(2, b"y")
        mixes: list[TopicMix] = []
        real = TopicMix.audiences

        def audiences(mix: TopicMix) -> Any:
            mixes.append(mix)
            return real(mix)

        with (
            patch.object(TopicMix, "audiences", audiences),
            patch.object(WideMix, "whole_of", lambda *arguments: None),
        ):
            for expected in (0, 1):
                wire.publisher.send(read)
                assert len(mixes) == expected
        assert len(cafe_wire.frames(reader.take())) == 4

    def test_topics_with_subscribers_of_their_own(self) -> None:
        """No audiences are made, and none are used that are there."""
        wire = CafeWire()
        readers = [wire.reader({number}) for number in (1, 2, 3)]
        read = b"".join([wire.publish(number, b"x") for number in (1, 2, 3, 1)])
        for _ in range(2):
            wire.publisher.send(read)
        with patch.object(passing_mix, "_SOME", 0), patch.object(TopicMix, "audiences", None):
            wire.publisher.send(read)
        joined = wire.reader({1, 2, 3})
        with (
            patch.object(passing_mix, "_SOME", 0),
            patch.object(TopicMix, "audiences", None),
            patch.object(Router, "route", None),
        ):
            wire.publisher.send(read)
        received = [len(cafe_wire.frames(one.take())) for one in (*readers, joined)]
        assert received == [8, 4, 4, 4]
        # They share their subscribers now.
        with (
            patch.multiple(passing_mix, _SOME=0, _SUBSCRIBED=1),
            patch.object(TopicMix, "audiences", None),
            pytest.raises(TypeError),
        ):
            wire.publisher.send(read)

    def test_ticks_with_many_small_pieces_wait_for_more(self) -> None:
        wire = CafeWire()
        reader = wire.reader({1, 2})
        asked: list[Callable[[], bool]] = []
        wire.house.broker.dispatcher.gathering.look_again = asked.append
        router = wire.house.broker.router

        def send() -> None:
            wire.publisher.send(wire.publish(1, b"x") + wire.publish(2, b"y"))

        self.patch(WideMix, "_ready", lambda wide, addresses: None)  # type: ignore[no-untyped-call]
        with patch.object(PastCombinations, "note", lambda past, key: False):
            for number in (1, 2):
                wire.publisher.send(wire.publish(number, b"first"))
            send()
            assert asked == []
            self.patch(passing_mix, "_PIECES", 1)  # type: ignore[no-untyped-call]
            send()
        (while_true,) = asked
        assert not while_true()
        assert len(cafe_wire.frames(reader.take())) == 6
        topic = wire.house.broker.topics.named(wire.name(1))
        (group,) = topic.groups.values()
        router.add(group, b"x", 1, 0, topic)
        assert while_true()
        with patch.object(passing_mix, "_MOST_PIECES", 0):
            assert not while_true()
        router.gate.close()
        assert not while_true()
        router.gate.open()
        assert while_true()
        router.add(group, bytes(4095), 1, 0, topic)
        assert not while_true()

    def test_a_topic_with_two_addresses(self) -> None:
        a, b, _ = self.topics
        assert passing_mix.passing_mix(self.house.broker.router, [a, b, a]) is None

    def test_topics_with_very_many_subscribers(self) -> None:
        """They are looked at in slices."""
        wire = CafeWire()
        for _ in range(2):
            wire.reader({1, 2})
        router = wire.house.broker.router
        topics = [wire.house.broker.topics.named(wire.name(number)) for number in (1, 2)]
        assert passing_mix.passing_mix(router, topics) is not None
        self.patch(passing_mix, "_SUBSCRIPTIONS", 3)  # type: ignore[no-untyped-call]
        assert passing_mix.passing_mix(router, topics) is None

    def test_messages_behind_those_that_are_routed_in_slices(self) -> None:
        router = self.house.broker.router
        assert passing_mix.passing_mix(router, self.topics) is not None
        router.waiting = 1  # type: ignore[assignment]
        assert passing_mix.passing_mix(router, self.topics) is None

    def test_subscribers_that_are_behind_learn_what_has_passed(self) -> None:
        a, b, c = self.topics
        mix = passing_mix.passing_mix(self.house.broker.router, (a, b, c))
        assert mix is not None
        a.behind, c.behind = {cast("Recipient", object())}, {cast("Recipient", object())}
        self.house.broker.router.behind.update((a, c))
        columns = Columns.of([b"1", b"2", b"3"], [0, 1, 0], list("abc"))
        self.house.broker.dispatcher.publish_mixed(mix, columns, b"me", "cafe")
        assert (a.passed, b.passed, c.passed) == (2, 0, 0)
        assert (a.messages, b.messages, c.messages) == (2, 1, 0)


class BoundTests(SynchronousTestCase):
    """Reads for subscribers of different ones of the topics, which may take too long for a tick"""

    def read(self, kind: str, senders: Senders | None = None) -> int:
        """Route twelve messages of six topics to six subscribers of two topics each.

        Return how many are delivered.
        """
        broker = make_broker(clock_at())
        listener = make_listener(broker)
        topics = [broker.topics.create(f"t{number}") for number in range(6)]
        self.transports = [Transport() for _ in topics]
        for number, transport in enumerate(self.transports):
            outbox = transport.outbox = listener.outbox(transport, Reader())
            for place in (number, (number + 1) % 6):
                broker.router.subscribe(outbox, topics[place], encoding_of(kind, place))
        columns = Columns.of([b"x"] * 12, [*range(6), *range(6)])
        mix = passing_mix.passing_mix(broker.router, topics)
        assert mix is not None
        broker.dispatcher.publish_mixed(mix, columns, senders or b"me", "toy")
        self.waiting = len(broker.router.waiting)
        broker.router.finish()
        # The topics may not come together again.
        assert len(broker.router.mixes) == 0
        return broker.router.counters.delivered

    def test_messages_of_all_audiences(self) -> None:
        """They are 24: each message has two subscribers."""
        self.patch(sliced_routing, "_UNITS", 1)  # type: ignore[no-untyped-call]
        for kind, module in (("times", gathered_routing), ("rows", row_routing)):
            for most, waiting in ((24, 0), (23, 1)):
                with patch.multiple(module, _MESSAGES=most, _DELIVERIES=0):
                    assert self.read(kind) == 24
                assert self.waiting == waiting, (kind, most)

    def test_rows_of_several_senders(self) -> None:
        """Each message is encoded once if it would be for many audiences."""
        senders = array("I", [6, 6]).tobytes(), (b"ada", b"bob")
        for times, by in ((2, "_Divided"), (1, "route_runs")):
            with patch.object(row_routing, "_TIMES", times):
                with patch.object(row_routing, by, None), pytest.raises(TypeError):
                    self.read("rows", senders)
                assert self.read("rows", senders) == 24
            assert self.waiting == 0
            data = self.transports[5].data
            assert data.index(b'"t0" ada') < data.index(b'"t5" ada') < data.index(b'"t0" bob')

    def test_no_subscriber_gets_rows(self) -> None:
        """Nothing is done for them."""
        with patch.object(row_routing, "_Divided", None):
            assert self.read("times", (array("I", [6, 6]).tobytes(), (b"ada", b"bob"))) == 24


class PastTests(SynchronousTestCase):
    """``PastCombinations``"""

    def test_it_knows_those_that_have_come(self) -> None:
        past = PastCombinations(MemoryBudget(0))
        assert [past.note(key) for key in ((1, 2), (2, 1), (1, 2), (2, 1), (1,))] == [
            False, False, True, True, False,
        ]  # fmt: skip

    def test_it_forgets_what_the_cache_has_no_room_for(self) -> None:
        self.patch(combination_cache, "_MAX_ITEMS", 10)  # type: ignore[no-untyped-call]
        past = PastCombinations(MemoryBudget(0))
        keys = [tuple(range(n, n + 4)) for n in range(4)]
        for _ in range(3):
            assert not any(past.note(key) for key in keys)
        assert not any(past.note(key) for key in keys[:2])
        assert all(past.note(key) for key in keys[:2])

    def test_their_memory_is_counted_and_bounded(self) -> None:
        memory = MemoryBudget(10**6)
        past = PastCombinations(memory)
        past.note((1,))
        one = memory.used
        assert one > 0
        past.note((1,))
        assert memory.used == one
        for number in range(10_000):
            past.note((number, 2))
        assert memory.used <= 1025 * one
        memory.add(10**6)
        assert memory.used == 10**6
        assert not past.note((1,))
