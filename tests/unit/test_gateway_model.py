"""Gateways compared with clients that send one message at a time, while everything else changes."""

from __future__ import annotations

from itertools import chain
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import SUBSCRIPTIONS
from pubsub.broker.routing.combination_cache import PastCombinations
from pubsub.broker.routing.dispatcher import Dispatcher
from pubsub.broker.topic_space.durability import Durability
from pubsub.store.memory_store import MemoryStore
from tests.profiles import examples
from tests.unit import cafe_wire, fast_wire, rheos_wire
from tests.unit.brokers import message, ready
from tests.unit.fast_wire import Fast, grant, topic_id
from tests.unit.streams import Client

TOPICS = ("cafe/1", "cafe/2", "cafe/3")
SLOW = {"slow-bytes": 50_000}
OPEN = {"grant": ["*"], **SLOW}
Step = tuple[str, Any]

_topics, _readers = st.integers(0, 2), st.integers(0, 3)
_message = st.tuples(_topics, _topics, st.sampled_from((0, 1, 40_000)))
_read = st.tuples(st.just("read"), st.lists(_message, min_size=2, max_size=8))
_protocols = st.sampled_from(("cafe", "fast", "rheos", "spot"))
_wanted = st.tuples(_protocols, st.sets(_topics, min_size=1))
_change = st.one_of(
    st.tuples(st.just("join"), st.tuples(_readers, _wanted)),
    st.tuples(st.sampled_from(("leave", "pause", "resume")), _readers),
    st.tuples(st.just("allow"), st.sets(st.sampled_from(("s0", "s1", "s2", "r*")))),
    st.tuples(st.just("wait"), st.sampled_from((0.3, 101))),
    st.tuples(st.sampled_from(("rotate", "rotate", "end", "begin", "forget", "store")), _topics),
)
# Each change comes between two reads of the same senders and topics.
STEPS = st.lists(st.tuples(_read, _change, st.just(("again", None))), max_size=8)


class Gateway:
    """A broker, a client with the tokens of three senders, and readers over several protocols."""

    def __init__(self, case: SynchronousTestCase) -> None:
        self.house = Fast(
            case,
            dict.fromkeys(("cafe", "rheos", "spot"), OPEN),
            store=MemoryStore(10_000, 2**26),
            slow_bytes=SLOW["slow-bytes"],
        )
        self.keys = dict.fromkeys(TOPICS, "k1")
        self.owner = self.house.connect("fast")
        for name in TOPICS:
            self.owner.send(fast_wire.create(grant(), name))
        # The last of them ends.
        self.tokens = [
            grant("publish", sub="s0"),
            grant("publish", sub="s1"),
            fast_wire.for_seconds(100, "publish", sub="s2"),
        ]
        self.client = self.house.connect("fast")
        self.number = 0
        for _ in range(2):
            self.read([(topic, sender, 0) for topic in range(3) for sender in range(3)])
        self.readers: dict[int, Client] = {}
        self.all: list[Client] = [self.owner, self.client]

    def do(self, step: Step) -> None:
        """Carry out a step."""
        kind, value = step
        match kind:
            case "read":
                self.read(value)
            case "again":
                self.read(self.last)
            case "join":
                if value[0] not in self.readers:
                    self.join(*value)
            case "leave" | "pause" | "resume":
                if value in self.readers:
                    self.change(kind, value)
            case "allow":
                self.house.document["access"] = [
                    {"identity": sorted({"ada", *value}), "allow": "*"},
                    {"listener": ["cafe", "rheos", "spot"], "allow": "*"},
                ]
                self.house.reloader().reload()
            case "wait":
                self.house.clock.advance(value)
            case _:
                self.change_topic(kind, TOPICS[value])
        self.house.pump(3)

    def read(self, sent: list[tuple[int, int, int]]) -> None:
        """Send messages, given as topic, sender and size, in one read."""
        packets, self.last = [], sent
        for topic, sender, size in sent:
            self.number += 1
            payload = b"%d" % self.number + bytes(size)
            packets.append(
                fast_wire.publish(self.tokens[sender], payload, topic=topic_id(TOPICS[topic]))
            )
        self.client.send(b"".join(packets))

    def join(self, reader: int, wanted: tuple[str, set[int]]) -> None:
        """Connect a reader, with its protocol and its topics."""
        protocol, topics = wanted
        client = self.house.connect(protocol)
        names = [TOPICS[topic] for topic in sorted(topics)]
        match protocol:
            case "cafe":
                channels = bytes(topic + 1 for topic in sorted(topics))
                client.send(cafe_wire.hs_sub(channels, b"r%d" % reader))
                self.house.clock.advance(cafe_wire.GAP)
            case "fast":
                own = grant("subscribe", sub=f"r{reader}")
                for name in names:
                    client.send(fast_wire.subscribe(own, topic_id(name)))
            case "rheos":
                for name in names:
                    client.send(rheos_wire.subscribe(bytes(15) + bytes([reader]), name.encode()))
            case "spot":
                asked = [message(b"", b"\x02", name.encode()) for name in names]
                client.send(ready(b"DEALER") + b"".join(asked))
        self.readers[reader] = client
        self.all.append(client)

    def change(self, kind: str, reader: int) -> None:
        """Have a reader read no more, read again, or leave when it has read all."""
        client = self.readers[reader]
        if kind == "pause":
            client.stream.stop_reading()
            return
        client.stream.read()
        if kind == "leave":
            self.house.pump()
            del self.readers[reader]
            client.stream.lose()

    def change_topic(self, kind: str, name: str) -> None:
        """Change the key or the durability of a topic, end it, or create it."""
        topic = self.house.broker.topics.get(name)
        if kind == "begin":
            self.keys[name] = self.keys[name] if topic else "k1"
            self.owner.send(fast_wire.create(grant(key=self.keys[name]), name))
        elif topic is None:
            return
        elif kind == "rotate":
            new = "k2" if self.keys[name] == "k1" else "k1"
            own = grant(key=self.keys[name])
            self.owner.send(fast_wire.rotate(own, new.encode(), topic_id(name)))
            self.keys[name] = new
        elif kind == "end":
            self.house.broker.topic_lifecycle.end(topic)
        elif not topic.behind:
            topic.set_durability(Durability.NONE if kind == "forget" else Durability.ASYNC)

    def outcome(self, case: SynchronousTestCase) -> dict[str, object]:
        """Return what was received, stored and counted, and the memory that is held then."""
        for client in self.readers.values():
            client.stream.read()
        # Packets may wait for the verification of a token, after others that have ended.
        self.house.advance(30)
        self.house.pump(100)
        broker, store = self.house.broker, self.house.store
        broker.dispatcher.settle()
        page = case.successResultOf(store.read(0, None, 2**26))
        topics = [topic for name in TOPICS if (topic := broker.topics.get(name))]
        counters = broker.counters
        traffic = [(name, one.accepted, one.written) for name, one in counters.traffic.items()]
        return {
            "received": [client.take() for client in self.all],
            "stored": [
                (run.offset + at, run.sequence + at, run.topic, run.sender, payload)
                for batch in page.batches
                for _, run in batch.runs()
                for at, payload in enumerate(run.payloads())
            ],
            "next": store.next_offset,
            "topics": [(one.name, one.messages, one.nbytes, one.passed) for one in topics],
            "refused": dict(counters.refusals),
            "drops": dict(counters.drops),
            "delivered": counters.delivered,
            "traffic": {
                name: (come.messages, come.nbytes, gone.messages, gone.nbytes)
                for name, come, gone in traffic
            },
            "held": (dict(broker.memory.held), broker.memory.used - broker.memory.cached),
        }


class GatewayTests(SynchronousTestCase):
    """Rights, tokens, keys, topics and readers that change between reads of several senders"""

    @examples(1)
    @given(st.lists(_wanted, max_size=3), STEPS, st.booleans())
    def test_the_outcome_is_that_of_single_messages(
        self, readers: list[tuple[str, set[int]]], steps: list[tuple[Step, ...]], past: bool
    ) -> None:
        real, found = Dispatcher.takes, []
        for together in (False, True):

            def takes(dispatcher: Dispatcher, mix: Any, sender: Any) -> bool:
                may = together or isinstance(sender, bytes)  # noqa: B023
                return may and real(dispatcher, mix, sender)

            with (
                patch.object(Dispatcher, "takes", takes),
                patch.object(PastCombinations, "note", lambda _past, _key: past),
            ):
                gateway = Gateway(self)
                for step in chain([("join", one) for one in enumerate(readers)], *steps):
                    gateway.do(step)
                found.append(gateway.outcome(self))
                held = gateway.house.broker.memory.held
                assert sum(held.values()) == held[SUBSCRIPTIONS]
        assert found[1] == found[0]
