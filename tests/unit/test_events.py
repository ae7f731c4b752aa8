"""Events: collection, bounds, and fields that must not be in them."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode, urlsafe_b64encode
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.figures.events import (
    FRAME_BYTES,
    RATE,
    TOPIC,
    Events,
    redacted_frame,
    secret_pattern,
)
from pubsub.broker.listeners.limits import BrokerLimits
from pubsub.errors import StartError
from pubsub.protocols.cafe.malformed import REDACTED
from tests.unit import cafe_wire, fast_wire
from tests.unit.cafe_udp import ALICE, BOB, CAROL, Udp
from tests.unit.fakes import clock_at, make_broker, make_listener


class PublishedEvents(SynchronousTestCase):
    """Events published to a list."""

    def setUp(self) -> None:
        self.clock = clock_at()
        self.batches: list[list[dict[str, Any]]] = []
        self.events = Events(
            self.clock.seconds,
            lambda call: self.clock.callLater(0, call),
            lambda payloads: self.batches.append([json.loads(p) for p in payloads]),
        )
        self.listener = make_listener(make_broker(self.clock))

    def refuse(self, client: str = "bob", count: int = 1, topic: str = "t") -> None:
        self.events.refused(self.listener, client, "rate-limited", count, topic, None)


class GatheringTests(PublishedEvents):
    """The events of a tick are one batch"""

    def test_a_turn_is_a_batch(self) -> None:
        self.events.connected(self.listener, "a", 1)
        self.events.connected(self.listener, "b", 2)
        assert self.batches == []
        self.clock.advance(0)
        ((first, second),) = self.batches
        assert (first["client"], second["client"]) == ("a", "b")
        self.events.connected(self.listener, "c", 3)
        self.clock.advance(0)
        assert [event["client"] for event in self.batches[1]] == ["c"]

    def test_equal_refusals_are_one_event(self) -> None:
        for _ in range(3):
            self.refuse(count=2)
        self.refuse("eve")
        self.refuse(topic="other")
        self.events.dropped("bob", "t", "slow-consumer", 4)
        self.events.dropped("bob", "t", "slow-consumer", 5)
        self.clock.advance(0)
        assert [event["messages"] for event in self.batches[0]] == [6, 1, 1, 9]
        self.refuse()
        self.clock.advance(0)
        assert [event["messages"] for event in self.batches[1]] == [1]

    def test_without_events_nothing_is_published(self) -> None:
        self.events.flush()
        assert self.batches == []


class BoundTests(PublishedEvents):
    """Events above the rate are counted"""

    def flood(self, number: int) -> None:
        for index in range(number):
            self.events.connected(self.listener, f"client-{index}", index)
        self.clock.advance(0)

    def test_events_above_the_rate_are_counted_and_reported(self) -> None:
        self.flood(int(RATE) + 7)
        assert len(self.batches[0]) == RATE
        self.clock.advance(1)
        self.events.flush()
        assert self.batches[1] == [{"event": "suppressed", "messages": 7}]
        self.clock.advance(1)
        self.events.flush()
        assert len(self.batches) == 2

    def test_additions_to_an_event_do_not_count(self) -> None:
        for _ in range(10 * int(RATE)):
            self.refuse()
        self.clock.advance(0)
        ((event,),) = self.batches
        assert event["messages"] == 10 * RATE
        assert self.events.suppressed == 0

    def test_the_count_is_reported_at_shutdown_at_the_latest(self) -> None:
        self.flood(int(RATE) + 3)
        self.events.close()
        assert self.batches[-1] == [{"event": "suppressed", "messages": 3}]


class SecrecyTests(SynchronousTestCase):
    """No token, key or session id is in an event"""

    secret = secret_pattern([*REDACTED, rb"(?i:password)="])

    def test_a_frame_is_cut_at_its_bound(self) -> None:
        text = redacted_frame(b"x" * 5000, self.secret)
        assert text is not None
        assert b64decode(text) == b"x" * FRAME_BYTES
        assert redacted_frame(b"", self.secret) is None

    def test_a_frame_is_cut_before_a_token_or_a_session_id(self) -> None:
        token = fast_wire.grant()
        for secret in (token, b";resume=0123456789abcdef", b"PassWord=x"):
            for before in (0, 1, 7, FRAME_BYTES - 20, FRAME_BYTES - 2, FRAME_BYTES - 1):
                text = redacted_frame(b"." * before + secret, self.secret)
                assert b64decode(text or "") == b"." * before

    def test_a_frame_is_cut_before_a_token_in_base64(self) -> None:
        for space in (b"", b" ", b"\n\t", b" " * 40):
            header = urlsafe_b64encode(space + b'{"alg":"HS256"}').rstrip(b"=")
            claims = urlsafe_b64encode(space + b'{ "queue_key": "k"}').rstrip(b"=")
            token = header + b"." + claims + b".c2ln"
            request = space + b'{"_class":"GetRequest","token":"' + token + b'"}'
            for secret in (token, claims, b64encode(request), b64encode(b"?" + token)):
                for before in (0, 1, 7, 500):
                    text = redacted_frame(b"." * before + secret, self.secret)
                    assert b64decode(text or "") == b"." * before

    def test_a_line_of_nsd_in_base64_with_a_leading_space(self) -> None:
        house = fast_wire.Fast(self, also={"nsd": {}}, top={"events": True})
        house.start()
        line = b64encode(b' {"_class":"None","token":"' + fast_wire.grant() + b'"}')
        house.connect("nsd").send(line + b"\n" + b" " + line + b"\n")
        house.pump()
        page = self.successResultOf(house.store.read(0, frozenset({TOPIC}), 2**24))
        events = [json.loads(data) for batch in page.batches for data in batch.payloads()]
        frames = [event.get("frame") for event in events if event["event"] == "malformed"]
        assert frames == [None, b64encode(b" ").decode()]

    def test_other_text_is_shown(self) -> None:
        for frame in (b"GET /index.html HTTP/1.1", b"a" * 1000, bytes(range(256)), b"{}" * 100):
            text = redacted_frame(frame, self.secret)
            assert b64decode(text or "") == frame

    def test_frames_of_fast_sent_to_another_protocol(self) -> None:
        house = fast_wire.Fast(self, also={"rheos": {}, "cafe": {}}, top={"events": True})
        house.start()
        token = fast_wire.grant()
        for name in ("rheos", "cafe"):
            house.connect(name).send(fast_wire.create(token))
        house.client(b"\x55" + token)
        house.client(fast_wire.create(token)).send(fast_wire.rotate(token, b"the new key"))
        house.pump()
        page = self.successResultOf(house.store.read(0, frozenset({TOPIC}), 2**24))
        events = [json.loads(data) for batch in page.batches for data in batch.payloads()]
        assert [e["event"] for e in events].count("malformed") == 3
        assert [e["event"] for e in events].count("rotated") == 1
        for event in events:
            frame = b64decode(event.pop("frame", ""))
            assert len(frame) <= 3
            said = json.dumps(event)
            for secret in ("eyJ", "the new key", "k1"):
                assert secret not in said


class DatagramTests(SynchronousTestCase):
    """A client of cafe over UDP is a connection too"""

    def joined(self, **settings: Any) -> Udp:
        udp = Udp(top={"events": True}, **settings)
        udp.start()
        udp.join(ALICE, cafe_wire.hs_pub(1, b"alice"))
        udp.join(BOB, cafe_wire.hs_sub(b"\x01", b"bob"))
        return udp

    def test_a_session_has_a_connect_and_a_disconnect_event(self) -> None:
        udp = self.joined()
        udp.send(ALICE, cafe_wire.publish(1, b"12345", b"678"))
        udp.send(ALICE, b"\xfe\xca\x10")
        udp.send(CAROL, b"who is there")
        udp.advance(301)
        udp.broker.stopService()
        page = self.successResultOf(udp.store.read(0, frozenset({TOPIC}), 2**20))
        events = [json.loads(data) for batch in page.batches for data in batch.payloads()]
        assert [event["event"] for event in events] == [
            "connect", "connect", "malformed", "disconnect", "malformed", "refused", "disconnect",
        ]  # fmt: skip
        alice, bob, truncated, gone, stranger, _, late = events
        assert alice["session"] == truncated["session"] == gone["session"]
        assert truncated["reason"] == gone["reason"] == "truncated-datagram"
        assert (gone["messages"], gone["bytes"]) == (2, 8)
        assert b64decode(stranger["frame"]) == b"who is there"
        assert "session" not in stranger
        assert (late["session"], late["reason"]) == (bob["session"], "idle")

    def test_a_slow_subscriber_has_an_event(self) -> None:
        udp = self.joined(slow_consumer="disconnect", slow_bytes=10)
        peer = udp.protocol._clients[BOB]
        peer.outbox.pause()
        udp.send(ALICE, cafe_wire.publish(1, b"x" * 20))
        udp.pump()
        page = self.successResultOf(udp.store.read(0, frozenset({TOPIC}), 2**20))
        events = [json.loads(data) for batch in page.batches for data in batch.payloads()]
        assert [event["event"] for event in events[2:]] == ["dropped", "evicted", "disconnect"]
        assert events[3]["reason"] == events[4]["reason"] == "slow consumer: over 10 bytes behind"


class BrokerTests(SynchronousTestCase):
    """The broker's own topic"""

    def test_they_are_off_by_default(self) -> None:
        broker = make_broker()
        broker.startService()
        assert TOPIC not in broker.topics
        assert make_listener(broker).connection_events("bob", 1) is None

    def test_events_are_messages_of_the_broker(self) -> None:
        clock = clock_at()
        broker = make_broker(clock, events=True)
        broker.startService()
        make_listener(broker).connection_events("bob", 1)
        clock.advance(0)
        page = self.successResultOf(broker.store.read(0, None, 2**20))
        (batch,) = page.batches
        assert (batch.topic, batch.protocol, batch.sender) == (TOPIC, "pubsub", b"")
        assert broker.counters.published == 0

    def test_drops_of_events_cause_none(self) -> None:
        clock = clock_at()
        broker = make_broker(clock, events=True)
        broker.startService()
        broker.counters.drop("bob", TOPIC, "slow-consumer", 3)
        broker.counters.drop("bob", "t", "slow-consumer", 3)
        clock.advance(0)
        page = self.successResultOf(broker.store.read(0, None, 2**20))
        assert [json.loads(data)["topic"] for data in page.batches[0].payloads()] == ["t"]

    def test_without_room_for_the_topic_the_start_fails(self) -> None:
        broker = make_broker(limits=BrokerLimits(max_topics=0), events=True)
        with pytest.raises(StartError, match="cannot create topic"):
            broker.startService()

    def test_the_sweep_reports_suppressed_events(self) -> None:
        clock = clock_at()
        broker = make_broker(clock, events=True)
        broker.startService()
        events = make_listener(broker).events
        assert events is not None
        events.suppressed = 5
        clock.advance(1)
        page = self.successResultOf(broker.store.read(0, None, 2**20))
        assert json.loads(page.batches[0].payloads()[0]) == {"event": "suppressed", "messages": 5}
