"""Subscriptions in the memory budget: each is charged from its begin to its end."""

from __future__ import annotations

from dataclasses import dataclass
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.interfaces import IReactorTime
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery import subscribing
from pubsub.broker.delivery.outbox import Outbox
from pubsub.broker.delivery.slow_policy import AUTO, SlowPolicy
from pubsub.broker.delivery.start_positions import Position
from pubsub.broker.delivery.subscription_account import BEHIND_BYTES, GROUP_BYTES, LIVE_BYTES
from pubsub.broker.memory_budget import SUBSCRIPTIONS
from pubsub.broker.topic_space.topics import Topic
from pubsub.errors import MemoryExhausted
from pubsub.kernel import Columns
from pubsub.store.memory_store import MemoryStore
from tests.unit import cafe_wire, fast_wire
from tests.unit.brokers import ready
from tests.unit.brokers import subscribe as spot_subscribe
from tests.unit.cafe_udp import BOB, CAROL, Udp
from tests.unit.fakes import Held, Lines, Reader, Transport, clock_at, make_broker, make_listener
from tests.unit.fast_wire import FastCase
from tests.unit.streams import House

NAMES = "abcd"
CLIENTS = 4
_NO_MEMORY = cafe_wire.error(4)


@dataclass(frozen=True)
class Step:
    """One event: what happens to a client and a topic. ``number`` selects a variant."""

    kind: str
    client: int
    topic: str
    number: int


KINDS = (
    "subscribe", "subscribe", "read history", "unsubscribe", "end", "shut", "lose", "resume",
    "publish", "publish", "stop reading", "read", "exclude", "turn",
)  # fmt: skip
STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(KINDS),
        st.integers(0, CLIENTS - 1),
        st.sampled_from(NAMES),
        st.integers(0, 2),
    ),
    max_size=50,
)


class World:
    """A broker with subscribers, to which random steps happen."""

    def __init__(self) -> None:
        self.clock: IReactorTime = clock_at()
        self.broker = make_broker(self.clock, store=MemoryStore(1000, 2**26))
        self.publisher = make_listener(self.broker).publisher(Held(), b"alice")
        self.clients = [self.client() for _ in range(CLIENTS)]
        self.kept: list[dict[Topic, Position]] = [{} for _ in range(CLIENTS)]

    def client(self) -> Outbox:
        transport = Transport()
        traffic = self.broker.counters.traffic["toy"]
        policy = SlowPolicy(AUTO, 4096, 30)
        box = Outbox(self.broker.cursors, transport, policy, Reader(), traffic)
        transport.outbox = box
        return box

    def take(self, step: Step) -> None:
        router, box = self.broker.router, self.clients[step.client]
        topic = self.broker.topics.create(step.topic)
        match step.kind:
            case "subscribe":
                router.subscribe(box, topic, Lines(b"%d" % step.number))
            case "read history":
                router.subscribe(box, topic, Lines(b"%d" % step.number), 0)
            case "unsubscribe":
                router.unsubscribe(box, topic)
            case "end":
                self.broker.topic_lifecycle.end(topic)
            case "publish":
                self.publisher.publish(topic, Columns.of([b"x" * 400] * (step.number + 1)))
            case "stop reading":
                box.pause()
            case "read":
                box.resume()
            case "exclude":
                with router.excluding(box, topic):
                    for other in self.clients[: step.number + 1]:
                        router.unsubscribe(other, topic)
            case "turn":
                self.turn()
            case _:
                self.take_end(step)

    def take_end(self, step: Step) -> None:
        at, box = step.client, self.clients[step.client]
        if step.kind == "shut":
            box.shut("disconnected")
            self.clients[at] = self.client()
        elif step.kind == "lose":
            self.kept[at] = box.shut_and_get_offsets()
            self.clients[at] = self.client()
        else:
            kept, self.kept[at] = self.kept[at], {}
            for topic, position in kept.items():
                if self.broker.topics.holds(topic):
                    self.broker.router.subscribe(box, topic, Lines(b"0"), position)

    def turn(self) -> None:
        for _ in range(40):
            self.clock.advance(0)  # type: ignore[attr-defined]

    @property
    def charged(self) -> int:
        return self.broker.memory.held[SUBSCRIPTIONS]

    def check(self) -> None:
        """The charge is that of the subscriptions that there are."""
        self.turn()
        topics = [self.broker.topics.create(name) for name in NAMES]
        live = sum(len(group) for topic in topics for group in topic.groups.values())
        behind = sum(len(topic.behind or ()) for topic in topics)
        groups = sum(len(topic.groups) for topic in topics)
        assert live == sum(len(box.subscriptions) for box in self.clients)
        assert self.broker.router.subscriptions == live + behind
        expected = LIVE_BYTES * live + BEHIND_BYTES * behind + GROUP_BYTES * groups
        assert self.charged == expected

    def check_end(self) -> None:
        """Nothing is charged when all clients have left."""
        for box in self.clients:
            box.shut("disconnected")
        self.turn()
        assert self.broker.router.subscriptions == 0
        assert self.charged == 0
        memory, topics = self.broker.memory, self.broker.topics
        for topic in [topics.create(name) for name in NAMES]:
            self.broker.topic_lifecycle.end(topic)
        assert memory.used == memory.aside + memory.cached


class HistoryTests(SynchronousTestCase):
    """Random histories of subscriptions"""

    @given(STEPS, st.sampled_from([1, 64]))
    def test_the_account_is_that_of_the_subscriptions(self, steps: list[Step], few: int) -> None:
        with mock.patch.object(subscribing, "_FEW", few):
            world = World()
            for number, step in enumerate(steps):
                world.take(step)
                if number % 8 == 7:
                    world.check()
            world.check()
            world.check_end()


class RouterTests(SynchronousTestCase):
    """Router.subscribe"""

    def setUp(self) -> None:
        self.world = World()
        self.router, self.memory = self.world.broker.router, self.world.broker.memory
        self.topic = self.world.broker.topics.create("a")
        self.box = self.world.clients[0]

    def test_it_is_refused_at_the_bound(self) -> None:
        self.memory.limit = self.memory.used
        with pytest.raises(MemoryExhausted):
            self.router.subscribe(self.box, self.topic, Lines())
        assert (self.world.charged, self.topic.groups) == (0, {})

    def test_what_is_subscribed_already_is_not_refused(self) -> None:
        assert self.router.subscribe(self.box, self.topic, Lines())
        self.memory.limit = self.memory.used
        assert not self.router.subscribe(self.box, self.topic, Lines())

    def test_what_is_admitted_is_counted_beyond_the_bound(self) -> None:
        self.memory.limit = self.memory.used
        assert self.router.subscribe(self.box, self.topic, Lines(), admitted=True)
        assert self.world.charged == LIVE_BYTES + GROUP_BYTES

    def test_an_outbox_that_is_shut_is_not_subscribed(self) -> None:
        self.box.shut("disconnected")
        assert not self.router.subscribe(self.box, self.topic, Lines())
        assert not self.router.subscribe(self.box, self.topic, Lines(), 0)
        assert (self.world.charged, self.topic.has_readers) == (0, False)

    def test_a_second_subscriber_shares_the_group(self) -> None:
        self.router.subscribe(self.box, self.topic, Lines())
        self.router.subscribe(self.world.clients[1], self.topic, Lines())
        assert self.world.charged == 2 * LIVE_BYTES + GROUP_BYTES

    def test_the_figures_have_an_account(self) -> None:
        self.router.subscribe(self.box, self.topic, Lines())
        figures = self.world.broker.statistics.snapshot()
        assert figures["memory"]["accounts"]["subscriptions"] == LIVE_BYTES + GROUP_BYTES


class CafeTests(SynchronousTestCase):
    """cafe, over UDP"""

    def setUp(self) -> None:
        self.udp = Udp()
        self.memory = self.udp.broker.memory

    def fill(self) -> None:
        self.memory.limit = self.memory.used

    def test_a_client_with_all_channels_is_charged(self) -> None:
        self.udp.join(BOB, cafe_wire.hs_sub(b"\x00"))
        before = self.memory.used
        for channel in range(1, 255):
            self.udp.send(BOB, cafe_wire.subscribe(channel))
        assert self.memory.used == before + 254 * (LIVE_BYTES + GROUP_BYTES)
        self.udp.join(CAROL, cafe_wire.hs_sub(bytes(range(255))))
        assert self.memory.held[SUBSCRIPTIONS] == 2 * 255 * LIVE_BYTES + 255 * GROUP_BYTES
        for address in (BOB, CAROL):
            self.udp.send(address, cafe_wire.DISCONNECT)
        self.udp.turn()
        self.udp.advance(1)
        assert self.memory.held[SUBSCRIPTIONS] == 0

    def test_a_subscription_is_refused_at_the_bound(self) -> None:
        self.udp.join(BOB, cafe_wire.hs_sub(b"\x01"))
        self.fill()
        assert self.udp.send(BOB, cafe_wire.subscribe(2)) == [_NO_MEMORY]
        assert self.udp.broker.counters.refusals == {("cafe", "memory"): 1}
        self.memory.limit += 1
        assert self.udp.send(BOB, cafe_wire.subscribe(2)) == []
        assert self.udp.send(BOB, cafe_wire.subscribe(3)) == [_NO_MEMORY]
        assert self.udp.broker.router.subscriptions == 2

    def resume_at_the_bound(self, channels: bytes) -> int:
        """Return the status of a handshake that resumes a session with two channels."""
        house = cafe_wire.Cafe()
        bob = house.connect("cafe")
        bob.send(cafe_wire.hs_sub(b"\x01\x02", b"bob"))
        bob.stream.lose()
        again = house.connect("cafe")
        memory = house.broker.memory
        memory.limit = memory.used
        again.send(cafe_wire.hs_sub(channels, cafe_wire.resume(b"bob", 1)))
        return cafe_wire.frames(again.take())[0][1][0]

    def test_a_session_is_resumed_at_the_bound_with_no_more_than_it_had(self) -> None:
        assert self.resume_at_the_bound(b"\x01\x02") == 0
        assert self.resume_at_the_bound(b"") == 0
        assert self.resume_at_the_bound(b"\x01\x02\x03") == 4


class FastTests(FastCase):
    """fast"""

    def test_a_subscription_is_refused_at_the_bound(self) -> None:
        fast = self.house()
        fast.owner()
        client, memory = fast.client(), fast.broker.memory
        # Less than is left when the caches are empty.
        memory.limit = 1
        client.send(fast_wire.subscribe(fast_wire.READER))
        assert client.take() == fast_wire.error(2, fast_wire.RATE_LIMITED)
        assert fast.refusals() == {"memory": 1}
        assert fast.broker.router.subscriptions == 0
        memory.limit = 0
        client.send(fast_wire.unsubscribe(fast_wire.READER))
        # The token is verified now.
        before = memory.used
        client.send(fast_wire.subscribe(fast_wire.READER) * 2)
        assert memory.used >= before + 1024 + LIVE_BYTES + GROUP_BYTES
        client.send(fast_wire.unsubscribe(fast_wire.READER))
        assert memory.used == before


class SpotTests(SynchronousTestCase):
    """spot: topics that a prefix covers"""

    def setUp(self) -> None:
        self.house = House({"spot": {}})
        self.memory = self.house.broker.memory

    def joined(self, *requests: bytes) -> None:
        client = self.house.connect("spot")
        client.send(ready(b"DEALER") + b"".join(requests))
        self.house.pump()

    def test_topics_beyond_the_bound_are_refused(self) -> None:
        for number in range(20):
            self.house.broker.topics.create(f"t{number:02}")
        self.joined()
        used = self.memory.used
        # Another connection, its prefix, and nine topics.
        self.memory.limit = used + (used - 20 * 1024) + 768 + 9 * (LIVE_BYTES + GROUP_BYTES)
        self.joined(spot_subscribe(b"t*"))
        assert self.house.broker.router.subscriptions == 9
        assert self.house.broker.counters.refusals == {("spot", "memory"): 11}

    def test_a_new_topic_reaches_its_readers_nevertheless(self) -> None:
        self.joined(spot_subscribe(b"*"))
        self.memory.limit = self.memory.used + 1
        self.house.broker.topics.create("new")
        assert self.memory.full
        assert self.house.broker.router.subscriptions == 1
        assert self.memory.held[SUBSCRIPTIONS] == LIVE_BYTES + GROUP_BYTES
