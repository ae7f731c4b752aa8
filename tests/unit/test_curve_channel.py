"""Encrypted connections of spot whose clients do not keep up."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.protocols.spot.zmtp import encode_message
from tests.unit.brokers import ready, subscribe
from tests.unit.fakes import scratch
from tests.unit.spot_security import SecureClient, curve, secure_house
from tests.unit.streams import ROOM, House

COUNT = 6000
# Boxes that are made in a turn, and bytes of one with a message of these tests.
TURN_BYTES = 1000 * 100


def publish(number: int, size: int = 0) -> bytes:
    """Return PUBLISH."""
    return encode_message([b"", b"\x01", b"t", (b"%04d" % number).ljust(size, b".")])


class PaceTests(SynchronousTestCase):
    """Messages that are encrypted some at a time"""

    def setUp(self) -> None:
        self.house: House = secure_house(scratch(self), "null,curve")
        self.reader = curve(self.house)
        # It is not encrypted, so that all messages of a read come at once.
        self.writer = self.house.connect("spot")
        self.writer.send(ready(b"DEALER"))
        self.reader.send(subscribe(b"t"))
        self.writer.send(publish(0))
        self.house.pump()
        assert self.reader.take() == publish(0)
        self.before = self.held

    @property
    def held(self) -> int:
        """The bytes that are held for clients."""
        memory = self.house.broker.memory
        return memory.used - memory.cached

    def flood(self) -> bytes:
        """Publish while the reader does not read; return what it has to get."""
        self.reader.client.stream.stop_reading()
        data = b"".join(map(publish, range(COUNT)))
        self.writer.stream.feed(data)
        self.house.pump(40)
        assert self.house.broker.counters.published == 1 + COUNT
        return data

    def read(self, client: SecureClient) -> bytes:
        """Read everything in pieces, some of them while messages are encrypted."""
        received = b""
        for _ in range(200):
            client.client.stream.read(on=False)
            received += client.take()
            self.house.turn()
        return received

    def test_the_transport_is_not_filled_with_more_than_a_turn_of_boxes(self) -> None:
        self.flood()
        assert ROOM < len(self.reader.client.stream.buffered) < ROOM + TURN_BYTES

    def test_a_reader_that_reads_again_gets_everything_in_order(self) -> None:
        expected = self.flood()
        assert self.read(self.reader) == expected
        assert self.held == self.before
        self.reader.client.stream.read()
        self.writer.send(publish(COUNT))
        self.house.turn()
        assert self.reader.take() == publish(COUNT)

    def test_a_reader_that_is_lost_leaves_nothing(self) -> None:
        self.flood()
        self.reader.client.stream.lose()
        self.house.pump(3)
        assert self.held < self.before
        assert not self.house.broker.memory.holders

    def test_a_burst_does_not_wait_for_a_transport_that_is_not_full(self) -> None:
        data = b"".join(map(publish, range(COUNT)))
        self.writer.stream.feed(data)
        self.house.pump(40)
        assert self.reader.take() == data
        # The client is live again.
        self.writer.send(publish(COUNT))
        self.house.turn()
        assert self.reader.take() == publish(COUNT)

    def test_what_waits_for_its_turn_is_sent_before_the_end(self) -> None:
        self.house.start()
        data = b"".join(map(publish, range(COUNT)))
        self.writer.stream.feed(data)
        self.house.broker.stopService()
        self.house.pump(40)
        assert self.reader.take() == data
        assert self.reader.closed


class CountTests(SynchronousTestCase):
    """Messages in boxes that a client has not taken"""

    def test_they_are_dropped(self) -> None:
        for taken in (0, 7):
            house = secure_house(scratch(self), "curve")
            reader, writer = curve(house), curve(house)
            reader.send(subscribe(b"t"))
            reader.client.stream.stop_reading()
            writer.send(b"".join(publish(number, 10_000) for number in range(20)))
            house.pump(3)
            assert house.broker.counters.delivered == 20
            stream = reader.client.stream
            del stream.buffered[: taken * len(stream.buffered) // 20]
            stream.lose()
            house.pump(3)
            counters = house.broker.counters
            assert (counters.delivered, counters.dropped) == (taken, 20 - taken)
