"""cafe over streams, beyond the conversations: time, takeover, replay, listeners, logs."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from tests.unit import cafe_wire as wire
from tests.unit.cafe_wire import DISCONNECT, GAP, PING, PONG, Cafe
from tests.unit.streams import logged


class AcknowledgmentTests(SynchronousTestCase):
    """cafe §4.3: the acknowledgment is a write of its own"""

    def test_messages_are_held_for_20_ms(self) -> None:
        cafe = Cafe()
        alice = cafe.publisher()
        bob = cafe.connect("cafe")
        bob.send(wire.hs_sub(b"\x01", b"bob"))
        alice.send(wire.publish(1, b"one"))
        cafe.clock.advance(0.019)
        alice.send(wire.publish(1, b"two"))
        assert bob.stream.writes == [wire.ack(2)]
        cafe.clock.advance(0.001)
        assert [payload for _, payload in wire.frames(b"".join(bob.stream.writes[1:]))] == [
            bytes.fromhex("01 00 68 e5 cf 8b 01 00 00") + b"one",
            bytes.fromhex("01 13 68 e5 cf 8b 01 00 00") + b"two",
        ]

    def test_frames_before_the_acknowledgment_take_effect_in_order(self) -> None:
        cafe = Cafe()
        alice = cafe.publisher()
        bob = cafe.connect("cafe")
        bob.send(wire.hs_sub(b"\x01") + wire.subscribe(2) + wire.unsubscribe(1) + PING)
        alice.send(wire.publish(1, b"one") + wire.publish(2, b"two"))
        cafe.clock.advance(GAP)
        assert bob.stream.writes == [wire.ack(2), PONG, wire.message(2, b"two")]

    def test_only_the_acknowledged_subscriber_is_held(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber()
        late = cafe.connect("cafe")
        late.send(wire.hs_sub(b"\x01"))
        alice.send(wire.publish(1, b"hi"))
        assert len(wire.frames(bob.take())) == 1
        assert late.stream.writes == [wire.ack(3)]

    def test_a_client_that_disconnects_in_the_gap_holds_nothing(self) -> None:
        cafe = Cafe()
        alice = cafe.publisher()
        bob = cafe.connect("cafe")
        bob.send(wire.hs_sub(b"\x01"))
        alice.send(wire.publish(1, b"hi"))
        bob.send(DISCONNECT)
        cafe.clock.advance(GAP)
        assert bob.take() == wire.ack(2)
        assert bob.closed
        assert cafe.broker.counters.delivered == 0
        assert cafe.broker.counters.dropped == 1


class GatheredTests(SynchronousTestCase):
    """Lone messages of several clients in one tick"""

    def setUp(self) -> None:
        self.cafe = Cafe()
        self.bob = self.cafe.subscriber()
        self.clients = [self.cafe.publisher() for _ in range(4)]
        # In one tick, which does not end.
        for number, client in enumerate(self.clients):
            client.stream.feed(wire.publish(1, b"%d" % number))
        assert self.stored == 1

    @property
    def stored(self) -> int:
        return self.cafe.broker.store.next_offset

    def test_they_are_delivered_in_order(self) -> None:
        self.cafe.clock.advance(0)
        assert wire.payloads(self.bob.take()) == [b"0", b"1", b"2", b"3"]
        assert self.stored == 4

    def feed(self, data: bytes) -> bytes:
        """Feed the last client in this tick; return what it receives in it."""
        client = self.clients[3]
        client.take()
        client.stream.feed(data)
        return client.take()

    def test_a_pong_confirms_the_messages_before_it(self) -> None:
        assert self.feed(PING) == b""
        # It does not make the others follow on their own.
        assert self.stored == 1
        self.cafe.clock.advance(0)
        assert self.clients[3].take() == PONG
        assert self.stored == 4

    def test_pongs_of_several_clients(self) -> None:
        for client in self.clients:
            client.take()
            client.stream.feed(wire.publish(1, b"x") + PING)
        assert self.stored == 1
        self.cafe.clock.advance(0)
        assert [client.take() for client in self.clients] == [PONG] * 4
        assert wire.payloads(self.bob.take()) == [b"0", b"1", b"2", b"3", *[b"x"] * 4]

    def test_other_replies_keep_their_order(self) -> None:
        unknown = wire.frame(0x77, b"")
        assert self.feed(PING + unknown + wire.publish(1, b"4") + PING + PING) == b""
        # An error confirms the messages before it as well.
        assert self.stored == 4
        self.cafe.clock.advance(0)
        assert self.clients[3].take() == PONG + wire.error(0x06) + PONG * 2
        assert self.stored == 5

    def test_a_client_that_ends_gets_its_pong(self) -> None:
        assert self.feed(wire.publish(1, b"4") + PING + DISCONNECT) == b""
        self.cafe.clock.advance(0)
        assert self.clients[3].take() == PONG
        assert self.clients[3].closed

    def test_a_client_that_sends_nothing_more_gets_its_pong(self) -> None:
        assert self.feed(PING) == b""
        self.clients[3].protocol.readConnectionLost()
        self.cafe.clock.advance(0)
        assert self.clients[3].take() == PONG

    def test_a_client_that_is_lost_before_its_pong(self) -> None:
        assert self.feed(PING) == b""
        self.clients[3].stream.lose()
        self.cafe.clock.advance(0)
        assert wire.payloads(self.bob.take()) == [b"0", b"1", b"2", b"3"]
        assert self.clients[3].take() == b""

    def test_messages_of_a_client_that_ends_are_published(self) -> None:
        for client in self.clients:
            client.stream.feed(DISCONNECT)
        self.cafe.clock.advance(0)
        assert wire.payloads(self.bob.take()) == [b"0", b"1", b"2", b"3"]

    def test_a_message_to_another_channel_follows_them(self) -> None:
        self.bob.send(wire.subscribe(2))
        self.clients[3].stream.feed(wire.publish(2, b"4"))
        self.clients[3].stream.feed(wire.publish(1, b"5"))
        self.cafe.clock.advance(0)
        assert wire.payloads(self.bob.take()) == [b"0", b"1", b"2", b"3", b"4", b"5"]


class EndTests(SynchronousTestCase):
    """DISCONNECT (cafe §4.5)"""

    def test_nothing_behind_it_is_published(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber()
        alice.send(wire.publish(1, b"a") + DISCONNECT + wire.publish(1, b"b"))
        assert wire.payloads(bob.take()) == [b"a"]
        alice.send(wire.publish(1, b"c"))
        assert bob.take() == b""
        assert alice.closed


class OpcodeTests(SynchronousTestCase):
    """Frames that only the broker sends (cafe §6.3)"""

    def test_from_a_client_they_are_unknown_opcodes(self) -> None:
        cafe = Cafe()
        clients = (cafe.publisher(), cafe.subscriber())
        payloads = (b"", b"\x00", bytes(9), bytes(10), b"\xff" * 1000)
        for client in clients:
            for opcode in (0x03, 0x13, 0xFF):
                for payload in payloads:
                    client.send(wire.frame(opcode, payload) + PING)
                    assert client.take() == wire.error(0x06) + PONG
        assert cafe.broker.counters.refusals == {("cafe", "invalid-opcode"): 30}
        assert not any(client.closed for client in clients)

    def test_one_among_publishes_does_not_close(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber()
        alice.send(wire.publish(1, b"a", b"b") + wire.ack(1) + wire.publish(1, b"c"))
        assert alice.take() == wire.error(0x06)
        assert wire.payloads(bob.take()) == [b"a", b"b", b"c"]

    def test_before_the_handshake_they_close(self) -> None:
        cafe = Cafe()
        for opcode in (0x03, 0x13, 0xFF):
            client = cafe.connect("cafe")
            client.send(wire.frame(opcode, b"\x01"))
            assert client.take() == wire.error(0x01)
            assert client.closed


class DeliveryTests(SynchronousTestCase):
    """MESSAGE"""

    def test_the_timestamp_is_in_ms_and_truncated(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber()
        cafe.clock.rightNow = 1_700_000_000.123999
        alice.send(wire.publish(1, b"hi"))
        assert bob.take() == bytes.fromhex("fe ca 13 0b 00 00 00 01 7b 68 e5 cf 8b 01 00 00 68 69")

    def test_timestamps_do_not_decrease_with_the_clock(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber()
        cafe.clock.rightNow = 1_700_000_001.0
        alice.send(wire.publish(1, b"a"))
        cafe.clock.rightNow = 1_700_000_000.5
        alice.send(wire.publish(1, b"b"))
        later = bytes.fromhex("e8 6b e5 cf 8b 01 00 00")
        assert bob.take() == wire.message(1, b"a", b"b", at=later)

    def test_a_chunk_of_publishes_is_one_write_to_each_subscriber(self) -> None:
        cafe = Cafe()
        alice, bob, carol = cafe.publisher(), cafe.subscriber(), cafe.subscriber()
        names = [b"%03d" % number for number in range(500)]
        alice.send(wire.publish(1, *names))
        for client in (bob, carol):
            assert len(client.stream.writes) == 2
            assert wire.payloads(client.take()) == names

    def test_interleaved_channels_keep_the_order_of_each(self) -> None:
        cafe = Cafe()
        alice, bob = cafe.publisher(), cafe.subscriber(b"\x01\x02")
        alice.send(b"".join(wire.publish(n % 2 + 1, b"%d" % n) for n in range(20)))
        found = wire.frames(bob.take())
        for channel in (1, 2):
            assert [p[9:] for _, p in found if p[0] == channel] == [
                b"%d" % n for n in range(20) if n % 2 + 1 == channel
            ]

    def test_two_listeners_see_a_topic_as_different_channels(self) -> None:
        cafe = Cafe(channels="1:orders,2")
        settings = {**cafe.config.listeners[0].settings, "channels": {9: "orders", 1: "cafe/2"}}
        listener = cafe.broker.make_listener("cafe", settings)
        other = cafe.config.listeners[0].protocol.make_factory(listener)
        alice, bob = cafe.publisher(), cafe.subscriber(b"\x01\x02")
        cafe.factories["cafe"] = other
        carol, dave = cafe.subscriber(b"\x01\x09"), cafe.publisher(9)
        alice.send(wire.publish(1, b"one"))
        alice.send(wire.publish(2, b"two"))
        dave.send(wire.publish(9, b"nine"))
        dave.send(wire.publish(2, b"not offered"))
        seen = [[(p[0], p[9:]) for _, p in wire.frames(client.take())] for client in (bob, carol)]
        assert seen[0] == [(1, b"one"), (2, b"two"), (1, b"nine")]
        assert seen[1] == [(9, b"one"), (1, b"two"), (9, b"nine")]
        assert dave.take() == wire.error(0x02)

    def test_a_session_is_resumed_only_at_the_listener_that_opened_it(self) -> None:
        cafe = Cafe()
        bob = cafe.subscriber()
        bob.stream.lose()
        config = cafe.config.listeners[0]
        cafe.factories["cafe"] = config.protocol.make_factory(
            cafe.broker.make_listener("cafe", config.settings)
        )
        again = cafe.connect("cafe")
        again.send(wire.hs_sub(b"", wire.resume(b"bob", 1)))
        assert again.take() == wire.ack(0, status=1)

    def test_a_message_too_long_for_a_frame_is_dropped_and_counted(self) -> None:
        cafe = Cafe(channels="1:ada", also={"nsd": {"max-body": 2_000_000}})
        bob = cafe.subscriber()
        ada = cafe.connect("nsd")
        ada.send(b'{"_class":"OpenRequest","identity":"ada"}\n')
        for size in (1_048_568, 1_048_567):
            line = b'{"_class":"PublishRequest","identity":"ada","message":'
            line += b'{"_class":"Message","from":"","when":0,"body":"%b"}}\n' % (b"x" * size)
            ada.send(line)
        assert wire.payloads(bob.take()) == [b"x" * 1_048_567]
        (drop,) = cafe.broker.counters.drops.items()
        assert drop == (("bob@" + bob.protocol.peer, "ada", "too-large"), 1)


class LogTests(SynchronousTestCase):
    """Neither payloads nor session ids are logged"""

    def test_no_line_has_a_payload_or_session_id(self) -> None:
        lines = logged(self)
        cafe = Cafe(rate_messages=2, slow_bytes="100K", slow_consumer="drop", idle_timeout=3)
        cafe.start()
        session = 0xFACEB00C12345678
        cafe.broker.sessions._draw = lambda: session
        bob = cafe.subscriber()
        cafe.broker.sessions._draw = lambda: 7
        alice = cafe.publisher()
        bob.stream.stop_reading()
        alice.send(wire.publish(1, *[b"SECRET" + b"." * 70_000] * 3) + wire.publish(9, b"SECRET"))
        alice.send(wire.frame(0x77, b"SECRET") + wire.publish(1, b"SECRET"))
        cafe.clock.advance(1)
        alice.send(wire.publish(1, b"SECRET" + b"." * 70_000))
        taker = cafe.connect("cafe")
        taker.send(wire.hs_sub(b"", wire.resume(b"bob", session)))
        for wrong in (
            wire.resume(b"bob", session ^ 1),
            b"x;resume=SECRET",
            wire.resume(b"SECRE", session),
        ):
            cafe.connect("cafe").send(wire.hs_sub(b"", wrong))
        cafe.connect("cafe").send(b"SECRET is no magic")
        cafe.advance(10)
        assert len(lines) > 6
        for line in lines:
            assert "SECRET" not in line
            for shown in (f"{session:x}", f"{session}", f"{session ^ 1:x}"):
                assert shown not in line.lower()
