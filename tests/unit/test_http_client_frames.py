"""The client library's connections over the HTTP API, with frames made by hand."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.client.http_session import HttpSession
from pubsub.wire.client_events import (
    Alive,
    Closing,
    Interest,
    Malformed,
    Messages,
    Missed,
    MixedMessages,
    NotSubscribed,
    Rejected,
    Subscribed,
    SubscriptionEnded,
    WireEvent,
)
from pubsub.wire.client_wire import Role
from tests.unit.client_frames import NEWS, SPORT, positions, subscribed
from tests.unit.http_ends import EPOCH, HandMade, make, upgraded
from tests.unit.wire_pairs import flat, others, receive_cut

NOT_A_FRAME = Malformed("a frame is not one of pubsub.v1.json")
GAP = {"start": 3, "stop": 5, "reason": "expired"}


# The same message would end the next connection too.
TOO_LARGE = "a message is larger than the max-message of the broker"


class CloseTests(SynchronousTestCase):
    def test_close_codes(self) -> None:
        for code, reason, expected in (
            (1000, "", Rejected("close code 1000", permanent=False)),
            (1001, "the broker stops", Closing("the broker stops")),
            (1001, "administrator: noisy", Closing("administrator: noisy")),
            (1002, "", Rejected("close code 1002", permanent=False)),
            (1008, "not-connected", Rejected("not-connected", permanent=True)),
            (1009, "over size limit", Rejected(TOO_LARGE, permanent=True)),
            (1013, "rate-limited", Rejected("rate-limited", permanent=False)),
            (4001, "the token has expired", Rejected("the token has expired", permanent=True)),
            (4008, "idle", Rejected("idle", permanent=False)),
            (None, "", Rejected("close code 1005", permanent=False)),
        ):
            for role in Role:
                far = upgraded(role)
                events = receive_cut(far.connection, far.close(code, reason) + far.sent())
                assert events == [expected]
                assert far.connection.ended
                assert far.receive(b"more") == []

    def test_messages_before_a_close_arrive(self) -> None:
        far = subscribed(NEWS)
        events = far.receive(far.message("news", 3, b"x"), far.close(1001))
        assert flat(events) == [("news", b"bob", b"x")]
        # Nothing behind the end of a connection reaches its link.
        assert events[-1] == Closing("the broker stops")
        assert len(events) == 2
        assert positions(far) == {NEWS: f"{EPOCH}:4"}

    def test_a_close_is_answered(self) -> None:
        far = upgraded(Role.SUBSCRIBER)
        far.receive(far.close(1001))
        far.requests()
        assert far.server.close_rcvd is not None

    def test_the_first_request_is_refused(self) -> None:
        for code, permanent in (
            ("bad-token", True),
            ("invalid-request", True),
            ("rate-limited", False),
            ("memory", False),
            ("internal", False),
        ):
            far = HandMade(make(Role.SUBSCRIBER, "x.y.z"))
            far.receive(far.accept())
            far.requests()
            events = far.receive(far.error(1, code), far.close(1008, code))
            assert events == [Rejected(code, permanent)]


class MalformedTests(SynchronousTestCase):
    def test_frames_that_break_the_protocol(self) -> None:
        for data in (
            b"\x83\x00",  # an unknown opcode
            b"\xc1\x00",  # a reserved bit
            b"\x81\x80abcd",  # masked
            b"\x80\x00",  # a continuation of nothing
            b"\x88\x01x",  # a close of one byte
        ):
            for sizes in ((1,), (100,)):
                far = upgraded(Role.SUBSCRIBER)
                assert receive_cut(far.connection, data, sizes) == [Malformed("not a WebSocket")], (
                    data
                )
                assert far.receive(b"more") == []

    def test_objects_that_are_no_replies(self) -> None:
        for text in (
            b"",
            b"{",
            b"\xff",
            b"1",
            b"[]",
            b"null",
            b"[" * 100_000,
            b'{"id": 9, "ok": {}}',
            b'{"id": 1, "ok": {}}',
            b'{"id": "x", "ok": {}}',
            b'{"id": [], "ok": {}}',
            b'{"id": Infinity, "ok": {}}',
            b'{"id": NaN, "ok": {}}',
            b'{"id": 2}',
            b'{"id": 2, "ok": {}}',
            b'{"id": 2, "error": {}}',
            b'{"id": 2, "error": 7}',
            b'{"error": "text"}',
            b'{"message": {}}',
            b'{"message": {"topic": "news", "offset": 3}}',
            b'{"gap": {}}',
            b'{"revoked": []}',
        ):
            far = upgraded(Role.SUBSCRIBER)
            far.connection.subscribe(NEWS)
            far.requests()
            far.server.send_text(text)
            assert far.receive(far.sent()) == [NOT_A_FRAME], text

    def test_messages_that_are_malformed(self) -> None:
        """Those before them have arrived."""
        for name, value in (
            ("offset", None),
            ("offset", float("inf")),
            ("timestamp", "x"),
            ("key", 7),
            ("key", "a"),
            ("headers", 1),
            ("headers", [{"key": "k"}]),
            ("headers", [{"key": "k", "value": 1}]),
        ):
            for sizes in ((1,), (65_536,)):
                far = subscribed(NEWS)
                data = far.message("news", 3, b"x")
                changed: dict[str, Any] = {name: value}
                if name == "offset":
                    text = json.dumps({"message": {"offset": value}}).encode()
                    far.server.send_binary(len(text).to_bytes(4, "big") + text)
                    data += far.sent()
                else:
                    data += far.message("news", 4, b"y", **changed)
                events = receive_cut(far.connection, data, sizes)
                assert flat(events) == [("news", b"bob", b"x")], (name, value)
                assert others(events) == [NOT_A_FRAME], (name, value)
                assert positions(far) == {NEWS: f"{EPOCH}:4"}

    def test_binary_frames_that_are_too_short(self) -> None:
        for data in (b"", b"\0\0", b"\0\0\0\2{", b"\xff" * 8):
            far = upgraded(Role.SUBSCRIBER)
            far.server.send_binary(data)
            assert far.receive(far.sent()) == [NOT_A_FRAME]

    def test_a_request_that_the_broker_did_not_understand(self) -> None:
        far = upgraded(Role.PUBLISHER)
        assert far.receive(far.error(None, "invalid-request")) == [Malformed("invalid-request")]
        far = upgraded(Role.PUBLISHER)
        assert far.receive(far.text({"error": {"code": "internal"}})) == [Malformed("internal")]


class SubscriberTests(SynchronousTestCase):
    def test_the_requests(self) -> None:
        later = Interest("later", start=9)
        session = HttpSession({NEWS: "1-abc:5"})
        far = upgraded(Role.SUBSCRIBER, session)
        for interest in (NEWS, SPORT, later):
            far.connection.subscribe(interest)
        far.connection.unsubscribe(NEWS)
        given = {"op": "subscribe", "binary": True, "headers": True}
        assert far.requests() == [
            {"id": 2, "topic": "news", "position": "1-abc:5", **given},
            {"id": 3, "topic": "sport", **given},
            {"id": 4, "topic": "later", "start": 9, **given},
            {"id": 5, "op": "unsubscribe", "topic": "news"},
        ]
        assert session.positions == {}

    def test_another_broker_that_does_not_share_the_history(self) -> None:
        """Its offsets are those of other messages, so new messages are requested."""
        begun = Interest("begun", start=9)
        unread = Interest("unread", start=0)
        session = HttpSession({}, ("a", 1), "s1")
        session.passed(NEWS, "1-abc:5", 1000)
        session.positions[begun] = "1-abc:9"
        session.positions[unread] = "1-abc:0"
        far = upgraded(Role.SUBSCRIBER, session, resumed=False)
        for interest in (NEWS, SPORT, begun, unread):
            far.connection.subscribe(interest)
        starts = [one.keys() & {"position", "timestamp", "start"} for one in far.requests()]
        assert starts == [set(), set(), set(), {"start"}]
        assert session.home == ("localhost", 7080)

    def test_another_broker_that_shares_the_history(self) -> None:
        """It continues behind the time of the last message, and at an offset from then on."""
        session = HttpSession({}, ("a", 1), "s1")
        session.passed(NEWS, "1-abc:5", 1000)
        far = upgraded(Role.SUBSCRIBER, session, resumed=False, shared="s1")
        far.connection.subscribe(NEWS)
        (request,) = far.requests()
        assert request["timestamp"] == 1001
        far.receive(far.ok(2, topic="news", start=70, epoch=EPOCH))
        assert session.members(NEWS) == {"position": f"{EPOCH}:70"}
        # A third one.
        session.move(("c", 1), "s1")
        assert session.members(NEWS) == {"timestamp": 1001}
        session.passed(NEWS, "1-def:7", 2000)
        session.move(("d", 1), "s1")
        assert session.members(NEWS) == {"timestamp": 2001}
        session.forget(NEWS)
        assert session.members(NEWS) == {}

    def test_prefixes(self) -> None:
        games, news = Interest("game:", prefix=True), Interest("news", prefix=True)
        far = upgraded(Role.SUBSCRIBER)
        for interest in (NEWS, games, news):
            far.connection.subscribe(interest)
        named, first, second = far.requests()
        assert (named["topic"], first["prefix"], second["prefix"]) == ("news", "game:", "news")
        assert "topic" not in first
        events = far.receive(
            far.ok(2, topic="news", start=3, epoch=EPOCH)
            + far.ok(3, prefix="game:", start=3, epoch=EPOCH)
            + far.ok(4, prefix="news", start=3, epoch=EPOCH)
        )
        assert events == [Subscribed(NEWS), Subscribed(games), Subscribed(news)]
        far.connection.unsubscribe(news)
        assert far.requests() == [{"id": 5, "op": "unsubscribe", "prefix": "news"}]
        rows = [
            {"offset": 7, "timestamp": 1, "topic": topic, "key": "", "value": topic}
            for topic in ("game:1", "news", "newspaper")
        ]
        events = far.receive(b"".join(far.text({"message": row}) for row in rows))
        # The last one was on its way when the subscription ended.
        assert [one.topic for one in events if isinstance(one, Messages)] == ["game:1", "news"]
        (event,) = far.receive(far.text({"revoked": {"topic": "game:1"}}))
        assert event == SubscriptionEnded(None, "'game:1' may not be read any more")

    def test_a_prefix_begins_anew_on_the_next_connection(self) -> None:
        games = Interest("game:", prefix=True)
        far = upgraded(Role.SUBSCRIBER)
        session = far.connection.session
        reply = {"prefix": "game:", "start": 3, "epoch": EPOCH}
        far.connection.subscribe(games)
        assert far.receive(far.ok(2, **reply)) == [Subscribed(games)]
        again = upgraded(Role.SUBSCRIBER, session)
        again.connection.subscribe(games)
        assert "position" not in again.requests()[0]
        missed = Missed("game:", "the connection was interrupted")
        assert again.receive(again.ok(2, **reply)) == [missed, Subscribed(games)]

    def test_refused(self) -> None:
        far = upgraded(Role.SUBSCRIBER)
        far.connection.subscribe(NEWS)
        events = far.receive(far.error(2, "not-authorized", "permission denied"))
        assert events == [NotSubscribed(NEWS, "permission denied")]
        far.connection.subscribe(NEWS)
        events = far.receive(far.error(3, "memory", "no room"))
        assert events == [NotSubscribed(NEWS, "no room", passing=True)]
        assert positions(far) == {}

    def test_gaps(self) -> None:
        far = upgraded(Role.SUBSCRIBER)
        far.connection.subscribe(NEWS)
        events = far.receive(
            far.ok(2, topic="news", start=5, epoch="2-def", gap=GAP),
            far.message("news", 5, b"x"),
            far.text({"gap": {"start": 6, "stop": 8, "reason": "slow"}}),
            far.message("news", 8, b"y"),
        )
        kinds = [type(event) for event in events]
        assert kinds == [Missed, Subscribed, Messages, Missed, Messages]
        assert events[0] == Missed("news", "offsets 3 to 5: expired")
        assert events[3] == Missed(None, "offsets 6 to 8: slow")

    def test_messages_in_text_frames(self) -> None:
        far = subscribed(NEWS)
        row = {"topic": "news", "offset": 3, "timestamp": 7, "key": "Ym9i"}
        events = far.receive(
            far.text({"message": {**row, "value": "caf\xe9"}}),
            far.text({"message": {**row, "value_base64": "/w=="}}),
        )
        expected = [("news", b"bob", "caf\xe9".encode()), ("news", b"bob", b"\xff")]
        assert flat(events) == expected

    def test_messages_of_one_read_are_one_event(self) -> None:
        far = subscribed(NEWS, SPORT)
        parts = [far.message("news", n, b"x") for n in range(3, 500)]
        event, _ = far.receive(*parts, far.message("sport", 500, b"y"))
        assert isinstance(event, Messages)
        assert event.offsets == list(range(3, 500))
        assert event.timestamps == [7] * 497
        assert positions(far) == {NEWS: f"{EPOCH}:500", SPORT: f"{EPOCH}:501"}

    def test_messages_that_are_not_stored(self) -> None:
        """They have no offset, and the position stays that of the stored one before."""
        far = subscribed(NEWS, SPORT)
        row = {"topic": "news", "timestamp": 7, "key": "Ym9i", "value": "x"}
        batch = {**row, "offset": None, "sizes": [1, 1]}
        events = far.receive(
            far.message("news", 3, b"x"),
            *[far.text({"message": {**row, "offset": None}})] * 2,
            far.message("news", 4, b"x"),
            far.batch(b"yz", **batch),
            far.batch(b"yz", **batch, topics=["news", "sport"], indexes=[0, 1]),
        )
        assert [event.offsets for event in events if isinstance(event, Messages)] == [
            [3], None, [4], None,
        ]  # fmt: skip
        (mixed,) = [event for event in events if isinstance(event, MixedMessages)]
        assert (mixed.topics, mixed.offsets) == (("news", "sport"), None)
        assert positions(far)[NEWS] == f"{EPOCH}:5"

    def test_a_subscription_that_is_ended(self) -> None:
        far = subscribed(NEWS)
        revoked = far.text({"revoked": {"topic": "news"}})
        events = far.receive(far.message("news", 3, b"x"), revoked, far.message("news", 4, b"y"))
        assert flat(events) == [("news", b"bob", b"x")]
        assert others(events) == [SubscriptionEnded(NEWS, "it may not be read any more")]

    def test_messages_of_a_subscription_before_this_one(self) -> None:
        """A message that was on its way is not one of the new subscription."""
        for sizes in ((1,), (65_536,)):
            far = subscribed(NEWS)
            far.connection.unsubscribe(NEWS)
            far.connection.subscribe(NEWS)
            data = far.message("news", 3, b"x") + far.ok(3, topic="news")
            data += far.ok(4, topic="news", start=9, epoch=EPOCH)
            assert receive_cut(far.connection, data, sizes) == [Subscribed(NEWS)]
            assert positions(far) == {NEWS: f"{EPOCH}:9"}

    def test_unknown_notices_are_ignored(self) -> None:
        far = subscribed(NEWS)
        assert far.receive(far.text({"later": {}}), far.text({})) == []

    def test_fragments_with_a_ping_between(self) -> None:
        far = subscribed(NEWS)
        far.connection.ping()
        assert far.requests() == [{"id": 3, "op": "ping"}]
        far.server.send_text(b'{"id": 3, ', fin=False)
        far.server.send_ping(b"between")
        far.server.send_continuation(b'"ok": ', fin=False)
        far.server.send_continuation(b"{}}", fin=True)
        assert receive_cut(far.connection, far.sent()) == [Alive()]
        assert b"between" not in far.connection.take_output()


ITEMS = st.lists(
    st.one_of(
        st.just(None),
        st.tuples(st.sampled_from(["news", "sport", "none"]), st.binary(max_size=200)),
    ),
    max_size=30,
)


class PropertyTests(SynchronousTestCase):
    @given(ITEMS, st.lists(st.integers(1, 90), min_size=1))
    def test_events_are_the_same_however_the_stream_is_cut(
        self, items: list[tuple[str, bytes] | None], sizes: list[int]
    ) -> None:
        far = subscribed(NEWS, SPORT)
        data, number = b"", 4
        expected: list[tuple[str, bytes | None, bytes] | None] = []
        for offset, item in enumerate(items, 3):
            if item is None:
                far.connection.ping()
                data += far.ok(number)
                number += 1
                expected.append(None)
                continue
            data += far.message(item[0], offset, item[1])
            if item[0] != "none":
                expected.append((item[0], b"bob", item[1]))
        assert in_order(receive_cut(far.connection, data, sizes)) == expected

    @given(st.binary(max_size=200), st.lists(st.integers(1, 60), min_size=1))
    def test_any_bytes_are_survived(self, data: bytes, sizes: list[int]) -> None:
        for role in Role:
            whole, pieces = upgraded(role).connection, upgraded(role).connection
            assert whole.receive(data) == receive_cut(pieces, data, sizes)
            before = HandMade(make(role)).connection
            again = HandMade(make(role)).connection
            assert before.receive(data) == receive_cut(again, data, sizes)


def in_order(events: list[WireEvent]) -> list[tuple[str, bytes | None, bytes] | None]:
    """Return the messages, and None for each other event."""
    found: list[tuple[str, bytes | None, bytes] | None] = []
    for event in events:
        found += flat([event]) if isinstance(event, Messages) else [None]
    return found
