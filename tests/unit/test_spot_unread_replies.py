"""Requests of another broker that does not read the replies (spot §7): the latest are kept."""

from __future__ import annotations

from collections.abc import Iterator

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import OUTPUT
from pubsub.protocols.spot.broker_commands import (
    HistoryPage,
    Read,
    decode_broker_command,
    encode_broker_command,
)
from pubsub.protocols.spot.zmtp import FrameLimits, Unit, decode, ping
from tests.unit.brokers import GREETING, QUERY, World, publish, ready, subscribe
from tests.unit.streams import logged

LIMITS = FrameLimits(frame=2**20, frames=1000)
BODY = ready(b"DEALER")[66:] + b"\x06X-Node\0\0\0\x0f" + b"7" * 15
NODE = GREETING + bytes([4, len(BODY)]) + BODY
READ_T, READ_U = (encode_broker_command(Read(name, b"", 0)) for name in (b"t", b"u"))


def units(data: bytes) -> Iterator[Unit]:
    """Yield the messages and commands in ``data``."""
    at = 0
    while at < len(data):
        unit = decode(data, at, LIMITS, None)
        assert isinstance(unit, Unit)
        yield unit
        at = unit.end


class UnreadTests(SynchronousTestCase):
    """A client that says that it is a broker, and does not read"""

    def setUp(self) -> None:
        self.world = World()
        self.house = self.world.house("b")
        self.memory = self.house.broker.memory
        self.peer = self.house.connect("spot")
        self.peer.send(NODE + subscribe(b"t") + publish(b"u", b"x"))
        self.peer.take()
        self.peer.stream.stop_reading()
        self.before = self.memory.held[OUTPUT], self.memory.used
        other = self.world.client(self.house)
        for _ in range(1000):
            other.send(publish(b"t", bytes(200)))
        assert self.peer.protocol.output_full

    def replies(self) -> list[Unit]:
        """Return what comes when the peer reads, except the messages of ``t``."""
        while self.peer.stream.buffered or not self.peer.stream.reading:
            self.peer.stream.read()
            self.house.pump()
        return [one for one in units(self.peer.take()) if one.frames[1:3] != [b"\x01", b"t"]]

    def pages(self) -> list[HistoryPage]:
        """Return the pages among them."""
        found = [decode_broker_command(one.frames) for one in self.replies()]
        return [one for one in found if isinstance(one, HistoryPage)]

    def test_reads_from_the_beginning(self) -> None:
        self.peer.send(b"".join([READ_T, READ_U] * 500))
        (page,) = self.pages()
        assert page.topic == b"u"
        assert page.end == self.house.store.next_offset
        self.peer.send(READ_T + READ_U)
        assert [page.topic for page in self.pages()] == [b"t", b"u"]

    def test_pings(self) -> None:
        self.peer.send(b"".join([ping(b"%d" % number) for number in range(500)]))
        (unit,) = self.replies()
        assert [one.data for one in unit.commands] == [b"499"]

    def test_a_malformed_ping_ends_the_connection(self) -> None:
        lines = logged(self)
        self.peer.stream.feed(ping(bytes(17)))
        assert self.house.broker.counters.refusals["spot", "malformed-command"] == 1
        assert self.peer.protocol.closing
        self.replies()
        assert not [line for line in lines if "rror" in line]

    def test_the_replies_are_counted(self) -> None:
        for number in range(100):
            self.house.broker.topics.create(f"topic-{number}")
        held = self.memory.held[OUTPUT]
        for _ in range(3):
            self.peer.send(QUERY)
            self.house.pump()
        counted = self.memory.held[OUTPUT] - held
        (unit,) = self.replies()
        assert len(unit.frames) == 2 + 102 + 1
        assert counted > sum(map(len, unit.frames))
        assert self.memory.held[OUTPUT] == self.before[0]

    def test_they_are_counted_until_the_connection_ends(self) -> None:
        self.peer.send(QUERY + ping(b"1"))
        self.house.pump()
        assert self.memory.held[OUTPUT] > 0
        self.peer.stream.lose()
        self.house.pump()
        assert self.memory.held[OUTPUT] == 0
