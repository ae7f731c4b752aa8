"""fast's client connections, with a broker in memory and with bytes made by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.kernel import Columns
from pubsub.protocols.fast.client import FastWire
from pubsub.wire.client_events import (
    Alive,
    Confirmed,
    Interest,
    Level,
    Malformed,
    NotSubscribed,
    Opened,
    Rejected,
    Subscribed,
    SubscriptionEnded,
    Unsubscribed,
)
from pubsub.wire.client_wire import Role, WireConnection, WireOptions
from tests.unit import fast_wire
from tests.unit.fast_wire import OWNER, topic_id
from tests.unit.raising import raised
from tests.unit.wire_pairs import Pair, flat, others, receive_cut

NEWS, SPORT = Interest("news"), Interest("sport")
BARRIER = fast_wire.unsubscribe(OWNER, 0)
# The reply to a barrier, and to a question for a topic that does not exist.
DONE = fast_wire.error(fast_wire.UNSUBSCRIBE, fast_wire.NO_TOPIC, 0)
MISSING = fast_wire.error(fast_wire.UNSUBSCRIBE, fast_wire.NO_TOPIC)


def make_wire(token: bytes = OWNER, limit: int = 1 << 20) -> FastWire:
    return FastWire(WireOptions(token=token.decode(), values={"max-payload": limit}))


def opened(role: Role) -> WireConnection:
    """Return a connection whose first barrier was reached."""
    connection = make_wire().connect(role)
    assert connection.open() == []
    assert connection.take_output() == BARRIER
    assert connection.receive(DONE) == [Opened()]
    return connection


def publishing() -> WireConnection:
    """Return a connection that knows that the topic "news" exists."""
    connection = make_wire().connect(Role.PUBLISHER)
    connection.open("news")
    assert connection.take_output() == BARRIER + fast_wire.unsubscribe(OWNER) + BARRIER
    assert connection.receive(DONE + DONE) == [Opened()]
    return connection


class WireTests(SynchronousTestCase):
    def test_names_sizes_and_tokens(self) -> None:
        wire = make_wire(limit=1000)
        assert not wire.topic_problem("n" * 255)
        assert wire.topic_problem("n" * 256)
        assert wire.topic_problem("")
        assert not wire.payload_problem(Columns.one(bytes(1000)))
        assert "1001" in wire.payload_problem(Columns.one(bytes(1001)))
        for wrong in (b"", b"t" * 256):
            assert "1 to 255" in str(raised(ConfigurationError, make_wire, wrong))

    def test_the_token_is_not_shown(self) -> None:
        wire = make_wire()
        connection = wire.connect(Role.PUBLISHER)
        for shown in (wire, wire.options, connection, vars(connection)["barriers"]):
            assert OWNER.decode() not in repr(shown)


class BrokerTests(SynchronousTestCase):
    """With a broker in memory"""

    def writer(self, house: fast_wire.Fast, token: bytes = OWNER, topic: str = "news") -> Pair:
        return Pair(house, "fast", make_wire(token).connect(Role.PUBLISHER), topic, piece=5)

    def reader(self, house: fast_wire.Fast, token: bytes = OWNER) -> Pair:
        return Pair(house, "fast", make_wire(token).connect(Role.SUBSCRIBER), piece=7)

    def test_topics_are_created_by_the_first_message(self) -> None:
        house = fast_wire.Fast(self)
        writer = self.writer(house)
        payloads = [b"one", b"", b"x" * 70_000]
        writer.connection.publish("news", Columns.of(payloads))
        writer.connection.publish("sport", Columns.one(b"goal"))
        writer.connection.publish("news", Columns.one(b"last"))
        writer.connection.confirm()
        assert writer.take() == [Opened(), Confirmed(5, Level.HANDLED)]
        sent = writer.take_sent()
        assert fast_wire.create(OWNER) in sent
        assert fast_wire.create(OWNER, "sport") in sent
        order = [
            fast_wire.publish(OWNER, *payloads),
            fast_wire.publish(OWNER, b"goal", topic=topic_id("sport")),
            fast_wire.publish(OWNER, b"last"),
        ]
        places = [sent.index(one) for one in order]
        assert places == sorted(places)

    def test_topics_are_created_by_a_subscription(self) -> None:
        house = fast_wire.Fast(self)
        reader = self.reader(house)
        reader.connection.subscribe(NEWS)
        reader.connection.subscribe(SPORT)
        assert reader.take() == [Opened(), Subscribed(NEWS), Subscribed(SPORT)]
        writer = self.writer(house)
        writer.connection.publish("news", Columns.of([b"x"] * 10))
        writer.connection.publish("sport", Columns.one(b""))
        writer.settle()
        assert flat(reader.take()) == [("news", None, b"x")] * 10 + [("sport", None, b"")]
        assert reader.connection.unsubscribe(NEWS)
        assert reader.take() == [Unsubscribed(NEWS)]
        writer.connection.publish("news", Columns.one(b"x"))
        writer.settle()
        assert reader.take() == []

    def test_a_topic_that_exists_keeps_its_flags(self) -> None:
        house = fast_wire.Fast(self)
        house.owner()
        writer = self.writer(house, fast_wire.grant("publish"))
        writer.connection.publish("news", Columns.one(b"x"))
        writer.connection.confirm()
        assert writer.take() == [Opened(), Confirmed(1, Level.HANDLED)]
        assert b"\x01" + bytes([len(OWNER)]) not in writer.take_sent()

    def test_refusals(self) -> None:
        house = fast_wire.Fast(self)
        house.owner()
        other = fast_wire.grant(key="k2")
        writer = self.writer(house, other)
        writer.connection.publish("news", Columns.of([b"x", b"y"]))
        writer.connection.publish("sport", Columns.one(b"x"))
        writer.connection.confirm()
        assert writer.take() == [Opened(), Confirmed(3, Level.HANDLED, 2, "WRONG_QUEUE_KEY")]
        reader = self.reader(house, other)
        reader.connection.subscribe(NEWS)
        reader.connection.ping()
        assert reader.take() == [Opened(), NotSubscribed(NEWS, "WRONG_QUEUE_KEY"), Alive()]

    def test_a_topic_that_cannot_be_created(self) -> None:
        house = fast_wire.Fast(self, require_create=True)
        token = fast_wire.grant("publish", "subscribe")
        writer = self.writer(house, token)
        for _ in range(2):
            writer.connection.publish("news", Columns.of([b"x", b"y"]))
            writer.connection.confirm()
            (event,) = others(writer.take())[-1:]
            assert isinstance(event, Confirmed)
            assert (event.published, event.refused) == (2, 2)
            assert "cannot be created: MISSING_PERMISSION" in event.reason
        house.owner()
        writer.connection.publish("news", Columns.one(b"x"))
        writer.connection.confirm()
        assert writer.take() == [Confirmed(1, Level.HANDLED)]
        reader = self.reader(house, token)
        reader.connection.subscribe(SPORT)
        assert reader.take() == [Opened(), NotSubscribed(SPORT, "MISSING_PERMISSION")]

    def test_a_refusal_that_may_pass(self) -> None:
        house = fast_wire.Fast(self)
        reader = self.reader(house, fast_wire.OWNER)
        assert reader.take() == [Opened()]
        house.broker.memory.limit = 1
        reader.connection.subscribe(NEWS)
        assert reader.take() == [NotSubscribed(NEWS, "RATE_LIMITED", passing=True)]
        house.broker.memory.limit = 0
        reader.connection.subscribe(NEWS)
        assert reader.take() == [Subscribed(NEWS)]

    def test_a_bad_token(self) -> None:
        for role in Role:
            pair = Pair(fast_wire.Fast(self), "fast", make_wire(b"a.b.c").connect(role), "news")
            assert pair.take() == [Rejected("BAD_TOKEN", permanent=True)]
            assert pair.connection.ended

    def test_a_connection_over_quota(self) -> None:
        house = fast_wire.Fast(self, max_connections=1)
        self.reader(house)
        assert self.reader(house).take() == [Rejected("RATE_LIMITED", permanent=False)]

    def test_a_message_over_the_limit_of_the_listener(self) -> None:
        writer = self.writer(fast_wire.Fast(self, max_payload=100))
        writer.connection.publish("news", Columns.one(bytes(101)))
        writer.connection.confirm()
        assert writer.take() == [
            Opened(),
            Confirmed(1, Level.HANDLED, 1, "TOO_LARGE"),
            Rejected("TOO_LARGE", permanent=False),
        ]

    def test_a_listener_that_sends_no_errors(self) -> None:
        reader = self.reader(fast_wire.Fast(self, errors=False))
        assert reader.take() == []
        assert reader.connection.delay == 10
        (event,) = reader.connection.wake()
        assert isinstance(event, Rejected)
        assert "errors=off" in event.reason
        assert reader.connection.ended

    def test_a_rotation(self) -> None:
        """A subscriber stays; a new subscription needs the new key."""
        house = fast_wire.Fast(self)
        owner = house.owner()
        reader = self.reader(house)
        reader.connection.subscribe(NEWS)
        reader.settle()
        owner.send(fast_wire.rotate(OWNER, b"k2"))
        owner.send(fast_wire.publish(fast_wire.NEW_OWNER, b"x"))
        events = reader.take()
        assert others(events) == [Opened(), Subscribed(NEWS)]
        assert flat(events) == [("news", None, b"x")]
        reader.connection.subscribe(NEWS)
        assert reader.take() == [NotSubscribed(NEWS, "WRONG_QUEUE_KEY")]


class PublisherTests(SynchronousTestCase):
    def test_messages_of_a_known_topic_are_sent_at_once(self) -> None:
        connection = publishing()
        connection.publish("news", Columns.of([b"a", b"b"]))
        connection.confirm()
        assert connection.take_output() == fast_wire.publish(OWNER, b"a", b"b") + BARRIER
        assert connection.receive(DONE) == [Confirmed(2, Level.HANDLED)]

    def test_messages_wait_for_their_topic(self) -> None:
        connection = publishing()
        connection.publish("sport", Columns.one(b"12345"))
        connection.publish("news", Columns.one(b"678"))
        connection.confirm()
        connection.ping()
        number = topic_id("sport")
        assert connection.take_output() == fast_wire.unsubscribe(OWNER, number) + BARRIER * 2
        missing = fast_wire.error(fast_wire.UNSUBSCRIBE, fast_wire.NO_TOPIC, number)
        assert connection.receive(missing + DONE * 2) == [Alive()]
        assert connection.take_output() == fast_wire.create(OWNER, "sport") + BARRIER
        assert connection.receive(DONE) == []
        expected = fast_wire.publish(OWNER, b"12345", topic=number)
        expected += fast_wire.publish(OWNER, b"678") + BARRIER
        assert connection.take_output() == expected
        assert connection.receive(DONE) == [Confirmed(2, Level.HANDLED)]

    def test_errors_count_for_the_messages_before_the_barrier(self) -> None:
        connection = publishing()
        connection.publish("news", Columns.of([b"a", b"b"]))
        connection.confirm()
        connection.publish("news", Columns.one(b"c"))
        connection.ping()
        connection.confirm()
        refused = fast_wire.error(fast_wire.PUBLISH, fast_wire.RATE_LIMITED)
        unknown = fast_wire.error(fast_wire.PUBLISH, 99)
        events = connection.receive(refused * 2 + DONE + unknown + DONE * 2)
        assert events == [
            Confirmed(2, Level.HANDLED, 2, "RATE_LIMITED"),
            Alive(),
            Confirmed(1, Level.HANDLED, 1, "code 99"),
        ]

    def test_messages_that_were_not_sent_count_for_their_own_confirmation(self) -> None:
        connection = publishing()
        connection.publish("news", Columns.one(b"a"))
        connection.confirm()
        connection.publish("sport", Columns.of([b"b", b"c"]))
        connection.confirm()
        number = topic_id("sport")
        missing = fast_wire.error(fast_wire.UNSUBSCRIBE, fast_wire.NO_TOPIC, number)
        exists = fast_wire.error(fast_wire.CREATE, fast_wire.COLLISION, number)
        assert connection.receive(DONE + missing + DONE) == [Confirmed(1, Level.HANDLED)]
        events = connection.receive(exists + DONE + DONE)
        reason = "the topic cannot be created: ID_COLLISION"
        assert events == [Confirmed(2, Level.HANDLED, 2, reason)]

    def test_a_topic_that_has_ended_is_created_again(self) -> None:
        connection = publishing()
        connection.publish("news", Columns.one(b"a"))
        connection.take_output()
        connection.receive(fast_wire.error(fast_wire.PUBLISH, fast_wire.NO_TOPIC))
        connection.publish("news", Columns.one(b"b"))
        assert connection.take_output() == fast_wire.unsubscribe(OWNER) + BARRIER
        connection.receive(MISSING + DONE)
        assert connection.take_output() == fast_wire.create(OWNER) + BARRIER

    def test_another_client_creates_the_topic_meanwhile(self) -> None:
        connection = make_wire().connect(Role.PUBLISHER)
        connection.open("news")
        connection.publish("news", Columns.one(b"a"))
        connection.receive(DONE + MISSING + DONE)
        connection.take_output()
        connection.receive(fast_wire.error(fast_wire.CREATE, fast_wire.EXISTS) + DONE)
        assert connection.take_output() == fast_wire.publish(OWNER, b"a")

    def test_replies_that_are_malformed(self) -> None:
        for data in (
            b"HTTP/1.1 400",
            fast_wire.message(b"x"),
            fast_wire.publish(OWNER, b"x"),
            DONE,
            b"\x04\0\0\0\0\xff\xff\xff\xff",
        ):
            (event,) = opened(Role.PUBLISHER).receive(data)
            assert isinstance(event, Malformed), data


class SubscriberTests(SynchronousTestCase):
    def subscribed(self, *interests: Interest) -> WireConnection:
        connection = opened(Role.SUBSCRIBER)
        for interest in interests:
            connection.subscribe(interest)
        connection.take_output()
        assert connection.receive(DONE * len(interests)) == [*map(Subscribed, interests)]
        return connection

    def test_the_end_of_a_subscription(self) -> None:
        connection = self.subscribed(NEWS)
        ended = fast_wire.error(fast_wire.SUBSCRIBE, fast_wire.ENDED)
        (event,) = connection.receive(ended)
        assert isinstance(event, SubscriptionEnded)
        assert event.interest == NEWS
        assert event.reason.startswith("SUBSCRIPTION_ENDED: the token has expired or is denied")

    def test_subscriptions_that_cannot_be_expressed(self) -> None:
        connection = self.subscribed(Interest(fast_wire.ONE))
        connection.subscribe(Interest(fast_wire.TWIN))
        assert connection.wake() == [NotSubscribed(Interest(fast_wire.TWIN), "ID_COLLISION")]
        connection.subscribe(Interest("n", prefix=True))
        (event,) = connection.wake()
        assert isinstance(event, NotSubscribed)
        assert connection.take_output() == b""

    def test_messages_of_one_read_are_one_event(self) -> None:
        connection = self.subscribed(NEWS)
        (event,) = connection.receive(fast_wire.message(*[b"x" * 64] * 1000))
        assert len(flat([event])) == 1000

    def test_a_message_of_a_topic_without_a_subscription(self) -> None:
        (event,) = self.subscribed(SPORT).receive(fast_wire.message(b"x"))
        assert isinstance(event, Malformed)

    def test_a_new_key_is_ignored(self) -> None:
        connection = self.subscribed(NEWS)
        data = fast_wire.key_update(b"k2") + fast_wire.message(b"x")
        assert flat(receive_cut(connection, data)) == [("news", None, b"x")]


PAYLOADS = st.one_of(
    st.sampled_from([b"", DONE, fast_wire.message(b"hi"), b"same"]), st.binary(max_size=20)
)
PACKETS = st.lists(
    st.one_of(
        st.sampled_from([DONE, fast_wire.key_update(b"key")]),
        st.tuples(st.sampled_from(["news", "sport"]), PAYLOADS),
    ),
    max_size=30,
)
SIZES = st.lists(st.integers(1, 60), min_size=1)


class PropertyTests(SynchronousTestCase):
    @given(PACKETS, SIZES)
    def test_messages_arrive_however_the_stream_is_cut(
        self, packets: list[bytes | tuple[str, bytes]], sizes: list[int]
    ) -> None:
        connection = opened(Role.SUBSCRIBER)
        data = DONE * 2
        for interest in (NEWS, SPORT):
            connection.subscribe(interest)
        expected: list[tuple[str, bytes | None, bytes]] = []
        for packet in packets:
            if isinstance(packet, tuple):
                topic, payload = packet
                data += fast_wire.message(payload, topic=topic_id(topic))
                expected.append((topic, None, payload))
                continue
            data += packet
            if packet == DONE:
                connection.ping()
        events = receive_cut(connection, data, sizes)
        assert flat(events) == expected
        pings = packets.count(DONE)
        assert others(events) == [Subscribed(NEWS), Subscribed(SPORT), *[Alive()] * pings]

    @given(st.binary(max_size=200), st.sampled_from([DONE, b"\x04", b"\x7f"]), SIZES)
    def test_any_bytes_are_survived(self, data: bytes, first: bytes, sizes: list[int]) -> None:
        for role in Role:
            whole, pieces = opened(role), opened(role)
            for connection in (whole, pieces):
                connection.ping()
            events = whole.receive(first + data), receive_cut(pieces, first + data, sizes)
            assert others(events[0]) == others(events[1])
