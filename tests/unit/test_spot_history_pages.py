"""The host's side of reading between brokers: pages of a topic's history (spot §7.8)."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.interfaces import IStore
from pubsub.protocols.spot.broker_commands import HistoryPage, Read, encode_broker_command
from tests.unit.brokers import World, publish, subscribe
from tests.unit.committed_history import SlowDisk
from tests.unit.spot_nodes import NODE, pages, units
from tests.unit.streams import ROOM, logged


def read(offset: int, epoch: str, topic: bytes = b"t") -> bytes:
    """Return READ."""
    return encode_broker_command(Read(topic, epoch.encode(), offset))


def long_publish(topic: bytes, start: bytes) -> bytes:
    """Return PUBLISH of more than a transport takes at once; the payload begins with ``start``."""
    head = publish(topic, b"")[:-2]
    return head + b"\x02" + (2 * ROOM).to_bytes(8, "big") + start.ljust(2 * ROOM)


class PageCase(SynchronousTestCase):
    """A host ``b`` of the topic ``t``, and a peer that is a broker"""

    def open(self, store: IStore | None = None) -> None:
        self.world = World()
        self.b = self.world.house("b", store=store)
        self.client = self.world.client(self.b)
        self.client.send(publish(b"t", b"0"))
        self.epoch = self.b.store.epoch
        self.peer = self.b.connect("spot")
        self.peer.send(NODE)
        self.peer.take()

    def pages(self) -> list[HistoryPage]:
        """Return the pages that have come."""
        self.b.pump()
        return pages(self.peer.take())


class ReadTests(PageCase):
    """The topics that can be read"""

    def test_topics_that_the_broker_does_not_host(self) -> None:
        self.open()
        self.b.broker.topics.create("offered", hosted=False)
        for epoch in ("", self.epoch):
            for topic in (b"none", b"offered"):
                self.peer.send(read(7, epoch, topic))
                assert self.pages() == [HistoryPage(topic, b"", 7, 0, 0, [], [])]

    def test_the_next_page_begins_where_one_ends(self) -> None:
        self.open()
        self.peer.send(read(0, self.epoch) + read(1, self.epoch))
        self.b.pump()
        self.peer.send(read(5, self.epoch))
        epoch = self.epoch.encode()
        assert self.pages() == [
            HistoryPage(b"t", epoch, 0, 1, 1, [0], [b"0"]),
            HistoryPage(b"t", epoch, 1, 1, 1, [], []),
            HistoryPage(b"t", epoch, 5, 5, 1, [], []),
        ]


class WrittenTests(PageCase):
    """A page waits until everything is written"""

    def setUp(self) -> None:
        self.disk = SlowDisk()
        self.open(self.disk)

    def test_it_has_what_is_written(self) -> None:
        self.peer.send(read(0, self.epoch))
        assert self.pages() == []
        self.client.send(publish(b"t", b"1"))
        self.disk.write()
        (page,) = self.pages()
        assert (page.payloads, page.next, page.end) == ([b"0", b"1"], 2, 1)

    def test_it_has_nothing_that_cannot_be_written(self) -> None:
        self.peer.send(read(0, self.epoch))
        self.disk.write(done=False)
        assert self.pages() == [HistoryPage(b"t", self.epoch.encode(), 0, 0, 0, [], [])]

    def test_of_requests_meanwhile_the_last_is_answered(self) -> None:
        self.peer.send(b"".join([read(offset, self.epoch) for offset in range(5)]))
        self.disk.write()
        assert [page.since for page in self.pages()] == [0, 4]
        self.peer.send(read(0, self.epoch))
        assert [page.since for page in self.pages()] == [0]

    def test_a_peer_that_has_left_meanwhile(self) -> None:
        lines = logged(self)
        self.peer.send(read(0, self.epoch) + read(1, self.epoch))
        self.peer.stream.lose()
        self.disk.write()
        self.b.pump()
        assert self.peer.take() == b""
        assert not [line for line in lines if "cannot read" in line]


class BehindTests(PageCase):
    """The peer is subscribed, and behind"""

    def test_the_reply_to_the_first_request_is_between_the_messages(self) -> None:
        self.open()
        listener = self.b.listeners["spot"]
        listener.reconfigure({**listener.settings, "slow-bytes": 50_000})
        self.peer.send(subscribe(b"t"))
        self.peer.stream.stop_reading()
        for number in range(1, 1500):
            self.client.send(publish(b"t", b"%04d" % number + bytes(196)))
        outbox = self.peer.protocol.outbox
        assert outbox is not None
        assert outbox.cursor is not None
        self.peer.send(read(0, ""))
        received = bytearray()
        while self.peer.stream.buffered:
            self.peer.stream.read(on=False)
            received += self.peer.take()
            self.b.pump()
        self.check(bytes(received), 1500)

    def test_the_messages_of_the_present_tick_may_fill_the_transport(self) -> None:
        self.open()
        self.peer.send(subscribe(b"t"))
        self.peer.stream.stop_reading()
        self.client.send(long_publish(b"t", b"0001"))
        self.peer.send(read(0, ""))
        self.client.stream.feed(long_publish(b"t", b"0002"))
        self.peer.stream.read(on=False)
        received = bytearray(self.peer.take())
        self.client.send(publish(b"t", b"0003"))
        while self.peer.stream.buffered:
            self.peer.stream.read(on=False)
            received += self.peer.take()
            self.b.pump()
        self.check(bytes(received), 4)

    def check(self, received: bytes, stop: int) -> None:
        """Check that the messages before the page's end, and no others, are before the page."""
        found = [one for one in units(received) if one.frames[1] in (b"\x01", b"\x09")]
        at = [index for index, one in enumerate(found) if one.frames[1] == b"\x09"]
        (page,) = pages(received)
        numbers = [int(one.frames[3][:4]) for one in found if one.frames[1] == b"\x01"]
        assert numbers == list(range(1, stop))
        assert at == [page.end - 1]
