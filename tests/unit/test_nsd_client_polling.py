"""nsd's client: lists of messages, on bytes made by hand and cut anywhere."""

from __future__ import annotations

import base64
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.wire.client_events import (
    Alive,
    Malformed,
    Messages,
    NotSubscribed,
    Rejected,
    SubscriptionEnded,
    WireEvent,
)
from tests.unit.nsd_lines import NOTHING, SUCCESS, error, get
from tests.unit.nsd_reading import MISSING, NEWS, READER, listed, message, opened, subscribed
from tests.unit.wire_pairs import flat, others, receive_cut

BAD_LIST = [Malformed("a list has an item that is not a message of nsd")]


class PollingTests(SynchronousTestCase):
    def test_pauses_grow_until_a_message_arrives(self) -> None:
        connection = subscribed(NEWS)
        pauses = []
        for _ in range(6):
            assert connection.wake() == []
            connection.receive(NOTHING)
            pauses.append(connection.delay)
        assert pauses == [0.02, 0.04, 0.08, 0.16, 0.25, 0.25]
        connection.wake()
        connection.receive(listed(message(1)))
        assert connection.delay == 0.02

    def test_a_poll_is_outstanding_once(self) -> None:
        connection = subscribed(NEWS)
        connection.wake()
        assert connection.take_output() == b""
        connection.receive(NOTHING)
        connection.wake()
        assert connection.take_output() == get(READER)

    def test_lists_arrive_in_parts(self) -> None:
        connection = subscribed(NEWS)
        data = listed(message(1, "one"), message(2, "two"), message(9, "three"))
        cut = data.index(b"three")
        assert flat(connection.receive(data[:cut])) == [
            ("news", b"bob", b"one"), ("news", b"bob", b"two"),
        ]  # fmt: skip
        assert connection.delay is None
        (event,) = connection.receive(data[cut:])
        assert isinstance(event, Messages)
        assert event.offsets == [8]
        connection.wake()
        assert connection.take_output() == get(READER, 9)

    def test_further_fields(self) -> None:
        connection = subscribed(NEWS)
        data = listed(message(1, x={"a": [1, None]}, y="ü"), message(2))
        (event,) = connection.receive(data)
        assert isinstance(event, Messages)
        assert event.headers == [{"x": b'{"a": [1, null]}', "y": b'"\\u00fc"'}, {}]
        (event,) = subscribed(NEWS).receive(listed(message(1)))
        assert isinstance(event, Messages)
        assert event.headers is None

    def test_bytes_in_data(self) -> None:
        """Only payloads that are not text are there; the rest is a field of the publisher's."""
        connection = subscribed(NEWS)
        raw = base64.b64encode(b"\xff\0").decode()
        data = [raw, base64.b64encode(b"text").decode(), "?", 5]
        messages = [message(n, "", data=one) for n, one in enumerate(data, 1)]
        events = connection.receive(listed(*messages, message(5, "body", data=raw)))
        assert [payload for _, _, payload in flat(events)] == [b"\xff\0", b"", b"", b"", b"body"]

    def test_a_field_that_looks_like_messages(self) -> None:
        """It is read in time that is proportional to its size."""
        connection = subscribed(NEWS)
        inner = [{}, *({"_class": "Message", "from": n} for n in range(20_000))]
        data = listed(message(1), message(2, "ü", x=inner), message(3, x=inner))
        cut = data.rindex(b'"from"')
        assert [one[2] for one in flat(connection.receive(data[:cut]))] == [b"x", "ü".encode()]
        assert [one[2] for one in flat(connection.receive(data[cut:]))] == [b"x"]

    def test_the_end_of_a_subscription(self) -> None:
        for response, reason in (
            (error("BROKER BUSY"), "BROKER BUSY"),
            (error("NO"), "NO"),
            (SUCCESS, "no list of messages"),
        ):
            connection = subscribed(NEWS)
            assert connection.receive(response) == [SubscriptionEnded(NEWS, reason)]
            connection.wake()
            assert connection.take_output() == b""


class ResponseTests(SynchronousTestCase):
    def test_a_channel_that_cannot_be_created(self) -> None:
        connection = opened()
        connection.subscribe(NEWS)
        assert connection.receive(MISSING) == []
        refused = error("LIMIT REACHED: identities")
        reason = "NO SUCH CHANNEL: news"
        assert connection.receive(refused + MISSING) == [NotSubscribed(NEWS, reason, passing=True)]

    def test_a_response_to_nothing_is_the_last(self) -> None:
        for data in (SUCCESS * 2, NOTHING + b"x\n"):
            connection = opened()
            expected = [Rejected("an unexpected response", permanent=False)]
            assert connection.receive(data) == expected
            assert connection.receive(SUCCESS) == []

    def test_lists_that_are_malformed(self) -> None:
        good = message(1)
        for wrong in (
            5,
            "x",
            {},
            {**good, "body": 5},
            {**good, "body": "\ud800"},
            {**good, "from": "\ud800"},
            {**good, "when": None},
            {**good, "when": float("inf")},
            {**good, "when": "x"},
        ):
            connection = subscribed(NEWS)
            assert connection.receive(listed(good, wrong)) == BAD_LIST
            connection = subscribed(NEWS)
            assert receive_cut(connection, listed(wrong, good), (1,)) == BAD_LIST

    def test_lists_that_do_not_end(self) -> None:
        start = NOTHING[:-3]
        for rest in (b"\n", b"]\n", b"}\n", b"\n]}", b"]} \n"):
            for cut in (len(start), 1000):
                connection = subscribed(NEWS)
                events = receive_cut(connection, start + rest, (cut,))
                assert events == [Malformed("a list of nsd ends without its brackets")]
        connection = subscribed(NEWS)
        assert connection.receive(start + b"[" * 200_000 + b"]}\n") == BAD_LIST


BODIES = st.one_of(
    st.sampled_from(["", "ü€𝄞", '},{"_class":"Message","from":', "]}\n", '"\\']),
    st.text(max_size=10).filter(lambda text: text.isprintable()),
)
FIELDS = st.sampled_from([
    {}, {"x": [{}, {"_class": "Message", "from": 1}]}, {"data": "/w=="}, {"_": "},{"},
])  # fmt: skip
LISTS = st.lists(st.one_of(st.none(), st.lists(st.tuples(BODIES, FIELDS), max_size=5)), max_size=8)
SIZES = st.lists(st.integers(1, 90), min_size=1)


class PropertyTests(SynchronousTestCase):
    @given(LISTS, SIZES)
    def test_messages_arrive_however_the_stream_is_cut(
        self, lists: list[list[tuple[str, dict[str, Any]]] | None], sizes: list[int]
    ) -> None:
        connection = subscribed(NEWS)
        events: list[WireEvent] = []
        expected, when = [], 0
        for each in lists:
            messages = []
            for body, extra in each or ():
                when += 1
                messages.append(message(when, body, **extra))
                raw = not body and "data" in extra
                expected.append(("news", b"bob", b"\xff" if raw else body.encode()))
            events += receive_cut(connection, listed(*messages), sizes)
            if each is None:
                connection.ping()
                events += receive_cut(connection, NOTHING, sizes)
            connection.wake()
        assert flat(events) == expected
        offsets = [n for e in events if isinstance(e, Messages) for n in e.offsets or ()]
        assert offsets == list(range(when))
        assert others(events) == [Alive()] * lists.count(None)

    @given(st.binary(max_size=200), st.booleans(), SIZES)
    def test_any_bytes_are_survived(self, data: bytes, in_list: bool, sizes: list[int]) -> None:
        prefix = NOTHING[:-3] if in_list else b""
        events = []
        for cut in ((300,), sizes):
            connection = subscribed(NEWS)
            connection.ping()
            events.append(others(receive_cut(connection, prefix + data, cut)))
        assert events[0] == events[1]
