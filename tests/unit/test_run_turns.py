"""Reads whose messages are published run by run: others are served between them."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.dispatcher import Dispatcher
from pubsub.broker.topic_space.durability import Durability
from tests.unit import cafe_wire, fast_wire, nsd_lines
from tests.unit.brokers import message, subscribe
from tests.unit.cafe_wire import Cafe
from tests.unit.fast_wire import OWNER, READER, WRITER, Fast
from tests.unit.nsd_lines import SUCCESS, Nsd
from tests.unit.spot_house import house, join
from tests.unit.streams import Client, House

COUNT = 1500
# Some are longer than the largest short frame.
PAYLOADS = [b"%d" % number + b"." * (number % 7 * 50) for number in range(COUNT)]


class TurnTests(SynchronousTestCase):
    """A read in which something requires to look at each topic"""

    def with_other_brokers(self) -> None:
        """Have messages published as if there were other brokers, which know one sender a batch."""
        self.patch(Dispatcher, "stores_parts", False)  # type: ignore[no-untyped-call]

    def received(self, broker: House, client: Client, sent: list[bytes], reader: Client) -> bytes:
        """Return what the reader receives of one read, to which there are no replies."""
        client.stream.feed(b"".join(sent)[:-1])
        assert client.stream.paused
        early = len(reader.stream.received)
        # Nothing more is read meanwhile.
        client.stream.feed(sent[-1][-1:])
        broker.pump(3)
        assert not client.stream.paused
        assert client.take() == b""
        received = reader.take()
        assert early < len(received) // 2
        return received

    def test_spot_with_two_origins(self) -> None:
        self.with_other_brokers()
        broker = house(max_message=1000)
        reader = join(broker, b"DEALER", subscribe(b"a"), subscribe(b"b"))
        client = join(broker)
        sent, expected = [], b""
        for number, payload in enumerate(PAYLOADS):
            topic = b"ab"[number // 3 % 2 :][:1]
            # A frame may be long whatever its size.
            size = len(payload)
            long = b"\x02" + size.to_bytes(8, "big") + payload
            data = long if size > 255 or number % 5 == 0 else bytes([0, size]) + payload
            before = message(b"", b"\x01", b"pq"[number % 2 :][:1], topic, b"")[:-2]
            sent.append(before + data)
            delivered = long if size > 255 else bytes([0, size]) + payload
            expected += message(b"", b"\x01", topic, b"")[:-2] + delivered
        early = join(broker)
        early.send(b"".join(sent[:20]))
        reader.take()
        assert self.received(broker, client, sent, reader) == expected

    def test_cafe_with_a_channel_that_is_not_stored(self) -> None:
        broker = Cafe()
        reader = broker.subscriber(b"\x01\x02")
        client = broker.publisher()
        client.send(cafe_wire.publish(1, b"0") + cafe_wire.publish(2, b"0"))
        reader.take()
        broker.broker.topics.named("cafe/2").set_durability(Durability.NONE)
        self.with_other_brokers()
        sent = [
            cafe_wire.publish(number % 2 + 1, payload) for number, payload in enumerate(PAYLOADS)
        ]
        assert cafe_wire.payloads(self.received(broker, client, sent, reader)) == PAYLOADS

    def test_fast_with_two_subjects(self) -> None:
        self.with_other_brokers()
        broker = Fast(self)
        broker.owner()
        reader = broker.reader(READER)
        client = broker.client(fast_wire.publish(OWNER, b"0") + fast_wire.publish(WRITER, b"0"))
        reader.take()
        sent = [
            fast_wire.publish((OWNER, WRITER)[number % 2], payload)
            for number, payload in enumerate(PAYLOADS)
        ]
        expected = fast_wire.message(*PAYLOADS)
        assert self.received(broker, client, sent, reader) == expected

    def test_nsd_with_two_senders(self) -> None:
        self.with_other_brokers()
        broker = Nsd()
        client = broker.connect("nsd")
        client.send(nsd_lines.open_("a"))
        lines = [
            nsd_lines.publish("a", payload.decode(), **{"from": "pq"[number % 2]})
            for number, payload in enumerate(PAYLOADS)
        ]
        for _ in range(3):
            client.send(lines[0] + lines[1])
        client.take()
        start = broker.store.next_offset
        client.stream.feed(b"".join(lines)[:-1])
        assert client.stream.paused
        assert broker.store.next_offset < start + COUNT // 2
        client.stream.feed(lines[-1][-1:])
        broker.pump(3)
        assert client.take() == SUCCESS * COUNT
        page = self.successResultOf(broker.store.read(start, None, 10**7))
        assert [one for batch in page.batches for one in batch.payloads()] == PAYLOADS
        senders = [batch.sender for batch in page.batches for _ in range(batch.count)]
        assert senders == [b"p", b"q"] * (COUNT // 2)
