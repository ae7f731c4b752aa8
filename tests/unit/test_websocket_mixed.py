"""Messages of several topics that a request of a WebSocket publishes at once."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.publishing.publisher_gates import Gate
from pubsub.broker.topic_space.durability import Durability
from pubsub.errors import HistoryUnavailable
from pubsub.http_api.publishing.message_body import MAX_JOINED
from pubsub.http_api.requests.flow_control import WAIT_SECONDS
from tests.unit.fakes import Held
from tests.unit.web import WebHouse
from tests.unit.web_sockets import connected, mixed, request_of

SENT = [("a", b"1"), ("b", b"22"), ("b", b""), ("a", b"3")]


class MixedRequestTests(SynchronousTestCase):
    """Requests with the member ``topics``"""

    def start(self, **options: Any) -> None:
        """Start a broker that has the topics a, b and c."""
        self.house = WebHouse(**options)
        self.topics = [self.house.broker.topics.create(name) for name in "abc"]
        self.client = connected(self.house)

    def rows(self) -> list[tuple[str, str]]:
        """Return topic and value of all messages, in their order."""
        rows = self.house.get("/v1/topics/a/messages?topic=b&topic=c").lines
        assert [row["offset"] for row in rows] == list(range(len(rows)))
        return [(row["topic"], row["value"]) for row in rows]

    def send(self, topics: str = "ab") -> Any:
        """Return the reply to the request with SENT."""
        return mixed(self.client, list(topics), SENT)

    def assert_all(self, reply: Any) -> None:
        assert reply["ok"] == {"offset": 0, "messages": 4, "level": "handled"}
        assert self.rows() == [(topic, value.decode()) for topic, value in SENT]

    def test_a_request_takes_one_turn(self) -> None:
        self.start()
        sent = [("ab"[number % 2], b"x") for number in range(MAX_JOINED)]
        head = json.dumps({"id": 1, **request_of(["a", "b"], sent)}).encode()
        self.client.frames.send_binary(len(head).to_bytes(4, "big") + head + b"x" * MAX_JOINED)
        self.client.stream.feed(b"".join(self.client.frames.data_to_send()))
        assert self.house.store.next_offset == MAX_JOINED

    def test_the_same_topics_again_and_in_another_order(self) -> None:
        self.start()
        for topics in ("ab", "ba", "ab", "ba"):
            assert self.send(topics)["ok"]["messages"] == 4
        assert self.rows() == 4 * [(topic, value.decode()) for topic, value in SENT]

    def test_senders_headers_and_figures(self) -> None:
        self.start()
        headers = [{"key": "k", "value": "v"}]
        request = {**request_of(["a", "b"], SENT), "headers": headers, "sender": "me"}
        self.client.send_binary(b"1223", **request)
        assert self.client.pull()[0]["ok"]["messages"] == 4
        rows = self.house.get("/v1/topics/a/messages?topic=b&headers=1").lines
        assert [(row["key"], row["headers"]) for row in rows] == [("bWU=", headers)] * 4
        assert [(topic.messages, topic.nbytes) for topic in self.topics] == [(2, 2), (2, 2), (0, 0)]

    def test_subscribers_get_them_in_order(self) -> None:
        self.start()
        follower = connected(self.house)
        for topic in ("a", "b"):
            follower.ask("subscribe", topic=topic)
        self.send()
        assert follower.values() == [value.decode() for _, value in SENT]

    def test_a_topic_that_has_no_messages(self) -> None:
        self.start(allow_publish=["a", "b"], allow_subscribe="*")
        self.assert_all(self.send("acb"))
        assert self.topics[2].messages == 0

    def test_a_topic_that_may_not_be_published_to(self) -> None:
        self.start(allow_publish=["a"], allow_subscribe="*")
        ok = self.send()["ok"]
        assert (ok["messages"], ok["refused"], ok["error"]["code"]) == (2, 2, "not-authorized")
        assert self.rows() == [("a", "1"), ("a", "3")]

    def test_a_topic_that_is_there_twice(self) -> None:
        self.start()
        self.client.send_binary(
            b"123", op="publish", topics=["a", "b", "a"], indexes=[2, 1, 0], sizes=[1, 1, 1]
        )
        assert self.client.pull()[0]["ok"]["messages"] == 3
        assert self.rows() == [("a", "1"), ("b", "2"), ("a", "3")]

    def test_one_topic_is_not_stored(self) -> None:
        self.start()
        self.topics[1].set_durability(Durability.NONE)
        assert self.send()["ok"] == {"offset": 0, "messages": 4, "level": "handled"}
        assert self.rows() == [("a", "1"), ("a", "3")]

    def test_the_topic_of_the_first_message_is_not_stored(self) -> None:
        self.start()
        self.topics[0].set_durability(Durability.NONE)
        assert self.send()["ok"] == {"offset": None, "messages": 4, "level": "handled"}
        assert self.rows() == [("b", "22"), ("b", "")]

    def test_a_topic_is_stored_from_later_on(self) -> None:
        self.start()
        # As a history on disk.
        self.house.store.durable = True
        holder = Held()
        self.topics[0].set_durability(Durability.NONE)
        self.topics[1].block(holder)
        self.client.send_binary(b"12", **request_of(["a", "b"], [("a", b"1"), ("b", b"2")]))
        assert self.client.pull() == []
        # As by a reload of the configuration.
        self.topics[0].set_durability(Durability.ASYNC)
        self.topics[1].unblock(holder)
        ok = self.client.pull()[0]["ok"]
        assert ok == {"offset": None, "messages": 2, "level": "handled"}
        assert self.rows() == [("b", "2")]

    def test_no_topic_is_stored(self) -> None:
        self.start()
        for topic in self.topics:
            topic.set_durability(Durability.NONE)
        assert self.send()["ok"] == {"offset": None, "messages": 4, "level": "handled"}
        assert [topic.messages for topic in self.topics] == [2, 2, 0]

    def test_the_rate_limit_admits_some(self) -> None:
        self.start(rate_messages=3)
        ok = self.send()["ok"]
        assert (ok["messages"], ok["refused"], ok["error"]["code"]) == (3, 1, "rate-limited")
        assert self.rows() == [("a", "1"), ("b", "22"), ("b", "")]

    def test_all_are_charged_to_the_rate_limit(self) -> None:
        self.start(rate_messages=7)
        assert self.send()["ok"]["messages"] == 4
        assert self.send()["ok"]["messages"] == 3

    def test_one_topic_is_held_by_its_subscriber(self) -> None:
        self.start()
        holder = Held()
        self.topics[0].block(holder)
        self.client.send_binary(b"1223", **request_of(["a", "b"], SENT))
        assert self.client.pull() == []
        self.topics[0].unblock(holder)
        self.assert_all(self.client.pull()[0])

    def test_a_topic_ends_while_the_history_holds_publishers(self) -> None:
        self.start()
        self.house.store.gate = gate = Gate()
        gate.close()
        self.client.send_binary(b"1223", **request_of(["a", "b"], SENT))
        assert self.client.pull() == []
        self.house.broker.topics.remove(self.topics[1])
        gate.open()
        assert self.client.pull()[0]["ok"]["messages"] == 4
        assert self.rows() == [(topic, value.decode()) for topic, value in SENT]

    def test_publishers_are_held_for_too_long(self) -> None:
        self.start()
        self.house.store.gate = gate = Gate()
        gate.close()
        self.client.send_binary(b"1223", **request_of(["a", "b"], SENT))
        self.house.pass_time(WAIT_SECONDS + 1)
        (reply,) = self.client.pull()
        assert reply["error"]["code"] == "rate-limited"
        assert self.house.store.next_offset == 0
        assert self.house.broker.counters.refusals["http", "rate-limited"] == 1

    def test_topics_of_others_are_not_kept_by_a_refusal(self) -> None:
        self.start(allow_publish=[], allow_subscribe="*")
        follower = connected(self.house)
        for topic in "xy":
            follower.ask("subscribe", topic=topic)
        reply = mixed(self.client, ["x", "y"], [("x", b"1"), ("y", b"2")])
        assert reply["error"]["code"] == "not-authorized"
        for topic in "xy":
            follower.ask("unsubscribe", topic=topic)
        self.house.pass_time(1)
        topics = self.house.broker.topics
        assert "x" not in topics
        assert "y" not in topics

    def test_the_history_is_not_available(self) -> None:
        self.start()

        def refuse(*_: object) -> None:
            raise HistoryUnavailable("no-space")

        self.patch(self.house.store, "append", refuse)  # type: ignore[no-untyped-call]
        assert self.send()["error"]["code"] == "history-unavailable"
        assert [topic.messages for topic in self.topics] == [0, 0, 0]


class HeadersTests(SynchronousTestCase):
    """Requests with headers of each message"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.client = connected(self.house)

    def rows(self) -> list[Any]:
        return self.house.get("/v1/topics/a/messages?topic=b&headers=1").lines

    def send(self, each: list[Any], **members: object) -> Any:
        """Return the reply to a request with SENT and these headers."""
        request = {**request_of(["a", "b"], SENT), "headers": each, **members}
        self.client.send_binary(b"1223", **request)
        (reply,) = self.client.pull()
        return reply

    def test_of_several_topics(self) -> None:
        each = [[{"key": "k", "value": str(number)}] * (number % 2) for number in range(4)]
        # The topics are new for the first request, and known for the second one.
        for _ in range(2):
            assert self.send(each)["ok"]["messages"] == 4
        assert [row["headers"] for row in self.rows()] == 2 * each

    def test_of_one_topic(self) -> None:
        each = [[], [{"key": "k", "value": "v"}, {"key": "l", "value_base64": "/w=="}]]
        members = {"op": "publish", "topic": "a", "sizes": [1, 1]}
        self.client.send_binary(b"12", **members, headers=each)
        assert self.client.pull()[0]["ok"]["messages"] == 2
        assert [row["headers"] for row in self.rows()] == each

    def test_a_rate_limit_admits_the_first(self) -> None:
        self.house = WebHouse(rate_messages=2)
        self.client = connected(self.house)
        each = [[{"key": "k", "value": str(number)}] for number in range(4)]
        assert self.send(each)["ok"]["refused"] == 2
        assert [row["headers"] for row in self.rows()] == each[:2]

    def test_none_has_some(self) -> None:
        assert self.send([[]] * 4)["ok"]["messages"] == 4
        assert [row["headers"] for row in self.rows()] == [[]] * 4

    def test_headers_that_are_refused(self) -> None:
        one = [{"key": "k", "value": "v"}]
        wrong: list[list[Any]] = [
            [one] * 3, [one] * 5, [one, one, one, {}], [one, one, one, None], [{}, one, one, one],
            [one, one, one, [{"key": "k"}]], [one, one, one, [5]], [[[]], one, one, one],
            [one, one, one, [{"key": 5, "value": "v"}]],
            [one, one, one, [{"key": "k", "value": "v", "x": 1}]],
        ]  # fmt: skip
        for each in wrong:
            assert self.send(each)["error"]["code"] == "invalid-request", each
        assert self.client.refused("publish", topic="a", value="x", headers=[one]) == (
            "invalid-request"
        )
        assert self.house.store.next_offset == 0

    def test_others_are_served_meanwhile(self) -> None:
        each = [[{"key": "k", "value": str(number)}] * 4 for number in range(MAX_JOINED)]
        head = {"id": 1, "op": "publish", "topic": "a", "sizes": [1] * MAX_JOINED, "headers": each}
        raw = json.dumps(head).encode()
        self.client.frames.send_binary(len(raw).to_bytes(4, "big") + raw + b"x" * MAX_JOINED)
        self.client.stream.feed(b"".join(self.client.frames.data_to_send()))
        # Their memory is counted until they are published, which takes another turn.
        assert self.house.store.next_offset == 0
        assert self.house.broker.memory.used > 4 * MAX_JOINED * 500
        assert self.client.pull()[0]["ok"]["messages"] == MAX_JOINED
        assert self.house.broker.memory.used < 4 * MAX_JOINED * 500

    def test_most_of_the_memory_is_in_use(self) -> None:
        memory = self.house.broker.memory
        memory.add(9_000_000)
        memory.limit = 10_000_000
        assert self.send([[]] * 4)["ok"]["messages"] == 4
        assert self.send([[{"key": "k", "value": "v"}]] * 4)["ok"]["messages"] == 4

    def test_there_is_no_memory_for_them(self) -> None:
        memory = self.house.broker.memory
        memory.limit = memory.used + 50_000
        each = [[{"key": "k", "value": "v"}] * 20] * 4
        assert self.send(each)["error"]["code"] == "memory"
        assert self.house.store.next_offset == 0
