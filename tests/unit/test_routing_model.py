"""Routing compared with a model: every outbox gets its messages, once, in order and counted."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, chain
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.delivery.slow_policy import DROP, SlowPolicy
from pubsub.broker.memory_budget import SUBSCRIPTIONS
from pubsub.broker.routing import common_encoder, mixed_routing, sliced_routing
from pubsub.broker.routing import router as router_module
from pubsub.broker.topic_space.topics import Topic
from pubsub.interfaces import Encoding
from tests.profiles import examples
from tests.unit.fakes import Lines, Transport, batch_of, mixed_batch
from tests.unit.framed_encoder import Framed
from tests.unit.stepped_bench import SteppedBench

NAMES = "abc"
OUTBOXES = 6
LIMITS = (100, 100, 2, 0)


@dataclass(frozen=True)
class Publish:
    """Publish messages, given as topic and size, at once."""

    sent: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class PublishOne:
    """Publish messages of one topic, given by their size."""

    topic: str
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Subscribe:
    """Subscribe an outbox to a topic with one of four encodings."""

    outbox: int
    topic: str
    encoding: int


@dataclass(frozen=True)
class Unsubscribe:
    """Unsubscribe an outbox from a topic, or from all."""

    outbox: int
    topic: str | None


@dataclass(frozen=True)
class Exclude:
    """Publish a message of a topic to all subscribers but one."""

    outbox: int
    topic: str


@dataclass(frozen=True)
class End:
    """End a topic; another of its name begins."""

    topic: str


@dataclass(frozen=True)
class Hold:
    """Have the transport of an outbox be full, or empty."""

    outbox: int
    full: bool


@dataclass(frozen=True)
class Turn:
    """End the reactor tick."""


Step = Publish | PublishOne | Subscribe | Unsubscribe | Exclude | End | Hold | Turn

_names = st.sampled_from(NAMES)
_outboxes = st.integers(0, OUTBOXES - 1)
_sizes = st.sampled_from([0, 1, 2, 3, 30])
_subscribe = st.builds(Subscribe, _outboxes, _names, st.sampled_from([0, 0, 0, 1, 2, 3]))
_publish = st.builds(
    Publish, st.lists(st.tuples(_names, _sizes), min_size=1, max_size=8).map(tuple)
)
_publish_one = st.builds(PublishOne, _names, st.lists(_sizes, min_size=1, max_size=3).map(tuple))
_others = st.one_of(
    _subscribe,
    _subscribe,
    st.builds(Unsubscribe, _outboxes, st.none() | _names),
    st.builds(Exclude, _outboxes, _names),
    st.builds(End, _names),
    st.builds(Hold, _outboxes, st.booleans()),
    st.just(Turn()),
)
# Most changes of a subscription hand over the messages before it: many are published in a row.
_bursts: st.SearchStrategy[list[Step]] = st.lists(_publish | _publish_one, min_size=1, max_size=8)
STEPS: st.SearchStrategy[list[Step]] = st.builds(
    lambda first, then: [*first, *chain(*then)],
    st.lists(_subscribe, max_size=12),
    st.lists(_bursts | _others.map(lambda step: [step]), max_size=12),
)


@dataclass
class Member:
    """An outbox, and the messages that it should receive."""

    transport: Transport
    wanted: dict[str, int] = field(default_factory=dict)
    expected: list[bytes] = field(default_factory=list)
    too_large: int = 0


class World:
    """A router and a model of it. ``framed`` selects the kind of encodings."""

    def __init__(self, framed: bool) -> None:
        self.framed = framed
        self.bench = SteppedBench()
        self.topics = {name: Topic(name) for name in NAMES}
        policy = SlowPolicy(DROP, 2**30)
        self.members = [Member(self.bench.outbox(policy, f"{n}")) for n in range(OUTBOXES)]
        self.number = 0

    def encoding(self, topic: str, which: int) -> Encoding:
        """The first of the encodings has the same frames for all topics."""
        tag = b"=" if which == 0 else topic.encode() if which == 1 else topic.upper().encode()
        return Framed(tag, LIMITS[which]) if self.framed else Lines(tag, LIMITS[which])

    def frame(self, topic: str, which: int, payload: bytes) -> bytes:
        encoding = self.encoding(topic, which)
        if isinstance(encoding, Framed):
            return encoding.frame(payload, mixed_batch([], ()).timestamp)
        assert isinstance(encoding, Lines)
        return encoding.tag + payload + b"\n"

    def payload(self, size: int) -> bytes:
        """Return a payload of ``size`` bytes, which are those of a number that counts up."""
        self.number += 1
        return self.number.to_bytes(4, "big").hex().encode()[-size:].rjust(size, b".")[:size]

    def expect(self, topic: str, payload: bytes, excluded: Member | None = None) -> None:
        for member in self.members:
            which = member.wanted.get(topic)
            if which is None or member is excluded:
                continue
            if len(payload) <= LIMITS[which]:
                member.expected.append(self.frame(topic, which, payload))
            else:
                member.too_large += 1

    def take(self, step: Step) -> None:
        router = self.bench.router
        match step:
            case Publish(sent):
                messages = [(topic, self.payload(size)) for topic, size in sent]
                for message in messages:
                    self.expect(*message)
                mix = router.mix({self.topics[topic] for topic, _ in sent})
                router.route_mixed(mix, mixed_batch(messages, mix.names, self.number))
            case PublishOne(topic, sizes):
                payloads = [self.payload(size) for size in sizes]
                for payload in payloads:
                    self.expect(topic, payload)
                router.route(self.topics[topic], batch_of(payloads, topic, offset=self.number))
            case End(topic):
                router.end(self.topics[topic])
                self.topics[topic] = Topic(topic)
                for member in self.members:
                    member.wanted.pop(topic, None)
            case Turn():
                self.bench.turn()
            case _:
                self.take_for(self.members[step.outbox], step)

    def take_for(self, member: Member, step: Subscribe | Unsubscribe | Exclude | Hold) -> None:
        router, outbox = self.bench.router, member.transport.outbox
        assert outbox is not None
        match step:
            case Subscribe(_, topic, which):
                router.subscribe(outbox, self.topics[topic], self.encoding(topic, which))
                member.wanted.setdefault(topic, which)
            case Unsubscribe(_, None):
                router.forget(outbox)
                member.wanted.clear()
            case Unsubscribe(_, topic):
                assert topic is not None
                router.unsubscribe(outbox, self.topics[topic])
                member.wanted.pop(topic, None)
            case Exclude(_, topic) if topic in member.wanted:
                payload = self.payload(2)
                self.expect(topic, payload, member)
                with router.excluding(outbox, self.topics[topic]):
                    batch = batch_of([payload], topic, offset=self.number)
                    router.route(self.topics[topic], batch)
            case Hold(_, full):
                if full:
                    outbox.pause()
                else:
                    outbox.resume()

    def check_figures(self) -> None:
        """The messages that each outbox has written are counted, at any time."""
        messages = nbytes = 0
        for member in self.members:
            outbox, size = member.transport.outbox, len(member.transport.data)
            assert outbox is not None
            number = bisect_right(list(accumulate(map(len, member.expected))), size)
            assert outbox.written == (number, size)
            messages, nbytes = messages + number, nbytes + size
        total = self.bench.counters.traffic["toy"].written
        assert (total.messages, total.nbytes) == (messages, nbytes)

    def check(self) -> None:
        self.bench.turn()
        while self.bench.router.gate.shut or self.bench.router.dirty:
            self.bench.turn()
        for member in self.members:
            member.transport.drain()
            assert member.transport.data == b"".join(member.expected)
        self.check_figures()
        counters = self.bench.counters
        assert counters.delivered == sum(len(member.expected) for member in self.members)
        assert all(reason == "too-large" for _, _, reason in counters.drops)
        for number, member in enumerate(self.members):
            dropped = sum(n for (label, _, _), n in counters.drops.items() if label == f"{number}")
            assert dropped == member.too_large

    def leave(self) -> None:
        """End all subscriptions."""
        for member in self.members:
            assert member.transport.outbox is not None
            self.bench.router.forget(member.transport.outbox)
        assert self.bench.router.subscriptions == 0


class ModelTests(SynchronousTestCase):
    """Random steps, within a tick or over several"""

    @examples(8)
    @given(STEPS, st.booleans())
    def test_every_outbox_gets_its_messages_in_order(self, steps: list[Step], framed: bool) -> None:
        world = World(framed)
        for step in steps:
            world.take(step)
            world.check_figures()
        world.check()

    @examples(4)
    @given(STEPS, st.booleans())
    def test_within_one_tick(self, steps: list[Step], framed: bool) -> None:
        world = World(framed)
        for step in steps:
            if not isinstance(step, Turn | End):
                world.take(step)
        world.check()

    @examples(8)
    @given(STEPS, st.booleans())
    def test_in_slices(self, steps: list[Step], framed: bool) -> None:
        self.check_slices(steps, framed)

    @examples(8)
    @given(STEPS)
    def test_in_slices_with_shared_frames(self, steps: list[Step]) -> None:
        with ExitStack() as patches:
            for module, name, value in (
                (common_encoder, "_SEVERAL", 1),
                (common_encoder, "_CALLS", 1),
                (mixed_routing, "_REPEATED", 0),
                (sliced_routing, "_SHARING", 2),
            ):
                patches.enter_context(mock.patch.object(module, name, value))
            self.check_slices(steps, framed=True)

    def check_slices(self, steps: list[Step], framed: bool) -> None:
        with (
            mock.patch.object(router_module, "_FEW_AUDIENCES", 0),
            mock.patch.object(sliced_routing, "_UNITS", 1),
        ):
            world = World(framed)
            for step in steps:
                world.take(step)
            world.check()
        memory = world.bench.memory
        assert memory.used == memory.cached + memory.held[SUBSCRIPTIONS]
        world.leave()
        assert memory.used == memory.cached
