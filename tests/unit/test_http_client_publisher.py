"""The client library's publishers over the HTTP API, with replies made by hand."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client.http_wire import CLIENT
from pubsub.kernel import Columns
from pubsub.wire.client_events import Confirmed, Level, Malformed
from pubsub.wire.client_wire import Role, WireOptions
from tests.unit.http_ends import upgraded

NOT_A_FRAME = Malformed("a frame is not one of pubsub.v1.json")
GAP = {"start": 3, "stop": 5, "reason": "expired"}


class PublisherTests(SynchronousTestCase):
    def test_the_requests(self) -> None:
        far = upgraded(Role.PUBLISHER)
        far.connection.publish("caf\xe9", Columns.of([b"\0\xff", b""]))
        far.connection.publish("news", Columns.one(b"x"), b"bob\xff", {"k": b"\xff"})
        head = {"id": 2, "op": "publish", "topic": "caf\xe9"}
        assert far.requests() == [
            (head, b"\0\xff"),
            ({**head, "id": 3}, b""),
            (
                {
                    "id": 4,
                    "op": "publish",
                    "topic": "news",
                    "sender": "bob\ufffd",
                    "headers": [{"key": "k", "value_base64": "/w=="}],
                },
                b"x",
            ),
        ]

    def test_senders_and_headers_that_no_request_carries(self) -> None:
        wire = CLIENT.make_wire(WireOptions(values={"max-message": 8192}))
        one = Columns.of([b"", bytes(4000)])
        for sender, headers, problem in (
            (None, None, ""),
            ("zo\xeb".encode(), {"a": bytes(30)}, ""),
            (b"\xff", None, "the sender is not UTF-8"),
            # 108 bytes in base64, and the name.
            (None, {"a": bytes(80)}, "4143 bytes with its headers are more than 4096"),
            (None, {"n" * 90: b""}, "4124 bytes with its headers are more than 4096"),
        ):
            assert wire.envelope_problem(one, sender, headers) == problem

    def test_replies_in_another_order(self) -> None:
        """Topics are confirmed independently; confirmations keep the order of the requests."""
        far = upgraded(Role.PUBLISHER)
        for topic in ("a", "b", "c"):
            far.connection.publish(topic, Columns.one(b"x"))
            far.connection.confirm()
        stored = {"offset": 0, "messages": 1, "level": "stored"}
        assert far.receive(far.ok(4, **stored)) == []
        assert far.receive(far.ok(2, **{**stored, "level": "handled"})) == [
            Confirmed(1, Level.HANDLED)
        ]
        assert far.receive(far.error(3, "not-authorized", "no")) == [
            Confirmed(1, Level.STORED, 1, "no"),
            Confirmed(1, Level.STORED),
        ]

    def test_the_level_is_the_lowest(self) -> None:
        far = upgraded(Role.PUBLISHER)
        far.connection.publish("a", Columns.of([b"x", b"y", b"z"]))
        far.connection.confirm()
        levels = ("stored", "handled", "stored")
        data = [far.ok(number, level=level) for number, level in enumerate(levels, 2)]
        assert far.receive(*data) == [Confirmed(3, Level.HANDLED)]

    def test_the_first_reason_is_kept(self) -> None:
        far = upgraded(Role.PUBLISHER)
        far.connection.publish("a", Columns.of([b"x", b"y"]))
        far.connection.confirm()
        events = far.receive(far.error(2, "a", "first"), far.error(3, "b", "second"))
        assert events == [Confirmed(2, Level.STORED, 2, "first")]

    def test_everything_is_answered_before_the_confirm(self) -> None:
        far = upgraded(Role.PUBLISHER)
        far.connection.publish("a", Columns.of([b"x", b"y"]))
        assert len(far.requests()) == 2
        assert far.receive(far.ok(2, level="stored"), far.error(3, "e", "no")) == []
        # A flush that waits sees that the broker goes on.
        assert far.connection.replies == 2
        far.connection.confirm()
        assert far.requests() == [{"id": 4, "op": "ping"}]
        assert far.receive(far.ok(4)) == [Confirmed(2, Level.STORED, 1, "no")]

    def test_a_confirm_of_nothing(self) -> None:
        far = upgraded(Role.PUBLISHER)
        far.connection.confirm()
        assert far.receive(far.ok(2)) == [Confirmed(0, Level.STORED)]

    def test_notices_are_not_for_publishers(self) -> None:
        far = upgraded(Role.PUBLISHER)
        assert far.receive(far.text({"gap": GAP}), far.message("news", 3, b"x")) == []

    def test_a_reply_that_comes_twice(self) -> None:
        far = upgraded(Role.PUBLISHER)
        far.connection.publish("a", Columns.one(b"x"))
        assert len(far.requests()) == 1
        reply = far.ok(2, level="stored")
        assert far.receive(reply, reply) == [NOT_A_FRAME]


class SeveralTests(SynchronousTestCase):
    """A broker that takes several messages in a request"""

    def setUp(self) -> None:
        self.far = upgraded(Role.PUBLISHER, max_messages=4, max_bytes=1000)
        self.connection = self.far.connection

    def requests(self) -> list[tuple[int, str, object, bytes]]:
        """Return the id, topic, sizes and payload of each request."""
        return [
            (head["id"], head["topic"], head.get("sizes"), payload)
            for head, payload in self.far.requests()
        ]

    def test_messages_that_are_alike_are_sent_together(self) -> None:
        for payload in (b"1", b"", b"333"):
            self.connection.publish("a", Columns.one(payload))
        self.connection.publish("b", Columns.of([b"x", b"y"]))
        self.connection.publish("b", Columns.one(b"z"), b"me")
        self.connection.publish("b", Columns.one(b"z"), b"me", {"k": b"v"})
        assert self.requests() == [
            (2, "a", [1, 0, 3], b"1333"),
            (3, "b", [1, 1], b"xy"),
            (4, "b", None, b"z"),
            (5, "b", None, b"z"),
        ]

    def test_only_so_many(self) -> None:
        self.connection.publish("a", Columns.of([b"%d" % number for number in range(6)]))
        assert self.requests() == [(2, "a", [1] * 4, b"0123"), (3, "a", [1] * 2, b"45")]

    def test_only_so_large(self) -> None:
        self.connection.publish("a", Columns.of([bytes(400), bytes(400), bytes(400), bytes(800)]))
        assert [len(payload) for _, _, _, payload in self.requests()] == [800, 400, 800]

    def test_one_that_is_larger_than_the_broker_takes_is_refused_here(self) -> None:
        """The broker would end the connection, and the others would be uncertain."""
        self.connection.publish("a", Columns.of([b"x", bytes(2000), b"y"]))
        self.connection.confirm()
        assert [payload for _, _, _, payload in self.requests()] == [b"x", b"y"]
        ok = (self.far.ok(number, level="stored") for number in (2, 3))
        reason = "a message of 2000 bytes is more than the broker takes"
        assert self.far.receive(*ok) == [Confirmed(3, Level.STORED, 1, reason)]

    def test_only_one_that_is_too_large(self) -> None:
        self.connection.publish("a", Columns.one(bytes(2000)))
        self.connection.confirm()
        (event,) = self.far.receive(self.far.ok(2))
        assert isinstance(event, Confirmed)
        assert (event.published, event.refused) == (1, 1)

    def test_a_confirm_sends_the_rest(self) -> None:
        self.connection.publish("a", Columns.of([b"x", b"y"]))
        self.connection.confirm()
        self.connection.publish("a", Columns.one(b"z"))
        assert self.requests() == [(2, "a", [1, 1], b"xy"), (3, "a", None, b"z")]
        assert self.far.receive(self.far.ok(2, level="stored")) == [Confirmed(2, Level.STORED)]

    def test_replies(self) -> None:
        self.connection.publish("a", Columns.of([b"%d" % number for number in range(12)]))
        self.connection.confirm()
        far = self.far
        assert len(far.requests()) == 3
        ok = far.ok(2, level="stored", messages=3, refused=1)
        assert far.receive(ok, far.error(3, "rate-limited", "no more")) == []
        (event,) = far.receive(far.ok(4, level="stored", messages=4))
        assert event == Confirmed(12, Level.STORED, 5, "the rate limit is exceeded")

    def test_replies_without_an_outcome(self) -> None:
        self.connection.publish("a", Columns.of([b"%d" % number for number in range(12)]))
        self.connection.confirm()
        far = self.far
        unknown = far.error(2, "unconfirmed", "not known", outcome="unknown")
        assert far.receive(unknown, far.error(3, "rate-limited", "no more")) == []
        (event,) = far.receive(far.ok(4, level="stored"))
        assert event == Confirmed(12, Level.STORED, 4, "not known", unknown=4)

    def test_topics_that_alternate(self) -> None:
        far = upgraded(Role.PUBLISHER, max_messages=4, max_bytes=1000, mixed=True)
        for topic, payload in (("a", b"1"), ("b", b"22"), ("a", b"3")):
            far.connection.publish(topic, Columns.one(payload))
        far.connection.publish("b", Columns.of([b"4", b"5", b"6"]))
        far.connection.publish("a", Columns.one(b"7"), b"me")
        far.connection.confirm()
        assert far.requests() == [
            (
                {
                    "id": 2, "op": "publish", "topics": ["a", "b"], "indexes": [0, 1, 0, 1],
                    "sizes": [1, 2, 1, 1],
                },
                b"12234",
            ),
            ({"id": 3, "op": "publish", "topic": "b", "sizes": [1, 1]}, b"56"),
            ({"id": 4, "op": "publish", "topic": "a", "sender": "me"}, b"7"),
        ]  # fmt: skip
        error = {"code": "not-authorized", "message": "permission denied"}
        ok = far.ok(2, level="stored", messages=3, refused=1, error=error)
        (event,) = far.receive(ok, far.ok(3, level="stored"), far.ok(4, level="stored"))
        assert event == Confirmed(7, Level.STORED, 1, "permission denied")

    def test_names_count_in_the_size_of_a_request(self) -> None:
        far = upgraded(Role.PUBLISHER, max_messages=1000, max_bytes=2000, mixed=True)
        for number in range(40):
            far.connection.publish(f"{number:0200}", Columns.one(b"x"))
        requests = far.requests()
        assert sum(len(payload) for _, payload in requests) == 40
        assert all(len(json.dumps(head)) < 2000 for head, _ in requests)
        assert len(requests) < 8

    def test_headers_of_each(self) -> None:
        far = upgraded(Role.PUBLISHER, max_messages=4, max_bytes=2000, mixed=True)
        for topic, headers in (("a", {"k": b"1"}), ("b", None), ("a", {"k": b"2", "l": b""})):
            far.connection.publish(topic, Columns.one(b"x"), None, headers)
        far.connection.publish("a", Columns.of([b"y", b"z", b"z"]), None, {"m": b"\xff"})
        rows = [
            [{"key": "k", "value_base64": "MQ=="}],
            [],
            [{"key": "k", "value_base64": "Mg=="}, {"key": "l", "value_base64": ""}],
            [{"key": "m", "value_base64": "/w=="}],
        ]
        first, second = far.requests()
        assert first[0]["headers"] == rows
        assert first[0]["indexes"] == [0, 1, 0, 0]
        assert (second[0]["headers"], second[0]["sizes"], second[1]) == (rows[3], [1, 1], b"zz")

    def test_headers_count_in_the_size_of_a_request(self) -> None:
        far = upgraded(Role.PUBLISHER, max_messages=1000, max_bytes=2000, mixed=True)
        for number in range(40):
            headers = {'"\n\x01' * 20: bytes(100), f"{number}": b"", "\u20ac": b"x"}
            far.connection.publish("a", Columns.one(b"x"), None, headers)
        requests = far.requests()
        assert sum(len(payload) for _, payload in requests) == 40
        assert all(len(json.dumps(head, ensure_ascii=False)) < 2000 for head, _ in requests)
        assert len(requests) < 20

    def test_payloads_of_one_size(self) -> None:
        assert self.connection.publish_alike("a", [b"1", b"2", b"3"])
        assert not self.connection.publish_alike("a", [bytes(1001)])
        self.connection.publish("a", Columns.one(b"44"))
        assert self.requests() == [(2, "a", [1, 1, 1, 2], b"12344")]

    def test_a_list_of_other_payloads_has_no_short_way(self) -> None:
        """One of another type would fail when some are sent, and leave a group without replies."""
        others: list[Any] = ["text", bytearray(b"b"), memoryview(b"m"), 7, None, b"22"]
        for other in others:
            assert not self.connection.publish_alike("a", [b"1", other])
            assert not self.connection.publish_alike("a", [b"1", b"2", other, b"3"])
        assert self.requests() == []
        self.connection.publish("a", Columns.one(b"x"))
        self.connection.confirm()
        assert self.requests() == [(2, "a", None, b"x")]
        assert self.far.receive(self.far.ok(2, level="stored")) == [Confirmed(1, Level.STORED)]
