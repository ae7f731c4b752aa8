"""Requests of a WebSocket that publish several messages."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.frame_turns import FRAMES
from pubsub.broker.memory_budget import INPUT
from pubsub.http_api.publishing.message_body import MAX_JOINED
from pubsub.http_api.requests.flow_control import WAIT_SECONDS
from tests.unit.fakes import Held
from tests.unit.web import WebHouse
from tests.unit.web_sockets import SocketClient, connected, mixed, request_of


def publish(client: SocketClient, payload: bytes, **members: object) -> Any:
    """Return the reply to a request in a binary frame."""
    number = client.send_binary(payload, op="publish", topic="a", **members)
    (reply,) = client.pull()
    assert reply["id"] == number
    return reply


class SeveralTests(SynchronousTestCase):
    """The member ``sizes`` of publish"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.client = connected(self.house)

    def rows(self) -> list[Any]:
        return self.house.get("/v1/topics/a/messages?headers=1").lines

    def test_the_first_reply_has_the_limits(self) -> None:
        client = SocketClient(WebHouse(max_message=70_000))
        answer = client.ask("connect")
        assert (answer["max_messages"], answer["max_bytes"]) == (MAX_JOINED, 70_000)

    def test_they_are_published_in_order(self) -> None:
        reply = publish(self.client, b"onethree", sizes=[3, 0, 5], sender="me")
        assert reply["ok"] == {"offset": 0, "messages": 3, "level": "handled"}
        rows = self.rows()
        assert [row["value"] for row in rows] == ["one", "", "three"]
        assert {row["key"] for row in rows} == {"bWU="}

    def test_each_has_the_headers(self) -> None:
        headers = [{"key": "k", "value": "v"}]
        publish(self.client, b"ab", sizes=[1, 1], headers=headers)
        assert [row["headers"] for row in self.rows()] == [headers] * 2

    def test_as_many_as_a_request_may_have(self) -> None:
        reply = publish(self.client, b"x" * MAX_JOINED, sizes=[1] * MAX_JOINED)
        assert reply["ok"]["messages"] == MAX_JOINED

    def test_sizes_that_are_refused(self) -> None:
        sizes: list[Any] = [
            [], [1], [2, 2], [4, -1], [-1, 4], [1.0, 2], [True, 2], ["1", 2], [None], {}, 3, "3",
            [2**64, 3 - 2**64], [0] * (MAX_JOINED + 1),
        ]  # fmt: skip
        for wrong in sizes:
            assert publish(self.client, b"abc", sizes=wrong)["error"]["code"] == "invalid-request"
        assert self.client.refused("publish", topic="a", value="x", sizes=[1]) == "invalid-request"
        assert self.client.ask("ping") == {}
        assert not self.rows()

    def test_a_rate_limit_admits_the_first(self) -> None:
        house = WebHouse(rate_messages=3)
        client = connected(house)
        assert publish(client, b"ab", sizes=[1, 1])["ok"]["messages"] == 2
        headers = [{"key": "k", "value": "v"}]
        ok = publish(client, b"cde", sizes=[1, 1, 1], headers=headers)["ok"]
        assert (ok["messages"], ok["refused"]) == (1, 2)
        assert publish(client, b"f", sizes=[1])["error"]["code"] == "rate-limited"
        rows = house.get("/v1/topics/a/messages").lines
        assert [row["value"] for row in rows] == ["a", "b", "c"]
        assert house.broker.counters.refusals["http", "rate-limited"] == 3

    def test_several_topics(self) -> None:
        reply = mixed(self.client, ["a", "b"], [("a", b"1"), ("b", b"22"), ("b", b""), ("a", b"3")])
        assert reply["ok"] == {"offset": 0, "messages": 4, "level": "handled"}
        found = self.house.get("/v1/topics/a/messages?topic=b").lines
        assert [(row["topic"], row["value"]) for row in found] == [
            ("a", "1"), ("b", "22"), ("b", ""), ("a", "3"),
        ]  # fmt: skip

    def test_one_of_several_topics_is_refused(self) -> None:
        house = WebHouse(allow_publish=["a", "c"], allow_subscribe="*")
        client = connected(house)
        sent = [("b", b"0"), ("a", b"1"), ("b", b"2"), ("b", b"3"), ("c", b"4")]
        ok = mixed(client, ["a", "b", "c"], sent)["ok"]
        assert (ok["offset"], ok["messages"], ok["refused"]) == (0, 2, 3)
        assert (ok["error"]["code"], ok["error"]["topic"]) == ("not-authorized", "b")
        found = house.get("/v1/topics/a/messages?topic=c").lines
        assert [row["value"] for row in found] == ["1", "4"]
        assert house.broker.counters.refusals["http", "not-authorized"] == 2

    def test_all_of_several_topics_are_refused(self) -> None:
        client = connected(WebHouse(allow_publish="a", allow_subscribe="*"))
        reply = mixed(client, ["b", "c"], [("b", b"1"), ("c", b"2")])
        assert reply["error"]["code"] == "not-authorized"
        assert "ok" not in reply

    def test_a_rate_limit_and_several_topics(self) -> None:
        client = connected(WebHouse(rate_messages=2))
        ok = mixed(client, ["a", "b"], [("a", b"1"), ("b", b"2"), ("b", b"3"), ("a", b"4")])["ok"]
        assert (ok["messages"], ok["refused"], ok["error"]["code"]) == (2, 2, "rate-limited")

    def test_all_topics_wait_for_backpressure_together(self) -> None:
        for name in ("a", "b"):
            self.house.broker.topics.create(name).block(Held())
        sent = [("abc"[number % 3], b"x") for number in range(10)]
        self.client.send_binary(b"x" * 10, **request_of(["a", "b", "c"], sent))
        assert self.client.pull() == []
        self.house.pass_time(WAIT_SECONDS + 1)
        (reply,) = self.client.pull()
        assert reply["error"]["code"] == "rate-limited"
        assert self.house.store.next_offset == 0
        assert self.client.ask("ping") == {}

    def test_topics_that_are_released_one_after_another_wait_together(self) -> None:
        names = ["a", "b", "c"]
        held = [(self.house.broker.topics.create(name), Held()) for name in names]
        for topic, holder in held:
            topic.block(holder)
        self.client.send_binary(b"123", **request_of(names, [(name, b"x") for name in names]))
        for topic, holder in held[:2]:
            self.house.pass_time(WAIT_SECONDS / 2 - 1)
            topic.unblock(holder)
        assert self.client.pull() == []
        self.house.pass_time(3)
        (reply,) = self.client.pull()
        assert (reply["ok"]["messages"], reply["ok"]["refused"]) == (2, 1)
        assert reply["ok"]["error"]["code"] == "rate-limited"

    def test_topics_that_are_malformed(self) -> None:
        right = {"topics": ["a", "b"], "indexes": [0, 1, 1], "sizes": [1, 1, 1]}
        wrong: list[dict[str, Any]] = [
            {"topics": []}, {"topics": "ab"}, {"topics": ["a", 5]}, {"topics": ["a", ""]},
            {"topics": ["a"]}, {"topics": ["a"] * (MAX_JOINED + 1)}, {"indexes": [0, 1]},
            {"indexes": [0, 1, 2]}, {"indexes": [0, 1, -1]}, {"indexes": [0, 1, True]},
            {"indexes": [0, 1, 1.0]}, {"indexes": None}, {"indexes": 3}, {"sizes": [1, 2]},
            {"sizes": [3]}, {"sizes": None}, {"topic": "a"},
        ]  # fmt: skip
        for changed in wrong:
            self.client.send_binary(b"abc", op="publish", **{**right, **changed})
            (reply,) = self.client.pull()
            assert reply["error"]["code"] == "invalid-request", changed
        assert self.house.store.next_offset == 0
        assert self.client.refused("publish", **right, value="x") == "invalid-request"

    def test_others_are_served_between_the_runs_of_a_request(self) -> None:
        sent = [("ab"[number % 2], b"x") for number in range(MAX_JOINED)]
        head = json.dumps({"id": 1, **request_of(["a", "b"], sent)}).encode()
        self.client.frames.send_binary(len(head).to_bytes(4, "big") + head + b"x" * MAX_JOINED)
        self.client.stream.feed(b"".join(self.client.frames.data_to_send()))
        assert 0 < self.house.store.next_offset <= FRAMES
        (reply,) = self.client.pull()
        assert reply["ok"]["messages"] == self.house.store.next_offset == MAX_JOINED

    def test_the_broker_stops_between_the_runs_of_a_request(self) -> None:
        sent = [("ab"[number % 2], b"x") for number in range(MAX_JOINED)]
        head = json.dumps({"id": 1, **request_of(["a", "b"], sent)}).encode()
        self.client.frames.send_binary(len(head).to_bytes(4, "big") + head + b"x" * MAX_JOINED)
        self.client.stream.feed(b"".join(self.client.frames.data_to_send()))
        self.house.broker.stopService()
        assert 0 < self.house.store.next_offset <= FRAMES
        (reply,) = self.client.pull()
        assert reply["ok"]["messages"] == self.house.store.next_offset == MAX_JOINED
        assert self.client.close_code == 1001

    def test_the_broker_stops_and_the_client_reads_its_replies_later(self) -> None:
        self.client.stream.feed(self.many())
        self.house.broker.stopService()
        self.client.stream.stop_reading()
        self.house.clock.pump([0] * 9)
        assert self.house.store.next_offset == 8 * MAX_JOINED
        self.client.stream.read()
        replies = self.client.pull()
        assert [one["ok"]["messages"] for one in replies] == [MAX_JOINED] * 8
        assert self.client.close_code == 1001

    def many(self) -> bytes:
        """Return eight requests, which take several turns."""
        sent = []
        for number in range(8):
            head = json.dumps(
                {"id": number, "op": "publish", "topic": "a", "sizes": [1] * MAX_JOINED}
            )
            data = len(head).to_bytes(4, "big") + head.encode() + b"x" * MAX_JOINED
            self.client.frames.send_binary(data)
            sent += self.client.frames.data_to_send()
        return b"".join(sent)

    def test_a_client_that_leaves_between_them(self) -> None:
        """What has arrived of the next request is not charged to a client that is gone."""
        memory = self.house.broker.memory
        self.client.stream.feed(self.many() + b"\x82\xfe\x0f\x00abcd" + bytes(1000))
        assert memory.held[INPUT] > 1000
        self.client.stream.lose()
        self.house.clock.advance(1)
        assert memory.held[INPUT] == 0

    def test_others_are_served_between_many(self) -> None:
        self.client.stream.feed(self.many())
        assert self.client.stream.paused
        assert self.house.store.next_offset == 4 * MAX_JOINED
        replies = self.client.pull()
        assert [one["ok"]["messages"] for one in replies] == [MAX_JOINED] * 8
        assert not self.client.stream.paused
