"""nsd's client connections that publish, with a broker in memory and with bytes made by hand."""

from __future__ import annotations

import json
from random import Random
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.kernel import Columns
from pubsub.protocols.nsd import client_connection
from pubsub.protocols.nsd.client import NsdWire
from pubsub.protocols.nsd.codec import MAX_LINE
from pubsub.wire.client_events import (
    Alive,
    Confirmed,
    Level,
    Malformed,
    Opened,
    Rejected,
    WireEvent,
)
from pubsub.wire.client_wire import Role, WireConnection, WireOptions
from pubsub.wire.confirm_groups import NOT_KNOWN
from tests.unit.nsd_lines import NOTHING, SUCCESS, Nsd, error, get, open_
from tests.unit.raising import raised
from tests.unit.wire_pairs import Pair, receive_cut

PING = get("pubsub-ping")
REFUSED_TEXT = "NOT AUTHORIZED: news"
REFUSED = error(REFUSED_TEXT)
MISSING = error("NO SUCH CHANNEL: news")


def make_wire(client_id: bytes = b"ada") -> NsdWire:
    return NsdWire(WireOptions(client_id))


def opened(client_id: bytes = b"ada") -> WireConnection:
    """Return a publisher that has sent nothing."""
    connection = make_wire(client_id).connect(Role.PUBLISHER)
    assert connection.open("news") == []
    assert connection.take_output() == PING
    assert connection.receive(NOTHING) == [Opened()]
    return connection


def published(topic: str, body: str, sender: str = "ada") -> bytes:
    """Return a PublishRequest as the client writes it."""
    message = {"_class": "Message", "from": sender, "when": 0, "body": body}
    request = {"_class": "PublishRequest", "identity": topic, "message": message}
    return json.dumps(request, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


class WireTests(SynchronousTestCase):
    def test_payloads_are_utf_8(self) -> None:
        wire = make_wire()
        for payload in (b"", "ü€𝄞".encode(), b'\0\n"\\'):
            assert wire.payload_problem(Columns.one(payload)) == ""
        for payload in (b"\xff", b"ok\xc3", b"\xed\xa0\x80", b"\xff" + b"x" * 1_000_000):
            columns = Columns.of([b"good", payload])
            assert wire.payload_problem(columns) == "the payload is not UTF-8"
        one = Columns.one(b"x")
        assert wire.envelope_problem(one, "zo\xeb".encode(), None) == ""
        assert wire.envelope_problem(one, b"\xff", None) == "the sender is not UTF-8"
        assert wire.envelope_problem(one, None, {"a": b""}) == "headers"

    def test_payloads_fit_a_line_with_their_escapes(self) -> None:
        wire = make_wire()
        room = MAX_LINE - 4096
        assert wire.payload_problem(Columns.one(b"x" * (room - 2))) == ""
        problem = wire.payload_problem(Columns.one(b"x" * (room - 1)))
        assert problem == f"{room + 1} bytes are too many for a line"
        assert wire.payload_problem(Columns.one(b"\0" * (room // 6))) == ""
        assert "too many for a line" in wire.payload_problem(Columns.one(b"\0" * (room // 6 + 1)))

    def test_any_topic_can_be_addressed(self) -> None:
        assert make_wire().topic_problem('ü "\\\n') == ""

    def test_client_ids(self) -> None:
        make_wire(b"n" * 255)
        for wrong in (b"n" * 256, b"\xff" * 255):
            assert "255 bytes" in str(raised(ConfigurationError, make_wire, wrong))


class BrokerTests(SynchronousTestCase):
    """With a broker in memory"""

    def writer(self, house: Nsd, client_id: bytes = b"ada", piece: int = 7) -> Pair:
        connection = make_wire(client_id).connect(Role.PUBLISHER)
        return Pair(house, "nsd", connection, "news", piece)

    def test_the_bytes_of_a_publisher(self) -> None:
        writer = self.writer(Nsd())
        writer.connection.publish("news", Columns.of([b"one", b"", 'ü"\n'.encode()]))
        writer.connection.publish("spört", Columns.one(b"goal"), sender=b"b\xc3\xb6b")
        writer.connection.publish("news", Columns.one(b"last"), sender=b"")
        writer.connection.confirm()
        assert writer.take_sent() == (
            PING
            + open_("news")
            + published("news", "one")
            + published("news", "")
            + published("news", 'ü"\n')
            + open_("spört")
            + published("spört", "goal", "böb")
            + published("news", "last", "")
        )
        assert writer.take() == [Opened(), Confirmed(5, Level.STORED)]

    def test_messages_are_in_the_history(self) -> None:
        house = Nsd()
        writer = self.writer(house)
        texts = [f"{number} ü" for number in range(200)]
        writer.connection.publish("news", Columns.of([text.encode() for text in texts]))
        writer.settle()
        (found,) = house.ask(get("news"))
        assert [(one["from"], one["body"]) for one in found["messages"]] == [
            ("ada", text) for text in texts
        ]

    def test_each_confirmation_counts_the_refused_messages(self) -> None:
        writer = self.writer(Nsd(max_body=5))
        writer.connection.publish("news", Columns.of([b"123456", b"12345", b"1234567"]))
        writer.connection.confirm()
        writer.connection.publish("news", Columns.one(b"12"))
        writer.connection.confirm()
        writer.connection.confirm()
        assert writer.take() == [
            Opened(),
            Confirmed(3, Level.STORED, 2, "MESSAGE TOO BIG: 6 characters"),
            Confirmed(1, Level.STORED),
            Confirmed(0, Level.STORED),
        ]

    def test_rights(self) -> None:
        """The reason is why the channel cannot be opened."""
        writer = self.writer(Nsd(allow_publish="news", allow_subscribe="news"))
        writer.connection.publish("sport", Columns.of([b"x", b"y"]))
        writer.connection.publish("news", Columns.one(b"x"))
        writer.connection.confirm()
        writer.connection.ping()
        assert writer.take() == [
            Opened(),
            Confirmed(3, Level.STORED, 2, "NOT AUTHORIZED: sport"),
            Alive(),
        ]

    def test_a_channel_that_could_not_be_opened_is_opened_later(self) -> None:
        house = Nsd(max_identities=1)
        house.ask(open_("other"))
        writer = self.writer(house)
        writer.connection.publish("news", Columns.one(b"x"))
        writer.connection.confirm()
        assert writer.take() == [
            Opened(), Confirmed(1, Level.STORED, 1, "LIMIT REACHED: identities"),
        ]  # fmt: skip
        listener = house.listeners["nsd"]
        listener.settings = {**listener.settings, "max-identities": 2}
        writer.connection.publish("news", Columns.one(b"x"))
        writer.connection.confirm()
        assert writer.take() == [Confirmed(1, Level.STORED)]

    def test_a_connection_over_quota(self) -> None:
        house = Nsd(max_connections=1)
        self.writer(house)
        second = self.writer(house)
        assert second.take() == [Rejected("TOO MANY CONNECTIONS", permanent=False)]
        assert second.connection.ended

    def test_nothing_is_sent_at_the_end(self) -> None:
        writer = self.writer(Nsd())
        assert writer.take_sent() == PING
        writer.connection.close()
        assert writer.take_sent() == b""

    def test_nothing_is_refused_in_ordinary_use(self) -> None:
        house = Nsd()
        writer = self.writer(house)
        writer.connection.publish("news", Columns.one(b"x"))
        writer.connection.confirm()
        writer.connection.ping()
        assert writer.take() == [Opened(), Confirmed(1, Level.STORED), Alive()]
        assert house.broker.counters.refused == 0


class PublisherTests(SynchronousTestCase):
    def test_confirmations_are_in_order(self) -> None:
        connection = opened()
        connection.publish("news", Columns.of([b"a", b"b"]))
        connection.confirm()
        connection.publish("news", Columns.one(b"c"))
        connection.ping()
        connection.confirm()
        assert connection.receive(SUCCESS * 2) == []
        assert connection.receive(REFUSED) == [Confirmed(2, Level.STORED, 1, REFUSED_TEXT)]
        assert connection.receive(SUCCESS + NOTHING) == [Confirmed(1, Level.STORED), Alive()]

    def test_everything_is_answered_already(self) -> None:
        connection = opened()
        connection.publish("news", Columns.one(b"a"))
        connection.receive(SUCCESS + REFUSED)
        connection.take_output()
        connection.confirm()
        assert connection.take_output() == PING
        assert connection.receive(NOTHING) == [Confirmed(1, Level.STORED, 1, REFUSED_TEXT)]

    def test_the_reason_is_the_first_one_if_a_message_was_refused(self) -> None:
        connection = opened()
        connection.publish("news", Columns.of([b"a", b"b"]))
        connection.confirm()
        connection.publish("sport", Columns.one(b"a"))
        connection.confirm()
        assert connection.receive(error("ONE") + error("TWO") * 2 + error("THREE") + SUCCESS) == [
            Confirmed(2, Level.STORED, 2, "ONE"), Confirmed(1, Level.STORED),
        ]  # fmt: skip

    def test_a_broker_that_wants_a_password(self) -> None:
        """It is told at once: no request of the connection would succeed."""
        for role in Role:
            connection = make_wire(b"ada").connect(role)
            connection.open("news")
            assert connection.receive(error("WRONG PASSWORD")) == [
                Rejected("WRONG PASSWORD", permanent=True)
            ]

    def test_the_channel_of_a_user(self) -> None:
        connection = opened()
        connection.publish("bob", Columns.one(b"a"))
        connection.confirm()
        why = "WRONG PASSWORD: 'bob' is a user of the broker, which alone may publish there"
        assert connection.receive(error("WRONG PASSWORD") * 2) == [
            Confirmed(1, Level.STORED, 1, why)
        ]

    def test_messages_that_may_be_published_nevertheless(self) -> None:
        connection = opened()
        connection.publish("news", Columns.of([b"a", b"b", b"c"]))
        connection.confirm()
        assert connection.receive(SUCCESS * 2 + error("UNCONFIRMED") + error("ONE")) == [
            Confirmed(3, Level.STORED, 1, NOT_KNOWN, 1)
        ]

    def test_a_channel_that_is_gone_is_opened_again(self) -> None:
        connection = opened()
        for opens, responses in (
            (True, REFUSED + MISSING),
            (True, SUCCESS + SUCCESS),
            (False, MISSING),
            (True, SUCCESS + SUCCESS),
            (False, SUCCESS),
        ):
            connection.publish("news", Columns.one(b"a"))
            assert connection.take_output() == open_("news") * opens + published("news", "a")
            connection.receive(responses)

    def test_other_refusals_do_not_open_it_again(self) -> None:
        connection = opened()
        connection.publish("news", Columns.one(b"a"))
        connection.receive(SUCCESS + REFUSED)
        connection.take_output()
        connection.publish("news", Columns.one(b"a"))
        assert connection.take_output() == published("news", "a")

    def test_many_responses_at_once(self) -> None:
        connection = opened()
        connection.publish("news", Columns.of([b""] * 10_000))
        connection.confirm()
        data = SUCCESS + b"".join(SUCCESS if n % 3 else REFUSED for n in range(10_000))
        events = receive_cut(connection, data, (4_096,))
        assert events == [Confirmed(10_000, Level.STORED, 3_334, REFUSED_TEXT)]

    def test_texts_of_refusals(self) -> None:
        for shown, text in (
            (b'"%b"' % (b"x" * 300), "x" * 200),
            (b'""', "refused"),
            (b"5", "refused"),
            (b"[" * 900 + b"]" * 900, "refused"),
        ):
            connection = opened()
            connection.publish("news", Columns.one(b"a"))
            connection.confirm()
            refusal = b'{"_class":"ErrorResponse","error":%b}\n' % shown
            assert connection.receive(SUCCESS + refusal) == [Confirmed(1, Level.STORED, 1, text)]

    def test_malformed_responses(self) -> None:
        for data in (
            b"HTTP/1.1 400 Bad Request\r\n",
            b"\n",
            b"[]\n",
            b"{}\n",
            b'{"_class":"SuccessResponse"\n',
            b'{"_class":"\xff"}\n',
            b"[" * 200_000 + b"\n",
        ):
            connection = opened()
            connection.ping()
            connection.ping()
            events = connection.receive(NOTHING + data)
            assert events == [Alive(), Malformed("a line is not a response of nsd")]
            assert connection.ended
            assert connection.receive(NOTHING) == []

    def test_a_line_without_an_end(self) -> None:
        with patch.object(client_connection, "MOST_LINE", 1000):
            for role in (Role.PUBLISHER, Role.SUBSCRIBER):
                connection = make_wire().connect(role)
                connection.open("news")
                assert connection.receive(bytes(1000)) == []
                (event,) = connection.receive(b"0")
                assert event == Malformed("a line of nsd with more than 1000 bytes")
                assert connection.ended

    def test_a_response_to_nothing(self) -> None:
        for data, reason in ((SUCCESS, "an unexpected response"), (REFUSED, REFUSED_TEXT)):
            connection = opened()
            assert connection.receive(data + data + b"x\n") == [Rejected(reason, permanent=False)]
            assert connection.ended


STEPS = st.lists(
    st.one_of(
        st.sampled_from(["ping", "confirm"]),
        st.tuples(st.sampled_from(["news", "sport"]), st.integers(0, 4)),
    ),
    max_size=20,
)


class PropertyTests(SynchronousTestCase):
    @given(STEPS, st.randoms(use_true_random=False), st.lists(st.integers(1, 60), min_size=1))
    def test_events_are_the_same_however_the_stream_is_cut(
        self, steps: list[str | tuple[str, int]], random: Random, sizes: list[int]
    ) -> None:
        events: list[list[WireEvent]] = []
        expected = 0
        data = b""
        for cut in (None, sizes):
            connection = opened()
            expected = 0
            for step in [*steps, "confirm"]:
                if step == "ping":
                    connection.ping()
                elif isinstance(step, str):
                    connection.confirm()
                else:
                    connection.publish(step[0], Columns.of([b"x"] * step[1]))
                    expected += step[1]
            if cut is None:
                requests = connection.take_output().splitlines()
                data = b"".join(random.choice([SUCCESS, REFUSED]) for _ in requests)
            events.append(receive_cut(connection, data, cut or (len(data),)))
        assert events[0] == events[1]
        confirmed = [event for event in events[0] if isinstance(event, Confirmed)]
        assert sum(event.published for event in confirmed) == expected
        assert len(confirmed) == steps.count("confirm") + 1
        assert events[0].count(Alive()) == steps.count("ping")

    @given(st.binary(max_size=200), st.lists(st.integers(1, 60), min_size=1))
    def test_any_bytes_are_survived(self, data: bytes, sizes: list[int]) -> None:
        events = []
        for cut in ((300,), sizes):
            connection = opened()
            connection.ping()
            events.append(receive_cut(connection, SUCCESS + data, cut))
        assert events[0] == events[1]
