"""Reads of rheos with the messages of many client ids: others are served between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.dispatcher import Dispatcher
from pubsub.protocols.rheos.codec import Codec, Opcode, Request
from tests.unit import rheos_wire as wire
from tests.unit.rheos_wire import ALICE, BOB, Rheos

COUNT = 1500
MANY = [number.to_bytes(16, "big") for number in range(1, 900)]


class TurnTests(SynchronousTestCase):
    """A read whose messages are published run by run"""

    def publish(self, codec: Codec, ids: Sequence[bytes], **settings: Any) -> None:
        """Publish messages of ``ids`` in turn as one read, twice; assert that all arrive."""
        # As if there were other brokers, which know one sender of a batch.
        self.patch(Dispatcher, "stores_parts", False)  # type: ignore[no-untyped-call]
        rheos = Rheos(**settings)
        reader, client = rheos.connect("rheos"), rheos.connect("rheos")
        reader.send(codec.encode(Request(Opcode.SUBSCRIBE, b"r" * 16, b"news")))
        reader.take()
        for _ in range(2):
            requests, expected = b"", b""
            for number in range(COUNT):
                one, payload = ids[number % len(ids)], b"%d" % number
                requests += codec.encode(Request(Opcode.PUBLISH, one, b"news", payload))
                expected += wire.response(one, payload)
            client.stream.feed(requests[:-1])
            assert client.stream.paused
            assert len(reader.stream.received) < len(expected) // 2
            # Nothing more is read meanwhile.
            client.stream.feed(requests[-1:])
            rheos.pump(3)
            assert not client.stream.paused
            assert reader.take() == expected
            acks = client.take()
            size = len(codec.failed)
            codes = {acks[at + 17] for at in range(0, len(acks), size)}
            assert (len(acks), codes) == (COUNT * size, {0})

    def test_all_are_published_in_order(self) -> None:
        for ids in ((ALICE, BOB), MANY):
            self.publish(Codec(), ids)

    def test_with_checksums(self) -> None:
        self.publish(Codec(checksum=True), (ALICE, BOB), checksum="crc32")

    def test_in_the_original_layout(self) -> None:
        self.publish(Codec("original"), (ALICE, BOB), layout="original")

    def test_a_client_that_disconnects_meanwhile(self) -> None:
        rheos = Rheos()
        reader, client = rheos.reader(b"r" * 16), rheos.connect("rheos")
        requests = [wire.publish(one, b"x") for one in MANY * 2]
        client.stream.feed(b"".join(requests))
        assert client.stream.paused
        client.stream.lose()
        rheos.pump(3)
        assert 0 < len(reader.take()) < len(requests) * len(wire.response(ALICE, b"x"))
