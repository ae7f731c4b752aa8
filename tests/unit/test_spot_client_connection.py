"""spot's client connections, with a broker in memory and with bytes made by hand."""

from __future__ import annotations

from uuid import uuid5

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.kernel import Columns
from pubsub.protocols.spot import zmtp
from pubsub.protocols.spot.client import SpotWire
from pubsub.protocols.spot.client_connection import SpotSession
from pubsub.protocols.spot.client_roles import UNLISTED
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
    Unsubscribed,
)
from pubsub.wire.client_wire import Role, UserLogin, WireConnection, WireOptions
from tests.unit import brokers, rheos_wire
from tests.unit.raising import raised
from tests.unit.streams import House
from tests.unit.wire_pairs import Pair, flat, others, publish_two_groups, receive_cut

NEWS, GAMES = Interest("news"), Interest("game:", prefix=True)
READY = brokers.ready(b"ROUTER")
LIMITED = "rate-limited"


def make_wire(client_id: bytes = b"", limit: int = 1 << 20) -> SpotWire:
    return SpotWire(WireOptions(client_id, values={"max-message": limit}))


def opened(role: Role, greeting: bytes = READY) -> WireConnection:
    """Return a connection whose handshake is done."""
    connection = make_wire().connect(role)
    connection.open()
    connection.take_output()
    assert connection.receive(greeting) == [Opened()]
    return connection


def ping(number: int) -> bytes:
    return b"\x04\x0f\x04PING\0\0" + number.to_bytes(8, "big")


def pong(number: int) -> bytes:
    return b"\x04\x0d\x04PONG" + number.to_bytes(8, "big")


def listed(*topics: bytes) -> bytes:
    return brokers.message(b"", b"\x05", len(topics).to_bytes(4, "little"), *topics)


def refused(count: int, reason: bytes, topic: bytes = b"") -> bytes:
    body = b"\7REFUSED" + count.to_bytes(4, "big") + bytes([len(reason)]) + reason + topic
    return bytes([4, len(body)]) + body


def delivery(topic: bytes, payload: bytes) -> bytes:
    head = b"\x01\0\x01\x01\x01\x01" + bytes([len(topic)]) + topic
    if len(payload) < 256:
        return head + bytes([0, len(payload)]) + payload
    return head + b"\x02" + len(payload).to_bytes(8, "big") + payload


class WireTests(SynchronousTestCase):
    def test_names_and_sizes(self) -> None:
        wire = make_wire(limit=1000)
        assert not wire.topic_problem("n" * 255)
        assert wire.topic_problem("n" * 256)
        assert wire.topic_problem("")
        assert not wire.payload_problem(Columns.one(bytes(1000)))
        assert "1001" in wire.payload_problem(Columns.one(bytes(1001)))
        raised(ConfigurationError, make_wire, b"x" * 239)

    def test_subscribers_of_one_name_have_different_identities(self) -> None:
        sent = set()
        for _ in range(2):
            connection = make_wire(b"bob").connect(Role.SUBSCRIBER)
            connection.open()
            output = connection.take_output()
            assert b"bob." in output
            sent.add(output)
        assert len(sent) == 2


class BrokerTests(SynchronousTestCase):
    """With a broker in memory"""

    def test_messages_of_topics_and_prefixes(self) -> None:
        house = House({"spot": {}})
        reader = Pair(house, "spot", make_wire().connect(Role.SUBSCRIBER), piece=7)
        reader.connection.subscribe(NEWS)
        reader.connection.subscribe(GAMES)
        assert reader.take() == [Opened(), Subscribed(NEWS), Subscribed(GAMES)]
        writer = Pair(house, "spot", make_wire().connect(Role.PUBLISHER))
        payloads = [b"one", b"", b"x" * 255, b"x" * 256, b"x" * 70_000]
        writer.connection.publish("news", Columns.of(payloads))
        writer.connection.publish("game:p1", Columns.one(b"Hello"))
        writer.connection.publish("other", Columns.one(b"no"))
        writer.connection.confirm()
        assert writer.take() == [Opened(), Confirmed(7, Level.HANDLED)]
        expected = [("news", None, one) for one in payloads]
        assert flat(reader.take()) == [*expected, ("game:p1", None, b"Hello")]
        assert reader.connection.unsubscribe(GAMES)
        assert reader.take() == [Unsubscribed(GAMES)]
        writer.connection.publish("game:p1", Columns.one(b"more"))
        writer.settle()
        assert reader.take() == []

    def test_the_bytes_of_a_publisher(self) -> None:
        writer = Pair(House({"spot": {}}), "spot", make_wire(b"ada").connect(Role.PUBLISHER))
        assert writer.take_sent() == brokers.ready(b"DEALER", b"ada", refusals=True)
        publish = brokers.publish
        for number, request in ((1, ping(1)), (2, ping(2))):
            writer.connection.publish("news", Columns.of([b"one", b"two"]))
            writer.connection.confirm()
            expected = publish(b"news", b"one") + publish(b"news", b"two") + request
            assert writer.take_sent() == expected, number

    def test_the_sender_is_the_identity_or_the_origin(self) -> None:
        house = House({"spot": {}, "rheos": {}})
        house.broker.topics.create("news")
        reader = house.connect("rheos")
        reader.send(rheos_wire.subscribe(rheos_wire.ALICE))
        reader.take()
        writer = Pair(house, "spot", make_wire(b"ada").connect(Role.PUBLISHER))
        writer.connection.publish("news", Columns.one(b"1"))
        writer.connection.publish("news", Columns.of([b"2", b"3"]), sender=b"bob")
        writer.connection.confirm()
        assert writer.take()[-1] == Confirmed(3, Level.HANDLED)
        ada, bob = (uuid5(rheos_wire.SENDERS, name).bytes for name in ("ada", "bob"))
        expected = rheos_wire.response(ada, b"1") + rheos_wire.response(bob, b"2", b"3")
        assert reader.take() == expected

    def test_refused_messages(self) -> None:
        house = House({"spot": {"allow-publish": "news"}})
        writer = Pair(house, "spot", make_wire().connect(Role.PUBLISHER))
        assert publish_two_groups(writer, "news", "other") == [
            Opened(),
            Confirmed(3, Level.HANDLED, 2, "not-authorized"),
            Confirmed(1, Level.HANDLED),
        ]

    def test_a_rate_limit_on_a_topic_that_exists(self) -> None:
        house = House({"spot": {"rate-messages": 3}})
        writer = Pair(house, "spot", make_wire().connect(Role.PUBLISHER))
        for expected in (Confirmed(2, Level.HANDLED), Confirmed(2, Level.HANDLED, 1, LIMITED)):
            writer.connection.publish("news", Columns.of([b"1", b"2"]))
            writer.connection.confirm()
            assert writer.take()[-1] == expected

    def test_refused_subscriptions(self) -> None:
        rules = {"allow-subscribe": "news,game:p1", "max-subscriptions": 2}
        house = House({"spot": rules})
        for name in ("game:p1", "game:p2"):
            house.broker.topics.create(name)
        reader = Pair(house, "spot", make_wire().connect(Role.SUBSCRIBER))
        more = Interest("more", prefix=True)
        # Of the topics with the prefix, one may not be read.
        for interest in (NEWS, Interest("secret"), GAMES, more):
            reader.connection.subscribe(interest)
        assert reader.take() == [
            Opened(),
            Subscribed(NEWS),
            NotSubscribed(Interest("secret"), "not-authorized"),
            Subscribed(GAMES),
            NotSubscribed(more, "limit-reached", passing=True),
        ]

    def test_a_subscriber_resumes(self) -> None:
        house = House({"spot": {}})
        wire = make_wire()
        first = Pair(house, "spot", wire.connect(Role.SUBSCRIBER))
        first.connection.subscribe(NEWS)
        first.settle()
        first.far.stream.lose()
        writer = Pair(house, "spot", make_wire().connect(Role.PUBLISHER))
        writer.connection.publish("news", Columns.of([b"missed", b"too"]))
        writer.settle()
        second = Pair(house, "spot", wire.connect(Role.SUBSCRIBER, first.connection.session))
        second.connection.subscribe(NEWS)
        events = second.take()
        assert others(events) == [Opened(resumed=True), Subscribed(NEWS)]
        assert flat(events) == [("news", None, b"missed"), ("news", None, b"too")]

    def test_another_run_of_the_broker_is_not_resumed(self) -> None:
        wire = make_wire()
        first = Pair(House({"spot": {}}), "spot", wire.connect(Role.SUBSCRIBER))
        other = House({"spot": {}}, draw=lambda bits: 4711)
        second = Pair(other, "spot", wire.connect(Role.SUBSCRIBER, first.connection.session))
        assert second.take() == [Opened(resumed=False)]

    def test_a_goodbye_leaves_no_subscriptions(self) -> None:
        house = House({"spot": {}})
        wire = make_wire()
        first = Pair(house, "spot", wire.connect(Role.SUBSCRIBER))
        first.connection.subscribe(NEWS)
        first.settle()
        first.connection.close()
        first.settle()
        assert first.connection.session is None
        first.far.stream.lose(clean=True)
        writer = Pair(house, "spot", make_wire().connect(Role.PUBLISHER))
        writer.connection.publish("news", Columns.one(b"missed"))
        writer.settle()
        second = Pair(house, "spot", wire.connect(Role.SUBSCRIBER))
        assert second.take() == [Opened()]


class PublisherTests(SynchronousTestCase):
    def test_confirmations_are_in_order(self) -> None:
        connection = opened(Role.PUBLISHER)
        connection.publish("news", Columns.one(b"a"))
        connection.confirm()
        connection.ping()
        connection.confirm()
        assert connection.receive(listed(b"news") + pong(1) + pong(2)) == [
            Confirmed(1, Level.HANDLED), Alive(), Confirmed(0, Level.HANDLED),
        ]  # fmt: skip

    def test_a_peer_that_knows_no_ping(self) -> None:
        connection = opened(Role.PUBLISHER, READY[:11] + b"\0" + READY[12:])
        connection.ping()
        assert connection.take_output() == brokers.QUERY
        assert connection.receive(listed()) == [Alive()]

    def test_a_ping_is_answered(self) -> None:
        connection = opened(Role.PUBLISHER)
        assert connection.receive(b"\x04\x09\x04PING\0\0me") == []
        assert connection.take_output() == b"\x04\x07\x04PONGme"

    def test_peers_that_are_not_this_broker(self) -> None:
        error = b"\x04\x0c\x05ERROR\x05wrong"
        for greeting in (
            b"HTTP/1.1 400 ".ljust(64),
            brokers.ready(b"PUB"),
            brokers.GREETING + b"\0\x01x",
            brokers.GREETING + error,
        ):
            connection = make_wire().connect(Role.PUBLISHER)
            connection.open()
            (event,) = connection.receive(greeting)
            if greeting.endswith(error):
                assert isinstance(event, Rejected)
            else:
                assert isinstance(event, Malformed)
            assert connection.ended

    def test_a_port_that_demands_or_takes_no_password(self) -> None:
        for login, mechanism, expected in (
            (None, b"PLAIN", Rejected("it demands a password (PLAIN) or a key (CURVE)", True)),
            (None, b"CURVE", Rejected("it demands a password (PLAIN) or a key (CURVE)", True)),
            (UserLogin("ada", "sesame"), b"NULL", Malformed("the port takes no passwords (PLAIN)")),
        ):
            wire = SpotWire(WireOptions(b"", values={"max-message": 1000}, login=login))
            for role in (Role.PUBLISHER, Role.SUBSCRIBER):
                connection = wire.connect(role)
                connection.open()
                assert connection.receive(zmtp.greeting(mechanism, True)) == [expected]
                assert connection.ended

    def test_replies_that_are_malformed(self) -> None:
        for data in (
            b"\xff" * 20,
            brokers.message(b"", b"\x7e"),
            brokers.subscribe(b"news"),
            delivery(b"news", b"hi"),
            b"\x04\x06\x04PING\0",
        ):
            connection = opened(Role.PUBLISHER)
            (event,) = connection.receive(data)
            assert isinstance(event, Malformed), data

    def test_a_long_list_in_pieces(self) -> None:
        connection = opened(Role.PUBLISHER)
        connection.ping()
        connection.publish("n500", Columns.one(b"x"))
        connection.confirm()
        data = pong(1) + listed(*[b"n%d" % number for number in range(50_000)])
        events = receive_cut(connection, data, (4096,))
        assert events == [Alive(), Confirmed(1, Level.HANDLED)]


class ReportTests(SynchronousTestCase):
    """A broker that reports refusals, by hand"""

    def setUp(self) -> None:
        self.connection = opened(Role.PUBLISHER, brokers.ready(b"ROUTER", refusals=True))

    def confirm(self, number: int, *reports: bytes) -> object:
        """Return the event of a message that is confirmed after ``reports``."""
        self.connection.publish("news", Columns.of([b"1", b"2"]))
        self.connection.confirm()
        assert self.connection.take_output().endswith(ping(number))
        (event,) = self.connection.receive(b"".join(reports) + pong(number))
        return event

    def test_they_count_for_the_next_confirmation(self) -> None:
        limited, denied = refused(1, b"rate-limited", b"news"), refused(1, b"not-authorized")
        assert self.confirm(1, limited, denied) == Confirmed(2, Level.HANDLED, 2, LIMITED)
        assert self.confirm(2) == Confirmed(2, Level.HANDLED)

    def test_more_than_there_were_messages(self) -> None:
        reports = [refused(2**32 - 1, b"memory")] * 2000
        assert self.confirm(1, *reports) == Confirmed(2, Level.HANDLED, 2, "memory")
        assert len(self.connection._refusals) == 0  # type: ignore[attr-defined]

    def test_malformed_ones(self) -> None:
        for data in (b"", b"\0\0\0\1", b"\0\0\0\1\5four"):
            connection = opened(Role.PUBLISHER, brokers.ready(b"ROUTER", refusals=True))
            body = b"\7REFUSED" + data
            (event,) = connection.receive(bytes([4, len(body)]) + body)
            assert isinstance(event, Malformed)


class UnlistedTests(SynchronousTestCase):
    """A broker that does not report refusals"""

    def test_topics_that_are_not_listed_were_refused(self) -> None:
        connection = opened(Role.PUBLISHER)
        connection.publish("news", Columns.one(b"1"))
        connection.publish("other", Columns.of([b"2", b"3"]))
        connection.confirm()
        assert connection.take_output().endswith(brokers.QUERY)
        event = Confirmed(3, Level.HANDLED, 2, UNLISTED)
        assert connection.receive(listed(b"news")) == [event]


class SubscriberTests(SynchronousTestCase):
    def test_names_that_would_be_patterns(self) -> None:
        for interest in (Interest("news*"), Interest("n" * 255, prefix=True)):
            connection = opened(Role.SUBSCRIBER)
            connection.subscribe(interest)
            (event,) = connection.wake()
            assert isinstance(event, NotSubscribed)
            assert connection.take_output() == b""

    def test_a_prefix_is_a_pattern(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        connection.subscribe(GAMES)
        assert connection.take_output() == brokers.subscribe(b"game:*") + ping(1)
        assert connection.receive(pong(1)) == [Subscribed(GAMES)]

    def test_messages_of_one_read_are_one_event(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        (event,) = connection.receive(delivery(b"news", b"x" * 64) * 1000)
        assert len(flat([event])) == 1000

    def test_other_forms_of_messages(self) -> None:
        """Other programs send an origin, no delimiter, or long frames."""
        for data, sender in (
            (brokers.message(b"\x01", b"ada", b"news", b"hi"), b"ada"),
            (brokers.message(b"\x01", b"news", b"hi"), None),
            (b"\x03" + bytes(8) + b"\x01\x01\x01\x01\x04news\0\x02hi", None),
        ):
            connection = opened(Role.SUBSCRIBER)
            assert flat(connection.receive(data)) == [("news", sender, b"hi")]

    def test_a_session_needs_a_broker_that_names_its_run(self) -> None:
        assert opened(Role.SUBSCRIBER).session is None
        node = b"\x06X-Node\0\0\0\x0f" + b"1" * 15
        greeting = READY[:65] + bytes((READY[65] + len(node),)) + READY[66:] + node
        assert opened(Role.SUBSCRIBER, greeting).session == SpotSession(b"1" * 15)

    def test_more_topics_than_are_remembered(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        data = b"".join(delivery(b"game:%d" % number, b"x") for number in range(5000))
        for _ in range(2):
            assert len(flat(connection.receive(data))) == 5000

    def test_a_topic_that_is_not_utf_8(self) -> None:
        (event,) = opened(Role.SUBSCRIBER).receive(delivery(b"\xff", b"x"))
        assert isinstance(event, Malformed)


PAYLOADS = st.one_of(
    st.sampled_from([b"", pong(1), delivery(b"news", b"hi"), b"x" * 300]), st.binary(max_size=20)
)
UNITS = st.lists(
    st.one_of(st.just(None), st.tuples(st.sampled_from(["news", "sport"]), PAYLOADS)), max_size=30
)
SIZES = st.lists(st.integers(1, 60), min_size=1)


class PropertyTests(SynchronousTestCase):
    @given(UNITS, SIZES)
    def test_messages_arrive_however_the_stream_is_cut(
        self, units: list[tuple[str, bytes] | None], sizes: list[int]
    ) -> None:
        connection = make_wire().connect(Role.SUBSCRIBER)
        connection.open()
        data = READY
        for unit in units:
            data += b"\x04\x07\x04PING\0\0" if unit is None else delivery(unit[0].encode(), unit[1])
        events = receive_cut(connection, data, sizes)
        assert others(events) == [Opened()]
        assert flat(events) == [(unit[0], None, unit[1]) for unit in units if unit]

    @given(st.binary(max_size=200), st.booleans(), SIZES)
    def test_any_bytes_are_survived(self, data: bytes, greet: bool, sizes: list[int]) -> None:
        whole_data = (READY if greet else b"\xff") + data
        for role in Role:
            whole, pieces = (make_wire().connect(role) for _ in range(2))
            events = whole.receive(whole_data), receive_cut(pieces, whole_data, sizes)
            assert others(events[0]) == others(events[1])
