"""rheos's client connections, with a broker in memory and with bytes made by hand."""

from __future__ import annotations

from uuid import UUID, uuid5

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.kernel import Columns
from pubsub.protocols.rheos.client import RheosWire
from pubsub.protocols.rheos.client_connection import REFUSED
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
    WireEvent,
)
from pubsub.wire.client_wire import Role, WireConnection, WireOptions
from pubsub.wire.confirm_groups import NOT_KNOWN
from tests.unit import rheos_wire
from tests.unit.raising import raised
from tests.unit.rheos_wire import ALICE, BOB, FAILED, Rheos, ack, body, response
from tests.unit.wire_pairs import Pair, flat, others, publish_two_groups, receive_cut

NEWS, SPORT = Interest("news"), Interest("sport")
ALICE_TEXT = str(UUID(bytes=ALICE)).encode()
BOB_TEXT = str(UUID(bytes=BOB)).encode()
ACK = ack(bytes(16))


def make_wire(client_id: bytes = ALICE_TEXT, **given: str) -> RheosWire:
    values = {"layout": "spec", "checksum": "none", "envelope": "none", **given}
    return RheosWire(WireOptions(client_id, values=values))


def opened(role: Role, **given: str) -> WireConnection:
    """Return a connection that has sent nothing."""
    connection = make_wire(ALICE_TEXT, **given).connect(role)
    assert connection.open() == [Opened()]
    return connection


def subscribed(*interests: Interest, **given: str) -> WireConnection:
    """Return a connection with subscriptions that are acknowledged."""
    connection = opened(Role.SUBSCRIBER, **given)
    for interest in interests:
        connection.subscribe(interest)
        connection.take_output()
        assert connection.receive(ACK + ACK) == [Subscribed(interest)]
    return connection


def enveloped(sender: bytes, topic: bytes, payload: bytes) -> bytes:
    return response(sender, body(topic, payload))


class WireTests(SynchronousTestCase):
    def test_names_and_sizes(self) -> None:
        wire = make_wire()
        assert not wire.topic_problem("n" * 255)
        assert wire.topic_problem("n" * 256)
        assert wire.topic_problem("")
        assert wire.topic_problem("\ud800")
        assert not wire.payload_problem(Columns.one(bytes(65_535)))
        assert "65536" in wire.payload_problem(Columns.one(bytes(65_536)))
        larger = make_wire(layout="original")
        assert not larger.payload_problem(Columns.one(bytes(1_048_315)))
        assert larger.payload_problem(Columns.one(bytes(1_048_316)))

    def test_client_ids(self) -> None:
        """A UUID is the id itself; any other name has the id of a sender of this name."""
        expected = {ALICE_TEXT: ALICE, b"bob": uuid5(rheos_wire.SENDERS, "bob").bytes}
        for name, client_id in expected.items():
            connection = make_wire(name).connect(Role.PUBLISHER)
            connection.open("news")
            assert connection.take_output() == rheos_wire.create(client_id)
        raised(ConfigurationError, make_wire, str(UUID(int=0)).encode())

    def test_without_a_name_two_clients_differ(self) -> None:
        sent = set()
        for _ in range(2):
            connection = make_wire(b"").connect(Role.PUBLISHER)
            connection.open("news")
            sent.add(connection.take_output())
        assert len(sent) == 2


class BrokerTests(SynchronousTestCase):
    """With a broker in memory"""

    def test_messages_arrive_with_their_sender(self) -> None:
        house = Rheos()
        reader = Pair(house, "rheos", make_wire().connect(Role.SUBSCRIBER), "news", piece=7)
        reader.connection.subscribe(NEWS)
        assert reader.take() == [Opened(), Subscribed(NEWS)]
        writer = Pair(house, "rheos", make_wire().connect(Role.PUBLISHER), "news")
        writer.connection.publish("news", Columns.of([b"one", b"", b"three" * 999]))
        writer.connection.confirm()
        assert writer.take() == [Opened(), Confirmed(3, Level.STORED)]
        expected = [("news", ALICE_TEXT, one) for one in (b"one", b"", b"three" * 999)]
        assert flat(reader.take()) == expected

    def test_the_bytes_of_a_publisher(self) -> None:
        writer = Pair(Rheos(), "rheos", make_wire().connect(Role.PUBLISHER), "news")
        writer.connection.publish("news", Columns.of([b"one", b"two"]))
        writer.connection.publish("sport", Columns.one(b"goal"))
        create = rheos_wire.create
        assert writer.take_sent() == (
            create(ALICE)
            + rheos_wire.publish(ALICE, b"one", b"two")
            + create(ALICE, b"sport")
            + rheos_wire.publish(ALICE, b"goal", name=b"sport")
        )

    def test_nothing_is_refused_in_ordinary_use(self) -> None:
        house = Rheos()
        for role in (Role.PUBLISHER, Role.SUBSCRIBER):
            pair = Pair(house, "rheos", make_wire().connect(role), "news")
            if role is Role.SUBSCRIBER:
                pair.connection.subscribe(NEWS)
            pair.connection.ping()
            assert Alive() in pair.take()
        assert house.broker.counters.refused == 0

    def test_topics_in_envelopes_in_both_layouts(self) -> None:
        for layout in ("spec", "original"):
            for checksum in ("none", "crc32"):
                sealed = "crc32" if checksum == "crc32" else "off"
                house = Rheos(layout=layout, checksum=sealed, envelope="topic")
                wire = make_wire(layout=layout, checksum=checksum, envelope="topic")
                reader = Pair(house, "rheos", wire.connect(Role.SUBSCRIBER), "news", piece=31)
                reader.connection.subscribe(NEWS)
                reader.connection.subscribe(SPORT)
                assert reader.take() == [Opened(), Subscribed(NEWS), Subscribed(SPORT)]
                writer = Pair(house, "rheos", wire.connect(Role.PUBLISHER))
                for number in range(10):
                    writer.connection.publish("news", Columns.one(b"n%d" % number))
                    writer.connection.publish("sport", Columns.of([b"s%d" % number, b""]))
                writer.connection.confirm()
                assert writer.take() == [Opened(), Confirmed(30, Level.STORED)]
                expected = [
                    (topic, ALICE_TEXT, payload)
                    for n in range(10)
                    for topic, payload in (
                        ("news", b"n%d" % n), ("sport", b"s%d" % n), ("sport", b""),
                    )
                ]  # fmt: skip
                assert flat(reader.take()) == expected

    def test_messages_after_unsubscribing_are_ignored(self) -> None:
        house = Rheos(envelope="topic")
        wire = make_wire(envelope="topic")
        reader = Pair(house, "rheos", wire.connect(Role.SUBSCRIBER))
        reader.connection.subscribe(NEWS)
        reader.connection.subscribe(SPORT)
        reader.settle()
        reader.connection.unsubscribe(NEWS)
        writer = Pair(house, "rheos", wire.connect(Role.PUBLISHER))
        for topic in ("news", "sport", "news"):
            writer.connection.publish(topic, Columns.one(b"x"))
        writer.settle()
        assert flat(reader.take()) == [("sport", ALICE_TEXT, b"x")]
        reader.connection.subscribe(NEWS)
        reader.settle()
        writer.connection.publish("news", Columns.one(b"y"))
        writer.settle()
        assert flat(reader.take()) == [("news", ALICE_TEXT, b"y")]

    def test_the_text_of_a_refusal_names_what_has_its_reason(self) -> None:
        """The log has the first of a reason, the tenth, the hundredth."""
        assert REFUSED == "FAILED; pubsub status has the newest refusals and their reasons"

    def test_refusals(self) -> None:
        house = Rheos(allow_publish="news", allow_subscribe="news")
        writer = Pair(house, "rheos", make_wire().connect(Role.PUBLISHER))
        assert publish_two_groups(writer, "news", "sport") == [
            Opened(),
            Confirmed(3, Level.STORED, 2, REFUSED),
            Confirmed(1, Level.STORED),
        ]
        reader = Pair(house, "rheos", make_wire().connect(Role.SUBSCRIBER))
        reader.connection.subscribe(SPORT)
        assert reader.take() == [Opened(), NotSubscribed(SPORT, REFUSED, passing=True)]
        reader.connection.subscribe(NEWS)
        reader.connection.ping()
        assert reader.take() == [Subscribed(NEWS), Alive()]

    def test_a_connection_over_quota(self) -> None:
        house = Rheos(max_connections=1)
        first = Pair(house, "rheos", make_wire().connect(Role.PUBLISHER))
        assert first.take() == [Opened()]
        second = Pair(house, "rheos", make_wire().connect(Role.PUBLISHER))
        assert second.take() == [
            Opened(), Rejected("over a quota of connections", permanent=False),
        ]  # fmt: skip
        assert second.connection.ended


class PublisherTests(SynchronousTestCase):
    def test_each_confirmation_counts_the_messages_before_it(self) -> None:
        connection = opened(Role.PUBLISHER)
        connection.publish("news", Columns.of([b"a", b"b"]))
        connection.confirm()
        connection.publish("news", Columns.one(b"c"))
        connection.ping()
        connection.confirm()
        assert connection.receive(ACK + ACK) == []
        events = connection.receive(FAILED + ACK + FAILED)
        assert events == [
            Confirmed(2, Level.STORED, 1, REFUSED), Alive(), Confirmed(1, Level.STORED),
        ]  # fmt: skip

    def test_messages_that_may_be_published_nevertheless(self) -> None:
        """The broker names their ids (rheos §3.2)."""
        for checksum in (False, True):
            connection = opened(Role.PUBLISHER, checksum="crc32" if checksum else "none")
            sealed = rheos_wire.sealed if checksum else bytes
            ack, failed = sealed(ACK), sealed(FAILED)
            unknown = sealed(b"\xac" + bytes(15) + b"\x07\x01")
            connection.publish("news", Columns.of([b"a", b"b"]))
            connection.confirm()
            assert connection.receive(ack + unknown + ack) == [
                Confirmed(2, Level.STORED, 0, NOT_KNOWN, 1)
            ]
            connection.publish("news", Columns.of([b"a", b"b"]))
            connection.confirm()
            assert connection.receive(failed + unknown) == [
                Confirmed(2, Level.STORED, 1, REFUSED, 1)
            ]

    def test_everything_is_acknowledged_already(self) -> None:
        connection = opened(Role.PUBLISHER)
        connection.publish("news", Columns.one(b"a"))
        connection.receive(FAILED + FAILED)
        connection.confirm()
        assert connection.delay == 0
        assert connection.wake() == [Confirmed(1, Level.STORED, 1, REFUSED)]
        assert connection.delay is None

    def test_many_acknowledgments_at_once(self) -> None:
        connection = opened(Role.PUBLISHER)
        connection.publish("news", Columns.of([b""] * 100_000))
        connection.confirm()
        acks = ACK + b"".join(ACK if n % 3 else FAILED for n in range(100_000))
        events = receive_cut(connection, acks, (65_536,))
        assert events == [Confirmed(100_000, Level.STORED, 33_334, REFUSED)]

    def test_replies_that_are_malformed(self) -> None:
        for data in (b"HTTP/1.1 400", ACK, response(BOB, b"hi"), b"\xac" + bytes(16) + b"\x02"):
            connection = opened(Role.PUBLISHER)
            (event,) = connection.receive(data)
            assert isinstance(event, Malformed)
            assert connection.ended
            assert connection.receive(ACK) == []

    def test_a_wrong_checksum(self) -> None:
        connection = opened(Role.PUBLISHER, checksum="crc32")
        connection.ping()
        sealed = rheos_wire.sealed(ACK)
        (event,) = connection.receive(sealed[:-1] + bytes((sealed[-1] ^ 1,)))
        assert isinstance(event, Malformed)


class SubscriberTests(SynchronousTestCase):
    def test_one_topic_without_envelopes(self) -> None:
        connection = subscribed(NEWS)
        connection.subscribe(SPORT)
        (event,) = connection.wake()
        assert isinstance(event, NotSubscribed)
        assert "envelope" in event.reason
        connection.subscribe(Interest("n", prefix=True))
        (event,) = connection.wake()
        assert isinstance(event, NotSubscribed)
        assert connection.take_output() == b""

    def test_another_topic_after_a_refusal(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        connection.subscribe(NEWS)
        assert connection.receive(ACK + FAILED) == [NotSubscribed(NEWS, REFUSED, passing=True)]
        connection.subscribe(SPORT)
        assert connection.receive(ACK + ACK) == [Subscribed(SPORT)]

    def test_the_same_topic_after_a_refusal(self) -> None:
        """It is created again: its creation was perhaps refused too."""
        connection = opened(Role.SUBSCRIBER)
        connection.subscribe(NEWS)
        requests = connection.take_output()
        assert connection.receive(FAILED + FAILED) == [NotSubscribed(NEWS, REFUSED, passing=True)]
        connection.subscribe(NEWS)
        assert connection.take_output() == requests

    def test_messages_before_the_acknowledgment(self) -> None:
        """An acknowledgment may wait for the disk."""
        connection = opened(Role.SUBSCRIBER)
        connection.subscribe(NEWS)
        events = connection.receive(response(BOB, b"hi") + ACK + ACK)
        assert flat(events) == [("news", BOB_TEXT, b"hi")]
        assert others(events) == [Subscribed(NEWS)]

    def test_messages_of_one_read_are_one_event(self) -> None:
        connection = subscribed(NEWS)
        events = connection.receive(response(BOB, *[b"x"] * 500) + response(ALICE, *[b"y"] * 500))
        assert len(events) == 1
        expected = [("news", BOB_TEXT, b"x")] * 500 + [("news", ALICE_TEXT, b"y")] * 500
        assert flat(events) == expected

    def test_more_senders_than_are_remembered(self) -> None:
        connection = subscribed(NEWS)
        ids = [number.to_bytes(16, "big") for number in range(1, 5000)]
        data = b"".join(response(one, b"x") for one in ids)
        assert len(flat(connection.receive(data))) == len(ids)
        assert len(flat(connection.receive(data))) == len(ids)

    def test_malformed_responses(self) -> None:
        too_long = b"\x15" + (1_048_577).to_bytes(4, "little") + BOB
        for data, envelope in (
            (too_long, "none"),
            (too_long, "topic"),
            (response(BOB, b"\0\0\0\0"), "topic"),
            (response(BOB, b"\4\0news\2\0x"), "topic"),
            (enveloped(BOB, b"\xff", b"x"), "topic"),
        ):
            connection = subscribed(NEWS, envelope=envelope)
            (event,) = connection.receive(data)
            assert isinstance(event, Malformed)


PAYLOADS = st.one_of(
    st.sampled_from([b"", ACK, response(BOB, b"hi"), response(BOB, b"hi")[:30], b"same"]),
    st.binary(max_size=20),
)
PACKETS = st.lists(
    st.one_of(
        st.just(None),
        st.tuples(st.sampled_from([ALICE, BOB]), st.sampled_from(["news", "sport"]), PAYLOADS),
    ),
    max_size=30,
)


class PropertyTests(SynchronousTestCase):
    @given(PACKETS, st.lists(st.integers(1, 60), min_size=1))
    def test_messages_arrive_however_the_stream_is_cut(
        self, packets: list[tuple[bytes, str, bytes] | None], sizes: list[int]
    ) -> None:
        connection = subscribed(NEWS, SPORT, envelope="topic")
        data = b""
        expected: list[tuple[str, bytes | None, bytes]] = []
        for packet in packets:
            if packet is None:
                connection.ping()
                data += FAILED
                continue
            sender, topic, payload = packet
            data += enveloped(sender, topic.encode(), payload)
            expected.append((topic, str(UUID(bytes=sender)).encode(), payload))
        events = receive_cut(connection, data, sizes)
        assert flat(events) == expected
        assert others(events) == [Alive()] * packets.count(None)

    @given(st.binary(max_size=200), st.booleans(), st.lists(st.integers(1, 60), min_size=1))
    def test_any_bytes_are_survived(self, data: bytes, answer: bool, sizes: list[int]) -> None:
        for role in Role:
            for envelope in ("none", "topic"):
                whole, pieces = (opened(role, envelope=envelope) for _ in range(2))
                prefix = FAILED if answer else b"\x15"
                events: list[list[WireEvent]] = []
                for connection in (whole, pieces):
                    connection.ping()
                events.append(whole.receive(prefix + data))
                events.append(receive_cut(pieces, prefix + data, sizes))
                assert others(events[0]) == others(events[1])
