"""The client library's connections over the HTTP API: the handshake, and a broker in memory."""

from __future__ import annotations

import logging

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.topic_space.durability import Durability
from pubsub.client.http_wire import HttpWire
from pubsub.kernel import Columns
from pubsub.store.memory_store import MemoryStore
from pubsub.wire.client_events import (
    Alive,
    Closing,
    Confirmed,
    Interest,
    Level,
    Malformed,
    Messages,
    Missed,
    NotSubscribed,
    Opened,
    Rejected,
    Subscribed,
    SubscriptionEnded,
    WireEvent,
)
from pubsub.wire.client_wire import Role, WireOptions
from tests.unit.http_ends import HandMade, HttpPair, make, make_values
from tests.unit.slow_store import Slow
from tests.unit.web import WebHouse
from tests.unit.wire_pairs import flat, others, receive_cut

NEWS, SPORT = Interest("news"), Interest("sport")


def refusal(status: str, body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


def messages(events: list[WireEvent]) -> list[Messages]:
    return [event for event in events if isinstance(event, Messages)]


class WireTests(SynchronousTestCase):
    def test_sizes(self) -> None:
        for size in (1024 * 1024, 3 * 1024 * 1024):
            wire, limit = HttpWire(WireOptions(values=make_values(size))), size - 4096
            assert not wire.topic_problem("news")
            assert not wire.payload_problem(Columns.one(bytes(limit)))
            assert str(limit) in wire.payload_problem(Columns.one(bytes(limit + 1)))
        assert HttpWire(WireOptions(values=make_values(100))).payload_problem(Columns.one(b"a"))

    def test_a_session_of_another_wire_is_not_resumed(self) -> None:
        assert HandMade(make(Role.SUBSCRIBER, session=object())).connection.session is not None
        pair = HttpPair(WebHouse(), make(Role.SUBSCRIBER, session=object()))
        assert pair.take() == [Opened(resumed=False)]


class HandshakeTests(SynchronousTestCase):
    def test_the_request(self) -> None:
        for host, expected in (("::1", "[::1]:7080"), ("broker", "broker:7080")):
            far = HandMade(make(Role.PUBLISHER, token="secret", host=host))
            assert far.request.path == "/v1/ws"
            assert far.request.headers["Host"] == expected
            assert far.request.headers["Sec-WebSocket-Protocol"] == "pubsub.v1.json"
            assert "Sec-WebSocket-Extensions" not in far.request.headers
            assert "secret" not in str(far.request)

    def test_the_first_request(self) -> None:
        far = HandMade(make(Role.PUBLISHER, "secret", b"ali\xffce"))
        far.receive(far.accept())
        assert far.requests() == [
            {"id": 1, "op": "connect", "token": "secret", "sender": "ali\ufffdce"}
        ]
        far = HandMade(make(Role.PUBLISHER))
        assert receive_cut(far.connection, far.accept()) == []
        assert far.requests() == [{"id": 1, "op": "connect"}]

    def test_refused_with_a_status(self) -> None:
        for status, permanent in (
            ("400 Bad Request", True),
            ("401 Unauthorized", True),
            ("403 Forbidden", True),
            ("404 Not Found", True),
            ("426 Upgrade Required", True),
            ("408 Request Timeout", False),
            ("503 Service Unavailable", False),
            ("302 Found", False),
        ):
            expected = [Rejected(f"HTTP {status[:3]}", permanent)]
            for sizes in ((1,), (7,), (65_536,)):
                far = HandMade(make(Role.SUBSCRIBER))
                assert receive_cut(far.connection, refusal(status), sizes) == expected
                assert far.connection.ended
                assert far.connection.take_output() == b""
                assert far.receive(b"more") == []

    def test_the_text_of_a_refusal(self) -> None:
        for body, shown in (
            (b'{"detail": "not a name of this broker"}', ": not a name of this broker"),
            (b'{"detail": "\\u001b[2J"}', ""),
            (b'{"detail": 7}', ""),
            (b'["detail"]', ""),
            (b"[" * 100_000, ""),
            (b'{"detail": "%b"}' % (b"x" * 301), ""),
            (b"<html>\xff</html>", ""),
        ):
            head = b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n" % len(body)
            for sizes in ((7,), (65_536,)):
                far = HandMade(make(Role.SUBSCRIBER))
                events = receive_cut(far.connection, head + body, sizes)
                assert events == [Rejected(f"HTTP 403{shown}", True)]

    def test_not_the_subprotocol(self) -> None:
        """Nothing is sent to a server that has not agreed on it, above all no token."""
        for protocol in (None, "other"):
            far = HandMade(make(Role.PUBLISHER, "secret"))
            assert far.receive(far.accept(protocol)) == [Malformed("not the HTTP API of a broker")]
            assert far.connection.take_output() == b""

    def test_not_a_websocket(self) -> None:
        wrong = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"
        for data in (b"SSH-2.0-OpenSSH\r\n", b"\0\1\2\n", b"x" * 100_000, wrong):
            far = HandMade(make(Role.PUBLISHER))
            assert far.receive(data) == [Malformed("not the HTTP API of a broker")]
            assert far.connection.ended

    def test_the_log_has_no_token(self) -> None:
        with self.assertLogs(level=logging.DEBUG) as caught:
            logging.getLogger("tests").debug("a line")
            pair = HttpPair(WebHouse(), make(Role.PUBLISHER, "x.y.z"))
            pair.take()
        assert len(caught.output) == 1

    def test_before_the_handshake_there_is_no_close(self) -> None:
        far = HandMade(make(Role.PUBLISHER))
        far.connection.close()
        assert far.connection.take_output() == b""


class BrokerTests(SynchronousTestCase):
    """With a broker in memory"""

    def setUp(self) -> None:
        self.house = WebHouse()

    def reader(self, *interests: Interest, piece: int = 65_536) -> HttpPair:
        """Return a subscriber of these."""
        pair = HttpPair(self.house, make(Role.SUBSCRIBER), piece)
        assert pair.take() == [Opened()]
        for interest in interests:
            pair.connection.subscribe(interest)
        return pair

    def test_messages_arrive_with_sender_and_headers(self) -> None:
        reader = self.reader(NEWS, SPORT, piece=7)
        assert reader.take() == [Subscribed(NEWS), Subscribed(SPORT)]
        writer = HttpPair(self.house, make(Role.PUBLISHER, client_id=b"bob"))
        assert writer.take() == [Opened()]
        payloads = [b"one", b"", b"\xff" * 9999]
        writer.connection.publish("news", Columns.of(payloads))
        writer.connection.publish("sport", Columns.one(b"goal"), b"eve", {"k": b"\0\xff", "l": b""})
        writer.connection.confirm()
        assert writer.take() == [Confirmed(4, Level.HANDLED)]
        events = reader.take()
        expected = [("news", b"bob", payload) for payload in payloads]
        assert flat(events) == [*expected, ("sport", b"eve", b"goal")]
        *_, last = messages(events)
        assert last.headers == [{"k": b"\0\xff", "l": b""}]
        assert last.offsets == [3]

    def test_the_start(self) -> None:
        self.house.publish("news", b"0", b"1", b"2")
        assert flat(self.reader(NEWS).take()) == []
        from_one = self.reader(Interest("news", start=1)).take()
        assert [payload for _, _, payload in flat(from_one)] == [b"1", b"2"]

    def test_a_session_continues_where_it_was(self) -> None:
        interest = Interest("news", start=0)
        reader = self.reader(interest)
        self.house.publish("news", b"0", b"1")
        assert len(flat(reader.take())) == 2
        self.house.publish("news", b"2")
        again = HttpPair(self.house, make(Role.SUBSCRIBER, session=reader.connection.session))
        assert again.take() == [Opened(resumed=True)]
        again.connection.subscribe(interest)
        events = again.take()
        assert others(events) == [Subscribed(interest)]
        assert flat(events) == [("news", b"alice", b"2")]

    def test_a_quiet_subscription_continues_where_it_began(self) -> None:
        reader = self.reader(NEWS)
        reader.take()
        self.house.publish("news", b"0")
        again = HttpPair(self.house, make(Role.SUBSCRIBER, session=reader.connection.session))
        again.take()
        again.connection.subscribe(NEWS)
        assert flat(again.take()) == [("news", b"alice", b"0")]

    def test_a_topic_that_is_not_stored_continues_with_new_messages(self) -> None:
        """Its position stays where the subscription began, also once that has expired."""
        self.house = WebHouse(MemoryStore(2, 2**20))
        topic = self.house.broker.topics.create("news")
        topic.set_durability(Durability.NONE)
        reader = self.reader(NEWS)
        reader.take()
        for number in range(4):
            self.house.publish("other", b"x")
            self.house.publish("news", b"missed")
            pair = HttpPair(self.house, make(Role.SUBSCRIBER, session=reader.connection.session))
            pair.take()
            pair.connection.subscribe(NEWS)
            assert pair.take() == [Subscribed(NEWS)]
            self.house.publish("news", b"%d" % number)
            assert [payload for _, _, payload in flat(pair.take())] == [b"%d" % number]
        # If it is stored by then, some of its messages may be among those that are gone.
        topic.set_durability(Durability.ASYNC)
        pair = HttpPair(self.house, make(Role.SUBSCRIBER, session=reader.connection.session))
        pair.take()
        pair.connection.subscribe(NEWS)
        assert pair.take() == [Subscribed(NEWS), Missed(None, "offsets 0 to 2: expired")]

    def test_the_session_of_another_history(self) -> None:
        reader = self.reader(NEWS)
        reader.take()
        self.house = WebHouse()
        self.house.store.epoch = "other-1"
        again = HttpPair(self.house, make(Role.SUBSCRIBER, session=reader.connection.session))
        again.take()
        again.connection.subscribe(NEWS)
        assert again.take() == [Missed("news", "offsets 0 to 0: replaced"), Subscribed(NEWS)]

    def test_messages_that_have_expired(self) -> None:
        self.house = WebHouse(MemoryStore(2, 2**20))
        for number in range(4):
            self.house.publish("news", b"%d" % number)
        interest = Interest("news", start=0)
        events = self.reader(interest).take()
        assert others(events) == [Subscribed(interest), Missed(None, "offsets 0 to 2: expired")]
        assert [payload for _, _, payload in flat(events)] == [b"2", b"3"]

    def test_unsubscribing(self) -> None:
        reader = self.reader(NEWS, SPORT)
        reader.take()
        reader.connection.unsubscribe(NEWS)
        assert reader.take() == []
        self.house.publish("news", b"x")
        self.house.publish("sport", b"y")
        assert flat(reader.take()) == [("sport", b"alice", b"y")]
        reader.connection.subscribe(NEWS)
        assert reader.take() == [Subscribed(NEWS)]

    def test_subscribed_already(self) -> None:
        """Nothing is requested that the broker would refuse, and count as a refusal."""
        reader = self.reader(NEWS)
        reader.take()
        reader.connection.subscribe(NEWS)
        assert reader.connection.delay == 0.0
        assert reader.connection.wake() == [Subscribed(NEWS)]
        assert reader.connection.take_output() == b""
        self.house.publish("news", b"x")
        assert flat(reader.take()) == [("news", b"alice", b"x")]

    def test_requested_twice(self) -> None:
        reader = self.reader(NEWS, NEWS)
        assert reader.take() == [Subscribed(NEWS), Subscribed(NEWS)]

    def test_the_right_to_read_ends(self) -> None:
        reader = self.reader(Interest("news", start=0))
        reader.take()
        self.house.lock("news", b"k")
        assert reader.take() == [
            SubscriptionEnded(Interest("news", start=0), "it may not be read any more")
        ]

    def test_refusals(self) -> None:
        self.house = WebHouse(allow_publish="news", allow_subscribe="news")
        reader = self.reader(SPORT)
        (event,) = reader.take()
        assert isinstance(event, NotSubscribed)
        assert event.interest == SPORT
        assert "sport" in event.reason
        writer = HttpPair(self.house, make(Role.PUBLISHER))
        writer.take()
        writer.connection.publish("sport", Columns.of([b"x", b"y"]))
        writer.connection.publish("news", Columns.one(b"x"))
        writer.connection.confirm()
        writer.connection.confirm()
        first, second = writer.take()
        assert isinstance(first, Confirmed)
        assert (first.published, first.refused, first.level) == (3, 2, Level.HANDLED)
        assert "sport" in first.reason
        assert second == Confirmed(0, Level.STORED)

    def confirming(self, store: Slow) -> HttpPair:
        """Return a publisher that has asked for the confirmation of a message in ``store``."""
        self.house = WebHouse(store)
        writer = HttpPair(self.house, make(Role.PUBLISHER))
        writer.take()
        writer.connection.publish("news", Columns.one(b"x"))
        writer.connection.confirm()
        return writer

    def test_the_level_of_a_store_on_disk(self) -> None:
        store = Slow()
        writer = self.confirming(store)
        writer.connection.ping()
        assert writer.take() == [Alive()]
        store.waiting.pop(0)(True)
        assert writer.take() == [Confirmed(1, Level.STORED)]

    def test_a_store_that_fails(self) -> None:
        store = Slow()
        writer = self.confirming(store)
        assert writer.take() == []
        store.waiting.pop(0)(False)
        (event,) = writer.take()
        assert isinstance(event, Confirmed)
        assert (event.published, event.refused, event.unknown) == (1, 0, 1)
        assert "it is not known whether they are stored" in event.reason

    def test_a_payload_that_is_too_large(self) -> None:
        self.house = WebHouse(max_message="4K")
        writer = HttpPair(self.house, make(Role.PUBLISHER))
        writer.take()
        writer.connection.publish("news", Columns.one(bytes(5000)))
        writer.connection.confirm()
        writer.connection.publish("news", Columns.one(bytes(3000)))
        writer.connection.confirm()
        reason = "a message of 5000 bytes is more than the broker takes"
        assert writer.take() == [Confirmed(1, Level.STORED, 1, reason), Confirmed(1, Level.HANDLED)]
        assert not writer.far.closed

    def test_tokens(self) -> None:
        good = HttpPair(self.house, make(Role.PUBLISHER, self.house.token(lasts=9).decode()))
        assert good.take() == [Opened()]
        self.house.pass_time(12)
        assert good.take() == [Rejected("the token is not valid any more", permanent=True)]
        bad = HttpPair(self.house, make(Role.PUBLISHER, "x.y.z"))
        assert bad.take() == [Rejected("malformed token", permanent=True)]
        old = HttpPair(self.house, make(Role.PUBLISHER, self.house.token(lasts=-9).decode()))
        assert old.take() == [Rejected("the token has expired", permanent=True)]

    def test_another_token_before_the_end_of_the_first(self) -> None:
        """One that the broker refuses changes nothing."""
        for next_token, lasts_longer in ((self.house.token().decode(), True), ("x.y.z", False)):
            raw = self.house.token("publish", lasts=9).decode()
            pair = HttpPair(self.house, make(Role.PUBLISHER, raw, b"ada"))
            assert pair.take() == [Opened()]
            pair.connection.use_token(next_token)
            assert pair.take() == [Alive()]
            pair.connection.publish("news", Columns.one(b"1"))
            pair.connection.confirm()
            assert pair.take() == [Confirmed(1, Level.HANDLED)]
            self.house.pass_time(12)
            ended = Rejected("the token is not valid any more", permanent=True)
            assert pair.take() == ([] if lasts_longer else [ended])
        senders = [row["key"] for row in self.house.get("/v1/history?start=0").rows]
        assert senders[-2:] == [b"ada", b"ada"]

    def test_a_busy_broker_may_be_tried_again(self) -> None:
        verifications = self.house.listener.verifications
        verifications.take(verifications.available())
        pair = HttpPair(self.house, make(Role.PUBLISHER, "x.y.z"))
        reason = "too many wrong tokens; try again later"
        assert pair.take() == [Rejected(reason, permanent=False)]

    def test_no_room_for_another_connection(self) -> None:
        self.house = WebHouse(max_connections=1)
        first = HttpPair(self.house, make(Role.PUBLISHER))
        assert first.take() == [Opened()]
        second = HttpPair(self.house, make(Role.PUBLISHER))
        reason = "HTTP 503: the broker has no room for more connections"
        assert second.take() == [Rejected(reason, permanent=False)]

    def test_pings_of_both_sides(self) -> None:
        reader = self.reader()
        reader.connection.ping()
        assert reader.take() == [Alive()]
        for _ in range(4):
            self.house.pass_time(15)
            assert reader.take() == []
        assert not reader.far.closed

    def test_the_broker_stops(self) -> None:
        reader = self.reader(NEWS)
        reader.take()
        self.house.broker.stopService()
        assert reader.take() == [Closing("the broker stops")]

    def test_the_client_closes(self) -> None:
        reader = self.reader(NEWS)
        reader.take()
        reader.connection.close()
        reader.take()
        assert reader.far.closed
