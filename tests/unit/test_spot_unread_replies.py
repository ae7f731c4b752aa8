"""Requests of another broker that does not read the replies (spot §7): the latest are kept."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import OUTPUT
from pubsub.protocols.spot.broker_commands import Read, encode_broker_command
from pubsub.protocols.spot.zmtp import Unit, ping
from tests.unit.brokers import QUERY, World, publish, subscribe
from tests.unit.spot_nodes import NODE, pages, units
from tests.unit.streams import logged

READ_T, READ_U = (encode_broker_command(Read(name, b"", 0)) for name in (b"t", b"u"))


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

    def received(self) -> bytes:
        """Return what comes when the peer reads."""
        while self.peer.stream.buffered or not self.peer.stream.reading:
            self.peer.stream.read()
            self.house.pump()
        return self.peer.take()

    def replies(self) -> list[Unit]:
        """Return what comes except the messages of ``t``."""
        return [one for one in units(self.received()) if one.frames[1:3] != [b"\x01", b"t"]]

    def test_reads_from_the_beginning(self) -> None:
        self.peer.send(b"".join([READ_T, READ_U] * 500))
        (page,) = pages(self.received())
        assert page.topic == b"u"
        assert page.end == self.house.store.next_offset
        self.peer.send(READ_T + READ_U)
        assert [page.topic for page in pages(self.received())] == [b"t", b"u"]

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
