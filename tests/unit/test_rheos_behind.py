"""rheos's client ids whose connection is behind: their messages come from the history."""

from __future__ import annotations

from uuid import UUID, uuid5

from twisted.trial.unittest import SynchronousTestCase

from tests.unit import nsd_lines
from tests.unit import rheos_wire as wire
from tests.unit.rheos_wire import ALICE, BOB, CAROL, Rheos
from tests.unit.streams import Client

COUNT = 40
Seen = list[tuple[bytes, bytes]]


def seen(rheos: Rheos, *clients: Client) -> Seen:
    """Read everything; return the senders and payloads of the responses."""
    found = []
    for client in clients:
        while client.stream.buffered or not client.stream.reading:
            client.stream.read()
            rheos.pump()
        data, at = client.take(), 0
        while at < len(data):
            if data[at] == 0xAC:
                at += 18
                continue
            stop = at + 21 + int.from_bytes(data[at + 1 : at + 5], "little")
            found.append((data[at + 5 : at + 21], data[at + 21 : stop]))
            at = stop
    return found


class BehindTests(SynchronousTestCase):
    """A connection that did not read until its queue was freed"""

    def setUp(self) -> None:
        self.rheos = Rheos(slow_bytes="100K", also={"nsd": {}})
        self.rheos.start()
        self.first = self.rheos.reader(ALICE)

    def fall_behind(self) -> Seen:
        """Publish more than the queue of the connection may have; return the messages."""
        self.first.stream.stop_reading()
        writer = self.rheos.connect("rheos")
        payloads = [b"%d" % number + bytes(10_000) for number in range(COUNT)]
        for payload in payloads:
            writer.send(wire.publish(CAROL, payload))
        box = self.rheos.connection(self.first).outbox
        assert box is not None
        assert box.cursor is not None
        return [(CAROL, payload) for payload in payloads]

    def test_the_next_connection_continues_in_the_history(self) -> None:
        expected = self.fall_behind()
        second = self.rheos.connect("rheos")
        second.send(wire.create(ALICE))
        self.rheos.pump()
        assert seen(self.rheos, self.first, second) == expected

    def test_a_client_does_not_get_its_own_messages_from_the_history(self) -> None:
        expected = self.fall_behind()
        second = self.rheos.connect("rheos")
        second.stream.feed(wire.publish(ALICE, b"own"))
        self.rheos.connect("rheos").stream.feed(wire.publish(BOB, b"last"))
        self.rheos.pump()
        assert seen(self.rheos, self.first, second) == [*expected, (BOB, b"last")]

    def test_it_gets_those_of_another_protocol_under_its_name(self) -> None:
        expected = self.fall_behind()
        name = str(UUID(bytes=ALICE))
        publisher = self.rheos.connect("nsd")
        publisher.send(
            nsd_lines.open_("news")
            + nsd_lines.publish("news", "hi").replace(
                b'"from": "news"', b'"from": "%b"' % name.encode()
            )
        )
        self.rheos.pump()
        assert seen(self.rheos, self.first) == [*expected, (uuid5(wire.SENDERS, name).bytes, b"hi")]

    def test_another_id_of_the_connection_gets_them(self) -> None:
        self.first.send(wire.subscribe(BOB))
        expected = self.fall_behind()
        self.first.stream.feed(wire.publish(ALICE, b"own"))
        self.rheos.pump()
        assert seen(self.rheos, self.first) == [*expected, (ALICE, b"own")]

    def test_another_id_of_the_next_connection_has_had_them(self) -> None:
        second = self.rheos.reader(BOB)
        expected = self.fall_behind()
        second.stream.feed(wire.publish(ALICE, b"own"))
        self.rheos.pump()
        assert seen(self.rheos, second) == [*expected, (ALICE, b"own")]
