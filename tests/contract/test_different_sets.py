"""Readers of different topics over several wires: each message once, in order, as a model has it.

Some read by a prefix, some stop reading and catch up from the history, and some end while they are
written to.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.topic_space.durability import DurabilityRules
from tests.unit import cafe_wire
from tests.unit.brokers import message, ready
from tests.unit.streams import Client, House, Stream

NAMES = ("a0", "a1", "a2", "b0", "b1", "b2")
SIZES = (0, 1, 100, 247, 248, 249, 9000)


class EndingStream(Stream):
    """A transport that reports its end while it is written to, if ``ends``."""

    ends = False

    def write(self, data: bytes) -> None:
        if not self.ends:
            super().write(data)
        elif not self.lost:
            self.lost = True
            self.protocol.connectionLost(Failure(ConnectionLost()))


class Reader:
    """A reader over ``wire``; ``expected`` and ``got`` have the numbers of messages."""

    def __init__(self, house: House, wire: str, wanted: set[str], number: int) -> None:
        self.wire, self.wanted = wire, wanted
        self.expected: list[int] = []
        self.stops = False
        self.stream = EndingStream(house.clock, IPv4Address("TCP", "192.0.2.1", 1000 + number))
        factory = house.factories["cafe" if wire == "cafe" else "spot"]
        self.client = Client(factory.buildProtocol(self.stream.getPeer()), self.stream, house.clock)
        if wire == "cafe":
            self.client.send(cafe_wire.hs_sub(b"", b"reader"))
            house.clock.advance(cafe_wire.GAP)
        else:
            self.client.send(ready(b"SUB" if wire == "prefix" else b"DEALER"))
        for name in sorted(wanted):
            self.change(name)
        house.pump(3)
        self.client.take()

    def change(self, name: str, begins: bool = True) -> None:
        """Begin or end the subscription to a topic, or to a prefix, in the middle of a tick."""
        if self.wire == "prefix":
            self.stream.feed(message(b"\x01" + name.encode()))
        elif self.wire == "cafe":
            make = cafe_wire.subscribe if begins else cafe_wire.unsubscribe
            self.stream.feed(make(NAMES.index(name)))
        else:
            self.stream.feed(message(b"", b"\x02" if begins else b"\x03", name.encode()))

    def wants(self, name: str) -> bool:
        if self.wire == "prefix":
            return name.startswith(tuple(self.wanted))
        return name in self.wanted

    def got(self) -> Iterator[int]:
        """Yield the numbers of the messages that have arrived."""
        data = self.client.take()
        if self.wire == "cafe":
            yield from [int(payload[:6]) for payload in cafe_wire.payloads(data)]
            return
        at = 0
        while at < len(data):
            # The frames before the last, which is a short or a long one.
            while data[at] == 1:
                at += 2 + data[at + 1]
            start = at + (9 if data[at] == 2 else 2)
            at = start + int.from_bytes(data[at + 1 : start], "big")
            yield int(data[start : start + 6])


class DifferentSetsTests(SynchronousTestCase):
    """Reads of a publisher for readers of different topics"""

    def setUp(self) -> None:
        channels = ",".join(f"{number}:{name}" for number, name in enumerate(NAMES))
        slow = {"slow-bytes": "256K"}
        self.house = House({"cafe": {"channels": channels, **slow}, "spot": slow})
        self.house.start()
        rules = DurabilityRules(self.house.config.broker["durability"])
        for _ in self.house.broker.topic_lifecycle.reconfigure(rules):
            pass
        self.publisher = cafe_wire.handshaken(self.house, cafe_wire.hs_pub(0))
        self.readers: list[Reader] = []
        self.wires: tuple[str, ...] = ()
        self.published: list[str] = []
        self.sent: list[str] = []

    def read(self, random: Random) -> None:
        """Publish messages of some topics, which arrive in one read."""
        data = []
        for _ in range(random.choice((1, 3, 20, 60))):
            name = random.choice(self.published)
            for reader in self.readers:
                if reader.wants(name):
                    reader.expected.append(len(self.sent))
            payload = b"%06d" % len(self.sent) + b"x" * random.choice(SIZES)
            data.append(cafe_wire.publish(NAMES.index(name), payload))
            self.sent.append(name)
        self.publisher.stream.feed(b"".join(data))

    def add_reader(self, random: Random) -> None:
        wire = random.choice(self.wires)
        names = ("a", "b", "") if wire == "prefix" else NAMES
        wanted = set(random.sample(names, random.randint(1, len(names) // 2)))
        self.readers.append(Reader(self.house, wire, wanted, len(self.readers)))

    def change(self, random: Random) -> None:
        """Do something with a reader."""
        reader, name = random.choice(self.readers), random.choice(NAMES)
        what = random.choice(("stop", "read", "change", "change", "end"))
        if what == "stop":
            reader.stops = True
            reader.stream.stop_reading()
        elif what == "read":
            reader.stream.read()
        elif what == "end" and not reader.stops:
            reader.stream.ends = True
        elif what == "change" and reader.wire != "prefix" and not reader.stops:
            reader.change(name, begins=name not in reader.wanted)
            reader.wanted ^= {name}

    @given(st.randoms(use_true_random=False))
    def test_each_message_once_in_order(self, random: Random) -> None:
        self.setUp()
        # Of one wire, audiences share the frames of a read.
        self.wires = random.choice((("cafe",), ("cafe", "spot", "prefix")))
        for _ in range(random.choice((2, 6, 12))):
            self.add_reader(random)
        for step in range(30):
            if step % 10 == 0:
                self.published = random.sample(NAMES, random.randint(2, len(NAMES)))
            self.read(random)
            if random.random() < 0.5:
                self.change(random)
            if random.random() < 0.5:
                self.house.turn()
        for reader in self.readers:
            reader.stream.read()
        self.house.advance(1)
        self.house.pump(100)
        for reader in self.readers:
            got = list(reader.got())
            ended = reader.stream.ends
            assert got == (reader.expected[: len(got)] if ended else reader.expected)
