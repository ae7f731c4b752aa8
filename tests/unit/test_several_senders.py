"""Reads that bring messages of several senders, as a gateway sends them over one connection."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any, cast
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.broker.publishing.rate_limits import Rate
from pubsub.broker.publishing.senders import sender_of, sender_of_each
from pubsub.broker.routing import row_routing
from pubsub.broker.routing.combination_cache import PastCombinations
from pubsub.broker.routing.dispatcher import Dispatcher
from pubsub.broker.routing.passing_mix import passing_mix
from pubsub.broker.topic_space.durability import Durability
from pubsub.kernel import Columns
from pubsub.store.memory_store import MemoryStore
from tests.profiles import examples
from tests.unit import fast_wire, nsd_lines, rheos_wire
from tests.unit.brokers import message
from tests.unit.fakes import Held, Reader, Transport, clock_at, make_broker, make_listener
from tests.unit.fast_wire import Fast
from tests.unit.kinds_of_encodings import encoding_of
from tests.unit.nsd_lines import SUCCESS, Nsd
from tests.unit.rheos_wire import Rheos
from tests.unit.spot_house import house, join
from tests.unit.streams import Client, House

TOPICS = ("a", "b", "c", "d")
SENDERS = (b"ada", b"bob", b"", b"dan")
Message = tuple[int, int, bytes]
"""The topic, the sender and the payload of a message."""
READS = st.lists(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.binary(max_size=12)),
        min_size=2,
        max_size=12,
    ),
    max_size=5,
)


class SenderTests(SynchronousTestCase):
    """``sender_of``"""

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.lists(st.sampled_from(SENDERS)))
    def test_it_has_the_sender_of_each_message(
        self, indexes: list[int], senders: list[bytes]
    ) -> None:
        by_index = [*senders, *SENDERS][:4]
        columns = Columns.of([b"x"] * len(indexes), indexes)
        found = sender_of(columns, by_index)
        if len(set(by_index)) == 1:
            assert found == by_index[0]
            return
        assert not isinstance(found, bytes)
        assert list(sender_of_each(found)) == [by_index[index] for index in indexes]
        # The messages of each have one topic.
        assert len(found[1]) == len(list(groupby(indexes)))


SUBSCRIBERS = st.lists(
    st.tuples(
        st.sampled_from(("times", "senders", "rows", "frames", "lines")), st.sets(st.integers(0, 3))
    ),
    max_size=6,
)


class World:
    """A broker, subscribers of topics in encodings of several kinds, and a publisher."""

    def __init__(
        self,
        subscribers: list[tuple[str, set[int]]],
        rate: Rate | None,
        room: int | None = None,
        **settings: object,
    ) -> None:
        self.clock = clock_at()
        self.store = MemoryStore(10_000, 2**24)
        self.broker = make_broker(self.clock, BrokerLimits(), self.store)
        self.topics = [self.broker.topics.create(name) for name in TOPICS]
        listener = make_listener(self.broker, **settings)
        limiter = None if rate is None else rate.limiter(self.clock.seconds)
        self.publisher = listener.publisher(Held(), b"")
        if limiter is not None:
            self.publisher._limiters = (limiter,)
        self.transports: list[Transport] = []
        for kind, wanted in subscribers:
            transport = Transport()
            outbox = transport.outbox = listener.outbox(transport, Reader())
            transport.room = room
            self.transports.append(transport)
            for topic in sorted(wanted):
                self.broker.router.subscribe(outbox, self.topics[topic], encoding_of(kind, topic))

    def together(self, read: list[Message], passing: bool) -> bool:
        """Publish ``read`` at once; return whether that was possible."""
        pairs = list(dict.fromkeys((topic, sender) for topic, sender, _ in read))
        scanned = Columns.of([one[2] for one in read], [pairs.index(one[:2]) for one in read])
        router, used = self.broker.router, list(dict.fromkeys(topic for topic, _ in pairs))
        topics = [self.topics[topic] for topic in used]
        mix = passing_mix(router, topics) if passing else router.mix(topics)
        assert mix is not None
        places = [mix.topics.index(self.topics[topic]) for topic, _ in pairs]
        sender = sender_of(scanned, [SENDERS[sender] for _, sender in pairs])
        return self.publisher.publish_mixed(mix, scanned.remap(places), sender) is not None

    def one_by_one(self, read: list[Message]) -> None:
        """Publish each message of ``read`` alone."""
        for topic, sender, payload in read:
            self.publisher.publish(self.topics[topic], Columns.one(payload), sender=SENDERS[sender])

    def result(self, case: SynchronousTestCase) -> object:
        """Return what was received, stored and counted."""
        self.clock.advance(0)
        self.broker.dispatcher.settle()
        page = case.successResultOf(self.store.read(0, None, 2**24))
        stored = [
            (batch.offset + at, batch.sequence + at, batch.topics[index], batch.sender, payload)
            for batch in page.batches
            for at, (index, payload) in enumerate(
                zip(batch.columns.indexes(), batch.payloads(), strict=True)
            )
        ]
        counted = [(one.messages, one.nbytes, one.last_timestamp) for one in self.topics]
        limiters = [one.admissible(Columns.of([b""] * 100)) for one in self.publisher._limiters]
        figures = self.broker.router.counters.delivered
        return [one.data for one in self.transports], stored, counted, limiters, figures


class SameTests(SynchronousTestCase):
    """Nothing but the work is different from messages that are published one by one"""

    @given(SUBSCRIBERS, READS, st.booleans(), st.booleans(), st.integers(0, 2))
    def test_subscribers_of_rows_get_the_same_of_one_sender(
        self,
        subscribers: list[tuple[str, set[int]]],
        reads: list[list[Message]],
        with_headers: bool,
        partly: bool,
        few: int,
    ) -> None:
        worlds = [World([("frames", {0}), *subscribers], None) for _ in range(2)]
        for world in worlds:
            if partly:
                world.topics[1].set_durability(Durability.NONE)
        for read in reads:
            used = list(dict.fromkeys(topic for topic, *_ in read))
            columns = Columns.of([one[2] for one in read], [used.index(one[0]) for one in read])
            headers = [{"n": b"%d" % n} for n in range(len(read))] if with_headers else None
            for world, most in zip(worlds, (250, -1), strict=True):
                topics = [world.topics[index] for index in used]
                mix = passing_mix(world.broker.router, topics)
                assert mix is not None
                with patch.multiple(row_routing, _FEW=min(few, most), _AUDIENCES=most):
                    world.broker.dispatcher.publish_mixed(mix, columns, b"me", "toy", headers)
        assert worlds[0].result(self)[0] == worlds[1].result(self)[0]  # type: ignore[index]

    @examples(3)
    @given(SUBSCRIBERS, READS, st.booleans(), st.booleans())
    def test_subscribers_and_the_history_get_the_same(
        self,
        subscribers: list[tuple[str, set[int]]],
        reads: list[list[Message]],
        passing: bool,
        limited: bool,
    ) -> None:
        rate = Rate(messages=10_000, bytes=100_000) if limited else None
        at_once, alone = World(subscribers, rate), World(subscribers, rate)
        for read in reads:
            assert at_once.together(read, passing)
            alone.one_by_one(read)
        assert at_once.result(self) == alone.result(self)

    def test_subscribers_that_fall_behind(self) -> None:
        kinds = [("senders", {0, 1}), ("times", {0, 1, 2}), ("rows", {1, 2})]
        # So many that they are not routed sender by sender.
        reads = [
            [(at % 3, (at // 2 + number) % 4, b"%d.%d" % (number, at)) for at in range(12)]
            for number in range(4)
        ]
        for nbytes in (1, 800, 1600, 3200):
            found = []
            for at_once in (True, False):
                world = World(kinds, None, room=1, slow_bytes=nbytes)
                for read in reads:
                    if at_once:
                        assert world.together(read, False)
                    else:
                        world.one_by_one(read)
                    world.clock.advance(0)
                for transport in world.transports:
                    transport.drain()
                world.clock.pump([0.1] * 20)
                found.append(world.result(self))
            assert found[0] == found[1]

    def test_messages_that_a_rate_does_not_admit_are_not_published(self) -> None:
        read = [(0, 0, b"1234"), (1, 1, b"1234"), (0, 3, b"1234")]
        # With the senders, 4 + 3 bytes each.
        for limit, admitted in ((14, False), (15, True), (21, True)):
            world = World([], Rate(bytes=limit))
            assert world.together(read, False) is admitted
            assert world.store.next_offset == (3 if admitted else 0)

    def test_a_sender_that_is_too_long(self) -> None:
        world = World([], None)
        read = [(0, 0, b"x"), (0, 1, b"y")]
        with patch(f"{__name__}.SENDERS", (b"a", b"b" * 256)):
            assert not world.together(read, False)
        assert world.store.next_offset == 0


class FastWire:
    """Each sender has a token of its own."""

    def __init__(self, case: SynchronousTestCase) -> None:
        self.house: House = Fast(case)
        for name in TOPICS:
            self.house.connect("fast").send(fast_wire.create(fast_wire.OWNER, name))
        self._tokens = [fast_wire.grant("publish", sub=f"s{number}") for number in range(4)]
        self.publisher = self.house.connect("fast")

    def reader(self, name: str) -> Client:
        client = self.house.connect("fast")
        client.send(fast_wire.subscribe(fast_wire.READER, fast_wire.topic_id(name)))
        return client

    def publish(self, topic: str, sender: int, payload: bytes) -> bytes:
        topic_id = fast_wire.topic_id(topic)
        return fast_wire.publish(self._tokens[sender], payload, topic=topic_id)


class RheosWire:
    """Each sender has an id of its own; one of them subscribes, too."""

    def __init__(self, case: SynchronousTestCase) -> None:
        rheos = Rheos()
        self.house: House = rheos
        for name in TOPICS:
            rheos.broker.topics.create(name)
        self._ids = [bytes(15) + bytes([number + 1]) for number in range(4)]
        self.publisher = rheos.connect("rheos")
        self.publisher.send(rheos_wire.subscribe(self._ids[3], b"d"))

    def reader(self, name: str) -> Client:
        return self.house.reader(bytes(15) + name.encode(), name)  # type: ignore[attr-defined, no-any-return]

    def publish(self, topic: str, sender: int, payload: bytes) -> bytes:
        return rheos_wire.publish(self._ids[sender], payload, name=topic.encode())


class SpotWire:
    """Each sender is an origin."""

    def __init__(self, case: SynchronousTestCase) -> None:
        self.house = house()
        self.publisher = join(self.house)

    def reader(self, name: str) -> Client:
        return join(self.house, b"DEALER", message(b"", b"\x02", name.encode()))

    def publish(self, topic: str, sender: int, payload: bytes) -> bytes:
        return message(b"", b"\x01", b"s%d" % sender, topic.encode(), payload)


class NsdWire:
    """Each sender is a name in the message; readers ask for the messages."""

    def __init__(self, case: SynchronousTestCase) -> None:
        nsd = Nsd()
        self.house: House = nsd
        self.publisher = nsd.connect("nsd")
        self.publisher.send(b"".join(map(nsd_lines.open_, TOPICS)))
        assert self.publisher.take() == SUCCESS * len(TOPICS)

    def reader(self, name: str) -> Client:
        return self.house.connect("nsd")

    def publish(self, topic: str, sender: int, payload: bytes) -> bytes:
        return nsd_lines.publish(topic, payload.hex(), **{"from": f"s{sender}"})


Wire = FastWire | RheosWire | SpotWire | NsdWire


class WireTests(SynchronousTestCase):
    """The same over the wires whose connections may have several senders"""

    def outcome(
        self, make: Callable[[SynchronousTestCase], Wire], reads: list[list[Message]]
    ) -> tuple[object, int]:
        """Return what is received and stored, and the number of reads published at once."""
        wire = make(self)
        first = [wire.publish(name, number, b"0") for name in TOPICS for number in range(4)]
        wire.publisher.send(b"".join(first))
        readers = [wire.reader(name) for name in TOPICS]
        published = 0
        real = Dispatcher.publish_mixed

        def publish_mixed(*args: Any, **named: Any) -> Any:
            nonlocal published
            published += not isinstance(args[3], bytes)
            return real(*args, **named)

        with patch.object(Dispatcher, "publish_mixed", publish_mixed):
            for read in reads:
                sent = [wire.publish(TOPICS[topic], number, data) for topic, number, data in read]
                wire.publisher.send(b"".join(sent))
        wire.house.pump(5)
        page = self.successResultOf(wire.house.store.read(0, None, 2**24))
        stored = [
            (batch.offset + at, batch.sequence + at, batch.topics[index], batch.sender, payload)
            for batch in page.batches
            for at, (index, payload) in enumerate(
                zip(batch.columns.indexes(), batch.payloads(), strict=True)
            )
        ]
        received = [client.take() for client in (wire.publisher, *readers)]
        return (received, stored), published

    @examples(1)
    @given(
        st.sampled_from((FastWire, RheosWire, SpotWire, NsdWire)),
        st.booleans(),
        READS.map(lambda reads: [[(t, s, p) for t, s, p in read if t < 3] for read in reads]),
    )
    def test_clients_and_the_history_get_the_same(
        self,
        make: Callable[[SynchronousTestCase], Wire],
        is_past: bool,
        reads: list[list[Message]],
    ) -> None:
        found = []
        for together in (False, True):
            with (
                patch.object(PastCombinations, "note", lambda past, key: is_past),
                patch.object(Dispatcher, "stores_parts", together),
            ):
                found.append(self.outcome(make, reads))
        (alone, none), (at_once, published) = found
        assert at_once == alone
        several = [len({number for _, number, _ in read}) > 1 for read in reads]
        assert (none, published) == (0, sum(several))

    def test_a_client_of_rheos_does_not_receive_its_own(self) -> None:
        read = [(3, 0, b"A"), (3, 3, b"B"), (0, 3, b"C"), (3, 1, b"D")]
        outcome, published = self.outcome(RheosWire, [read])
        assert published == 0
        ((own, *_), _) = cast("tuple[list[bytes], object]", outcome)
        for number, payload, times in ((1, b"A", 1), (2, b"D", 1), (4, b"B", 0)):
            assert own.count(rheos_wire.response(bytes(15) + bytes([number]), payload)) == times


class FastRightsTests(SynchronousTestCase):
    """Several tokens in one read"""

    def start(self, *holders: str) -> tuple[Fast, Client, Client]:
        """Return a broker whose topics are for ``holders``, if any, a client, and a reader."""
        fast = Fast(self)
        if holders:
            self.allow(fast, *holders)
        fast.owner()
        return fast, fast.client(), fast.reader()

    def allow(self, fast: Fast, *holders: str) -> None:
        """Permit everything to ``holders`` alone."""
        fast.document["access"] = [{"identity": list(holders), "allow": "*"}]
        fast.reloader().reload()
        fast.pump(5)

    def test_the_holder_of_each_has_its_own_rights(self) -> None:
        _, client, reader = self.start("ada", "bob", "eve")
        one, two, mal = (fast_wire.grant("publish", sub=sub) for sub in ("ada", "eve", "mal"))
        client.send(fast_wire.publish(mal, b"m"))
        refused = client.take()
        assert refused == fast_wire.error(3, fast_wire.NO_PERMISSION)
        sent = fast_wire.publish(one, b"3") + fast_wire.publish(two, b"4")
        for _ in range(3):
            client.send(sent)
        client.send(sent + fast_wire.publish(mal, b"m") + fast_wire.publish(one, b"5"))
        assert client.take() == refused
        assert reader.take() == fast_wire.message(*[b"3", b"4"] * 4, b"5")

    def test_rights_that_end(self) -> None:
        fast, client, reader = self.start("ada", "bob", "eve")
        one, two = (fast_wire.grant("publish", sub=sub) for sub in ("ada", "eve"))
        sent = fast_wire.publish(one, b"3") + fast_wire.publish(two, b"4")
        for _ in range(3):
            client.send(sent)
        reader.take()
        self.allow(fast, "ada", "bob")
        client.send(sent)
        assert client.take() == fast_wire.error(3, fast_wire.NO_PERMISSION)
        assert reader.take() == fast_wire.message(b"3")

    def test_a_token_that_ends(self) -> None:
        fast, client, reader = self.start()
        one = fast_wire.grant("publish", sub="eve")
        two = fast_wire.for_seconds(60, "publish", sub="dan")
        sent = fast_wire.publish(one, b"3") + fast_wire.publish(two, b"4")
        for _ in range(3):
            client.send(sent)
        reader.take()
        fast.advance(61)
        client.send(sent)
        fast.pump(5)
        assert client.take() == fast_wire.error(3, fast_wire.BAD_TOKEN)
        assert reader.take() == fast_wire.message(b"3")
