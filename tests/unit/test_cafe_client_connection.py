"""cafe's client connections, fed with the broker's bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.kernel import Columns
from pubsub.protocols.cafe.channels import CHANNELS
from pubsub.protocols.cafe.client import CafeWire
from pubsub.protocols.cafe.client_connection import CafeClientConnection
from pubsub.protocols.cafe.codec import (
    Disconnect,
    Error,
    ErrorCode,
    Frame,
    HandshakeAck,
    HandshakePub,
    HandshakeSub,
    Message,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
    encode,
)
from pubsub.wire.client_events import (
    Alive,
    Closing,
    Confirmed,
    Interest,
    Level,
    Malformed,
    Messages,
    NotResumed,
    NotSubscribed,
    Opened,
    Rejected,
    Subscribed,
    SubscriptionEnded,
    Unsubscribed,
    WireEvent,
)
from pubsub.wire.client_wire import Role, WireConnection, WireOptions
from tests.unit.wire_pairs import runs

SEVEN = Interest("cafe/7")
NINE = Interest("cafe/9")


def make_wire(client_id: bytes = b"bob") -> CafeWire:
    return CafeWire(WireOptions(client_id, values={"channels": CHANNELS.parse("0-255")}))


def opened(role: Role) -> WireConnection:
    """Return a connection whose handshake is done."""
    connection = make_wire().connect(role)
    connection.open("cafe/7")
    assert connection.receive(encode(HandshakeAck(0, 5))) == [Opened()]
    connection.take_output()
    return connection


def message(channel: int, milliseconds: int, payload: bytes) -> bytes:
    return encode(Message(channel, milliseconds, payload))


def flat(events: list[WireEvent]) -> list[tuple[str, int | None, bytes]]:
    """Return topic, timestamp and payload of each message."""
    return [
        (event.topic, event.timestamps[at] if event.timestamps else event.timestamp, payload)
        for event in runs(events)
        for at, payload in enumerate(event.columns.payloads())
    ]


class WireTests(SynchronousTestCase):
    def test_a_topic_without_channel_cannot_be_addressed(self) -> None:
        assert not make_wire().topic_problem("cafe/255")
        assert make_wire().topic_problem("cafe/256")
        assert make_wire().topic_problem("orders")

    def test_a_payload_must_fit_a_message(self) -> None:
        assert not make_wire().payload_problem(Columns.one(bytes(1_048_567)))
        assert make_wire().payload_problem(Columns.one(bytes(1_048_568)))

    def test_a_client_id_that_would_resume_a_session_is_an_error(self) -> None:
        for client_id in (b"x;resume=0000000000000001", b"x" * 232):
            with pytest.raises(ConfigurationError):
                make_wire(client_id)


class HandshakeTests(SynchronousTestCase):
    def test_a_publisher_announces_the_first_channel(self) -> None:
        connection = make_wire().connect(Role.PUBLISHER)
        assert connection.open("cafe/9") == []
        assert connection.take_output() == encode(HandshakePub(9, b"bob"))
        assert connection.take_output() == b""

    def test_a_subscriber_announces_no_channel(self) -> None:
        connection = make_wire().connect(Role.SUBSCRIBER)
        connection.open("cafe/9")
        assert connection.take_output() == encode(HandshakeSub(b"", b"bob"))

    def test_the_next_connection_resumes_the_session(self) -> None:
        first = opened(Role.SUBSCRIBER)
        second = make_wire().connect(Role.SUBSCRIBER, first.session)
        second.open()
        expected = encode(HandshakeSub(b"", b"bob;resume=0000000000000005"))
        assert second.take_output() == expected
        assert second.receive(encode(HandshakeAck(0, 5))) == [Opened(resumed=True)]

    def test_an_unknown_session(self) -> None:
        first = opened(Role.SUBSCRIBER)
        second = make_wire().connect(Role.SUBSCRIBER, first.session)
        second.open()
        answer = encode(HandshakeAck(ErrorCode.INVALID_HANDSHAKE, 0))
        assert second.receive(answer) == [NotResumed()]
        assert second.ended

    def test_a_refused_handshake(self) -> None:
        for code, permanent in ((ErrorCode.UNAUTHORIZED, True), (4, False), (99, False)):
            connection = make_wire().connect(Role.PUBLISHER)
            connection.open("cafe/7")
            (event,) = connection.receive(encode(HandshakeAck(code, 0)))
            assert isinstance(event, Rejected)
            assert event.permanent is permanent

    def test_a_connection_over_quota(self) -> None:
        connection = make_wire().connect(Role.PUBLISHER)
        events = connection.receive(encode(Error(ErrorCode.RATE_LIMIT_EXCEEDED)))
        assert events == [Rejected("RATE_LIMIT_EXCEEDED", permanent=False)]

    def test_a_goodbye_leaves_nothing_to_resume(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        connection.close()
        assert connection.take_output() == encode(Disconnect())
        assert connection.session is None


class PublisherTests(SynchronousTestCase):
    def test_payloads_and_a_ping(self) -> None:
        connection = opened(Role.PUBLISHER)
        connection.publish("cafe/9", Columns.of([b"a", b"", b"ccc"]))
        connection.confirm()
        frames = b"".join(encode(Publish(9, payload)) for payload in (b"a", b"", b"ccc"))
        assert connection.take_output() == frames + encode(Ping())
        assert connection.receive(encode(Pong())) == [Confirmed(3, Level.HANDLED)]

    def test_payloads_of_one_size_have_a_short_way(self) -> None:
        connection = opened(Role.PUBLISHER)
        assert connection.publish_alike("cafe/9", [b"a", b"b"])
        assert not connection.publish_alike("cafe/9", [b"a", b"bb"])
        assert not connection.publish_alike("cafe/9", [bytes(1_048_568)])
        connection.publish("cafe/9", Columns.one(b"c"))
        connection.confirm()
        frames = b"".join(encode(Publish(9, payload)) for payload in (b"a", b"b", b"c"))
        assert connection.take_output() == frames + encode(Ping())
        assert connection.receive(encode(Pong())) == [Confirmed(3, Level.HANDLED)]

    def test_errors_count_for_the_messages_before_the_ping(self) -> None:
        connection = opened(Role.PUBLISHER)
        connection.publish("cafe/9", Columns.of([b"a", b"b"]))
        connection.ping()
        connection.publish("cafe/9", Columns.one(b"c"))
        connection.confirm()
        connection.publish("cafe/9", Columns.one(b"d"))
        connection.confirm()
        refused = encode(Error(ErrorCode.RATE_LIMIT_EXCEEDED))
        events = connection.receive(refused + encode(Pong()) + refused + 2 * encode(Pong()))
        expected = [
            Alive(),
            Confirmed(3, Level.HANDLED, 2, "RATE_LIMIT_EXCEEDED"),
            Confirmed(1, Level.HANDLED),
        ]
        assert events == expected

    def test_the_broker_stops(self) -> None:
        connection = opened(Role.PUBLISHER)
        (event,) = connection.receive(encode(Disconnect()) + encode(Pong()))
        assert isinstance(event, Closing)
        assert connection.receive(b"more") == []

    def test_pings_of_the_other_side_are_answered(self) -> None:
        connection = opened(Role.PUBLISHER)
        assert connection.receive(encode(Ping())) == []
        assert connection.take_output() == encode(Pong())


class SubscriberTests(SynchronousTestCase):
    def test_each_subscription_has_its_own_reply(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        connection.subscribe(SEVEN)
        connection.subscribe(NINE)
        expected: list[Frame] = [Subscribe(7), Ping(), Subscribe(9), Ping()]
        assert connection.take_output() == b"".join(map(encode, expected))
        refused = encode(Error(ErrorCode.UNAUTHORIZED))
        events = connection.receive(refused + encode(Pong()) + encode(Pong()))
        assert events == [NotSubscribed(SEVEN, "UNAUTHORIZED"), Subscribed(NINE)]

    def test_a_refusal_that_may_pass(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        connection.subscribe(SEVEN)
        events = connection.receive(encode(Error(ErrorCode.RATE_LIMIT_EXCEEDED)) + encode(Pong()))
        assert events == [NotSubscribed(SEVEN, "RATE_LIMIT_EXCEEDED", passing=True)]

    def test_unsubscribing(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        assert connection.unsubscribe(SEVEN)
        assert connection.take_output() == encode(Unsubscribe(7)) + encode(Ping())
        refused = encode(Error(ErrorCode.CHANNEL_NOT_FOUND))
        assert connection.receive(refused + encode(Pong())) == [Unsubscribed(SEVEN)]

    def test_an_error_without_a_request_ends_a_subscription(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        events = connection.receive(encode(Error(ErrorCode.UNAUTHORIZED)))
        assert events == [SubscriptionEnded(None, "UNAUTHORIZED")]

    def test_messages_of_one_batch_are_one_event(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        data = b"".join(message(7, 12, b"%d" % number) for number in range(100))
        (event,) = connection.receive(data)
        assert isinstance(event, Messages)
        assert (event.topic, event.timestamp, event.columns.count) == ("cafe/7", 12_000, 100)

    def test_a_frame_cut_anywhere(self) -> None:
        data = message(7, 1, b"one") + encode(Ping()) + message(9, 2, b"two")
        for cut in range(len(data)):
            connection = opened(Role.SUBSCRIBER)
            events = connection.receive(data[:cut]) + connection.receive(data[cut:])
            assert flat(events) == [("cafe/7", 1000, b"one"), ("cafe/9", 2000, b"two")]

    def test_a_large_message_in_small_pieces(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        payload = bytes(1_048_567)
        data = message(7, 1, payload)
        pieces = [data[at : at + 1000] for at in range(0, len(data), 1000)]
        events = [event for piece in pieces for event in connection.receive(piece)]
        assert flat(events) == [("cafe/7", 1000, payload)]

    def test_many_timestamps(self) -> None:
        connection = opened(Role.SUBSCRIBER)
        expected = [("cafe/7", 1000 * number, b"x") for number in range(1000)]
        data = b"".join(message(7, number, b"x") for number in range(1000))
        assert flat(connection.receive(data)) == expected
        assert flat(connection.receive(data)) == expected

    def test_bytes_that_are_not_cafe(self) -> None:
        for data in (b"HTTP/1.1 400 Bad Request\r\n", encode(HandshakeAck(0, 6)), encode(Pong())):
            connection = opened(Role.SUBSCRIBER)
            (event,) = connection.receive(data)
            assert isinstance(event, Malformed)
            assert "HTTP" not in event.reason
            assert connection.ended


FRAMES = st.lists(
    st.one_of(
        st.tuples(st.integers(0, 255), st.integers(0, 3), st.binary(max_size=20)),
        st.just(None),
    ),
    max_size=30,
)


class PropertyTests(SynchronousTestCase):
    @given(FRAMES, st.lists(st.integers(1, 60), min_size=1))
    def test_messages_arrive_however_the_stream_is_cut(
        self, frames: list[tuple[int, int, bytes] | None], sizes: list[int]
    ) -> None:
        connection = opened(Role.SUBSCRIBER)
        data = b"".join(encode(Ping()) if one is None else message(*one) for one in frames)
        events: list[WireEvent] = []
        at = number = 0
        while at < len(data):
            size = sizes[number % len(sizes)]
            events += connection.receive(data[at : at + size])
            at, number = at + size, number + 1
        expected = [(f"cafe/{one[0]}", 1000 * one[1], one[2]) for one in frames if one]
        assert flat(events) == expected

    @given(st.binary(max_size=200))
    def test_any_bytes_are_survived(self, data: bytes) -> None:
        for role in Role:
            connection = opened(role)
            assert isinstance(connection, CafeClientConnection)
            connection.receive(data)
