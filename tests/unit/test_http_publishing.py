"""HTTP: publishing one message, and many in one request."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.fanout import Fanout
from pubsub.backplane.memory_engine.memory import MemoryBackplane, MemoryEngine
from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topic_lifecycle import TOPICS
from pubsub.errors import HistoryUnavailable
from pubsub.http_api.publishing.message_body import MAX_MESSAGES
from pubsub.http_api.requests.flow_control import WAIT_SECONDS
from pubsub.store.memory_store import MemoryStore
from tests.unit import proxy_headers
from tests.unit.fakes import Held
from tests.unit.slow_store import Slow
from tests.unit.web import Answer, WebHouse

PATH = "/v1/topics/a/messages"
ND = "application/x-ndjson"


class PublishTests(SynchronousTestCase):
    """POST /v1/topics/NAME/messages"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.client = self.house.connect()

    def stored(self, topic: str = "a") -> list[dict[str, Any]]:
        """Return the messages of a topic."""
        answer = self.house.get(f"/v1/history?start=0&topic={topic}&format=jsonl&headers=1")
        return answer.lines

    def test_a_body_is_a_message(self) -> None:
        answer = self.client.post(PATH, b"hello")
        assert answer.status == 200
        epoch = self.house.store.epoch
        assert answer.json == {"offset": 0, "messages": 1, "level": "handled", "epoch": epoch}
        (row,) = self.stored()
        assert (row["value"], row["protocol"], row["key"]) == ("hello", "http", "")
        assert row["headers"] == []

    def test_any_body(self) -> None:
        for body in (b"", b"\x00\xff", b'{"a": 1}\n{"b": 2}\n'):
            assert self.client.post(PATH, body).status == 200
        assert [row.get("value") for row in self.stored()] == ["", None, '{"a": 1}\n{"b": 2}\n']

    def test_the_type_of_a_form_is_not_parsed(self) -> None:
        answer = self.client.post(PATH, b"a=1", Content_Type="application/x-www-form-urlencoded")
        assert answer.status == 200
        assert self.stored()[0]["value"] == "a=1"

    def test_the_client_is_gone_while_its_request_waits(self) -> None:
        memory, holder = self.house.broker.memory, Held()
        self.house.broker.topics.create("a").block(holder)
        used = memory.used
        self.client.ask("POST", PATH, b"x" * 100_000)
        self.client.stream.lose()
        self.house.pass_time(1)
        assert memory.used >= used + 90_000
        self.house.broker.topics.named("a").unblock(holder)
        self.house.clock.advance(0)
        assert memory.used <= used
        assert len(self.stored()[0]["value"]) == 100_000

    def test_most_of_the_memory_is_in_use(self) -> None:
        memory = self.house.broker.memory
        memory.add(9_000_000)
        memory.limit = 10_000_000
        assert self.client.post(PATH, b"small").status == 200
        assert self.client.post(PATH, b'{"value": "line"}\n', Content_Type=ND).status == 200
        assert self.client.post(PATH, b"x" * 100_000).error == (503, "memory")
        lines = b'{"value": "line"}\n' * 1000
        assert self.client.post(PATH, lines, Content_Type=ND).error == (503, "memory")
        assert len(self.stored()) == 2

    def test_the_memory_of_headers_is_counted(self) -> None:
        memory, holder = self.house.broker.memory, Held()
        self.house.broker.topics.create("a").block(holder)
        used = memory.used
        headers = [{"key": str(number), "value": ""} for number in range(1000)]
        self.client.ask("POST", PATH, {"value": "", "headers": headers}, Content_Type=ND)
        assert memory.used >= used + 200_000

    def test_a_chunked_body(self) -> None:
        head = f"POST {PATH} HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        self.client.send(head + b"3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n")
        assert self.client.answer().status == 200
        assert self.stored()[0]["value"] == "hello"

    def test_names_are_one_percent_encoded_segment(self) -> None:
        assert self.client.post("/v1/topics/caf%C3%A9%2F7%20%25/messages", b"x").status == 200
        assert "café/7 %" in self.house.broker.topics
        for path in ("a/b", "", "%FF", "x" * 256, "%zz", "a%", "a%2", "%2%30"):
            answer = self.client.post(f"/v1/topics/{path}/messages", b"x")
            assert answer.status in (400, 404), path
            assert answer.headers["Content-Type"] == "application/problem+json"

    def test_parameters_are_percent_encoded(self) -> None:
        for query in ("match=50%", "match=%2", "%zz=1", "match=%%20"):
            answer = self.client.get(f"/v1/topics?{query}")
            assert answer.error == (400, "invalid-request"), query
        assert self.client.get("/v1/topics?match=50%25").status == 200

    def test_a_topic_named_messages_can_be_deleted(self) -> None:
        self.client.post("/v1/topics/messages/messages", b"x")
        answer = self.client.get("/v1/topics/messages/messages")
        assert [row["value"] for row in answer.lines] == ["x"]
        self.client.ask("POST", "/v1/topics/messages", b"x")
        assert self.client.answer("POST").error == (405, "method")

    def test_headers_of_the_request(self) -> None:
        self.client.post(PATH, b"x", Pubsub_Header_Kind="a b", Pubsub_Header_X="é")
        rows = {one["key"]: one["value"] for one in self.stored()[0]["headers"]}
        assert rows == {"kind": "a b", "x": "é"}

    def test_a_header_given_twice(self) -> None:
        head = f"POST {PATH} HTTP/1.1\r\nContent-Length: 1\r\n".encode()
        self.client.send(head + b"Pubsub-Header-A: 1\r\nPubsub-Header-A: 2\r\n\r\nx")
        assert self.client.answer().error == (400, "invalid-request")

    def test_a_header_without_a_name(self) -> None:
        answer = self.client.post(PATH, b"x", Pubsub_Header_="1")
        assert answer.error == (400, "invalid-request")
        assert self.stored() == []

    def test_the_sender(self) -> None:
        self.client.post(PATH, b"x", Pubsub_Sender="alice")
        self.client.post(PATH, b"x", token=self.house.token("publish"))
        self.client.post(PATH, b"x", token=self.house.token("publish"), Pubsub_Sender="carol")
        keys = [row["key"] for row in self.stored()]
        assert keys == ["YWxpY2U=", "Ym9i", "Y2Fyb2w="]
        answer = self.client.post(PATH, b"x", Pubsub_Sender="a" * 256)
        assert answer.error == (400, "invalid-request")

    def test_a_long_subject_is_refused(self) -> None:
        token = self.house.token("publish", sub="s" * 300)
        assert self.client.post(PATH, b"x", token=token).error == (400, "sender-too-long")

    def test_subscribers_of_other_protocols_receive_it(self) -> None:
        follower = self.house.connect()
        follower.ask("GET", PATH + "?follow=1")
        self.client.post(PATH, b"hello")
        assert b'"value": "hello"' in bytes(follower.stream.received)

    def test_expect_continue(self) -> None:
        head = f"POST {PATH} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n".encode()
        self.client.send(head)
        assert bytes(self.client.stream.received) == b"HTTP/1.1 100 Continue\r\n\r\n"
        self.client.stream.received.clear()
        self.client.send(b"hello")
        assert self.client.answer().status == 200

    def test_parameters_are_refused(self) -> None:
        assert self.client.post(PATH + "?sync=1", b"x").error == (400, "invalid-request")

    def test_other_methods(self) -> None:
        self.client.ask("PUT", PATH, b"x")
        answer = self.client.answer("PUT")
        assert answer.error == (405, "method")
        assert answer.headers["Allow"] == "GET, HEAD, POST, OPTIONS"
        at_topic = self.client.post(PATH.removesuffix("/messages"), b"x")
        assert at_topic.error == (405, "method")
        assert b"published with POST to /v1/topics/NAME/messages" in at_topic.body
        self.client.ask("OPTIONS", PATH)
        assert self.client.answer("OPTIONS").headers["Allow"] == "GET, HEAD, POST, OPTIONS"

    def test_a_problem_document(self) -> None:
        answer = self.client.post(PATH + "?x=1", b"x")
        assert answer.headers["Content-Type"] == "application/problem+json"
        message = "unknown parameter 'x'; expected none"
        assert answer.json == {
            "type": "about:blank",
            "title": "Bad Request",
            "status": 400,
            "detail": message,
            "error": "invalid-request",
            "message": message,
        }

    def test_requests_of_one_connection(self) -> None:
        for number in range(3):
            assert self.client.post(PATH, b"x").json["offset"] == number
        assert not self.client.closed

    def test_a_body_that_is_shorter_than_announced(self) -> None:
        self.client.send(f"POST {PATH} HTTP/1.1\r\nContent-Length: 9\r\n\r\nhello".encode())
        self.house.pass_time(22)
        assert self.client.answer().error == (408, "timeout")
        assert self.client.closed
        assert self.house.store.next_offset == 0

    def test_a_body_that_is_longer_than_announced(self) -> None:
        self.client.send(
            f"POST {PATH} HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello rest\r\n".encode()
        )
        answer = self.client.answer()
        assert answer.status == 200
        assert b"400 Bad Request" in answer.rest
        assert self.house.store.next_offset == 1

    def test_a_length_that_is_no_number(self) -> None:
        for length in ("-1", "x", "1, 2"):
            client = self.house.connect()
            client.send(f"POST {PATH} HTTP/1.1\r\nContent-Length: {length}\r\n\r\nx".encode())
            assert client.answer().status == 400
            assert client.closed

    def test_a_compressed_body(self) -> None:
        answer = self.client.post(PATH, b"x", Content_Encoding="gzip")
        assert answer.error == (415, "compressed")
        assert self.client.post(PATH, b"x", Content_Encoding="Identity").status == 200

    def test_the_client_leaves_with_half_a_body(self) -> None:
        self.client.send(f"POST {PATH} HTTP/1.1\r\nContent-Length: 9\r\n\r\nhello".encode())
        self.client.stream.lose()
        assert self.house.body_bytes == 0
        assert self.house.store.next_offset == 0


class HeadTests(SynchronousTestCase):
    """The head of a request"""

    def test_a_line_that_is_too_long(self) -> None:
        for head in (
            b"GET /" + bytes(20_000),
            b"GET /v1/topics HTTP/1.1\r\nHost: localhost\r\nA: " + b"a" * 17_000 + b"\r\n\r\n",
        ):
            house = WebHouse()
            client = house.connect()
            client.send(head)
            assert client.answer().error == (431, "too-large")
            assert client.closed
            assert house.broker.counters.refusals["http", "too-large"] == 1

    def test_one_that_is_malformed_or_too_long_as_a_whole(self) -> None:
        line = b"A: " + b"a" * 1000 + b"\r\n"
        for head in (b"GARBAGE\r\n", b"GET / HTTP/1.1\r\n" + line * 20, b"GET / HTTP/9\r\n"):
            house = WebHouse()
            client = house.connect()
            client.send(head)
            assert client.answer().error == (400, "invalid-request"), head
            assert client.closed
            assert house.broker.counters.refusals["http", "invalid-request"] == 1

    def test_the_first_bytes_of_other_protocols(self) -> None:
        """Their clients would wait for a reply as long as a request may take."""
        proxy = "unexpected-proxy-header", "put haproxy: before its endpoint"
        other = "invalid-request", "speaks HTTP"
        for data, (code, text) in (
            (b"PROXY TCP4 192.0.2.9 192.0.2.1 4000 7080\r\n", proxy),
            (proxy_headers.header(), proxy),
            (b'{"_class":"GetRequest","identity":"bob","after":0}\n', other),
            (b"\xfe\xca\x01\x07\0\0\0", other),
            (b"\x0a\0", other),
        ):
            house = WebHouse()
            client = house.connect()
            client.send(data)
            answer = client.answer()
            assert answer.error == (400, code)
            assert text in answer.json["message"]
            assert client.closed
            assert house.broker.counters.refusals == {("http", code): 1}
        client = WebHouse().connect()
        for part in (b"\r\n", b"G", b"ET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"):
            client.send(part)
        assert client.answer().status == 200

    def test_a_client_of_tls(self) -> None:
        house = WebHouse()
        client = house.connect()
        client.send(b"\x16\x03\x01\x02\0\x01" + bytes(511))
        answer = client.answer()
        assert answer.error == (400, "tls-not-served")
        assert answer.json["message"] == "this port does not speak TLS"
        assert house.broker.counters.refusals == {("http", "tls-not-served"): 1}

    def test_the_text_of_a_status_that_twisted_does_not_know(self) -> None:
        client = WebHouse().connect()
        client.send(b"GET /" + bytes(20_000))
        assert client.stream.received.startswith(
            b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
        )


class ManyTests(SynchronousTestCase):
    """Many messages in a request"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.client = self.house.connect()

    def post(self, *rows: object, **given: Any) -> Answer:
        """Publish lines of JSON."""
        body = b"".join(json.dumps(row).encode() + b"\n" for row in rows)
        return self.client.post(PATH, body, Content_Type=ND + "; charset=utf-8", **given)

    def test_each_line_is_a_message(self) -> None:
        headers = [{"key": "k", "value_base64": "/w=="}]
        answer = self.post(
            {"value": "a\nb"}, {"value_base64": "AP8="}, {"value": "", "headers": headers}
        )
        assert (answer.json["offset"], answer.json["messages"]) == (0, 3)
        rows = self.client.get(PATH + "?headers=1").lines
        assert [row.get("value") for row in rows] == ["a\nb", None, ""]
        assert rows[1]["value_base64"] == "AP8="
        assert [row["headers"] for row in rows] == [[], [], headers]
        assert len({row["timestamp"] for row in rows}) == 1

    def test_blank_lines_are_skipped(self) -> None:
        answer = self.client.post(PATH, b'\n{"value": "a"}\r\n\n{"value": "b"}', Content_Type=ND)
        assert answer.json["messages"] == 2

    def test_mistakes_name_their_line(self) -> None:
        good = {"value": "x"}
        for row, message in (
            (1, "line 2: expected a JSON object"),
            ({}, "line 2: expected either value or value_base64"),
            ({**good, "value_base64": ""}, "line 2: expected either value or value_base64"),
            ({"value": 1}, "line 2: value: expected text"),
            ({"value": "\ud800"}, "line 2: value: expected valid Unicode"),
            ({"value_base64": "?"}, "line 2: value_base64: expected base64"),
            ({"value_base64": 1}, "line 2: value_base64: expected base64"),
            ({**good, "topic": "b"}, "line 2: unknown member 'topic'; expected headers, value, "
                                     "value_base64"),
            ({**good, "headers": 1}, "line 2: headers: expected a list of at most 65535"),
            ({**good, "headers": [1]}, "line 2: headers: expected objects with key and value"),
            ({**good, "headers": [{"key": "k"}]}, "line 2: expected either value or value_base64"),
        ):  # fmt: skip
            answer = self.post(good, row)
            assert answer.error == (400, "invalid-request"), row
            assert answer.json["message"] == message
        for body in (b"{", b"\xff", b"[" * 10_000, b'{"value": 1%b}' % (b"0" * 5000)):
            answer = self.client.post(PATH, b"\n" + body, Content_Type=ND)
            assert answer.json["message"] == "line 2: not valid JSON"
        assert self.client.post(PATH, b"\n\n", Content_Type=ND).error == (400, "invalid-request")
        assert self.house.store.next_offset == 0

    def test_too_many(self) -> None:
        body = b'{"value":""}\n' * MAX_MESSAGES
        assert self.client.post(PATH, body, Content_Type=ND).json["messages"] == MAX_MESSAGES
        answer = self.client.post(PATH, body + b'{"value":""}', Content_Type=ND)
        assert answer.error == (413, "too-large")

    def test_long_bodies_are_parsed_in_a_thread(self) -> None:
        waiting: list[Any] = []

        def later(call: Any) -> Deferred[Any]:
            done: Deferred[Any] = Deferred()
            waiting.append((call, done))
            return done

        self.house.run_in_thread = later
        body = b'{"value":"x"}\n' * 1000
        self.client.ask("POST", PATH, body, Content_Type=ND)
        ((call, done),) = waiting
        used = self.house.broker.memory.used
        done.callback(call())
        self.house.clock.advance(0)
        assert self.client.answer("POST").json["messages"] == 1000
        assert self.house.broker.memory.used < used

    def test_there_is_no_memory_to_parse(self) -> None:
        self.house.broker.memory.limit = self.house.broker.memory.used + 100_000
        answer = self.client.post(PATH, b'{"value":"x"}\n' * 1000, Content_Type=ND)
        assert answer.error == (413, "too-large")
        assert self.house.store.next_offset == 0


class RefusalTests(SynchronousTestCase):
    """Requests that are refused change nothing"""

    def setUp(self) -> None:
        self.house = WebHouse(allow_publish="a,locked", rate_messages=3)

    def post(self, topic: str = "a", body: bytes = b"x", **given: Any) -> Answer:
        """Publish over a connection of its own."""
        return self.house.post(f"/v1/topics/{topic}/messages", body, **given)

    def test_access(self) -> None:
        answer = self.post("b")
        assert answer.error == (403, "not-authorized")
        assert answer.json["topic"] == "b"
        assert "b" not in self.house.broker.topics
        assert self.post("$SYS%2Fevents").error == (403, "not-authorized")

    def test_queue_keys(self) -> None:
        self.house.lock("locked", b"k")
        assert self.post("locked").error == (403, "not-authorized")
        for token in (self.house.token("publish", key="other"), self.house.token("subscribe")):
            assert self.post("locked", token=token).error == (403, "not-authorized")
        assert self.post("locked", token=self.house.token("publish")).status == 200

    def test_a_bad_token(self) -> None:
        assert self.post(token=b"x.y.z").error == (401, "bad-token")

    def test_rates_of_a_connection(self) -> None:
        client = self.house.connect()
        for _ in range(3):
            assert client.post(PATH, b"x").status == 200
        answer = client.post(PATH, b"x")
        assert answer.error == (429, "rate-limited")
        assert answer.headers["Retry-After"] == "1"
        self.house.pass_time(1)
        assert client.post(PATH, b"x").status == 200
        assert self.post().status == 200

    def test_a_request_is_published_whole_or_not_at_all(self) -> None:
        body = b'{"value":"x"}\n' * 4
        answer = self.post(body=body, Content_Type=ND)
        # The limit never admits four messages at once.
        assert answer.error == (413, "too-large")
        assert "admits 3 of 4 messages at once" in answer.json["message"]
        assert self.house.store.next_offset == 0
        assert "a" not in self.house.broker.topics

    def test_a_request_that_may_be_repeated_later(self) -> None:
        client = self.house.connect()
        assert client.post(PATH, b"x").status == 200
        body = b'{"value":"x"}\n' * 3
        assert client.post(PATH, body, Content_Type=ND).error == (429, "rate-limited")
        # More than the limit ever admits, whatever was charged lately.
        more = b'{"value":"x"}\n' * 4
        assert client.post(PATH, more, Content_Type=ND).error == (413, "too-large")
        self.house.pass_time(1)
        assert client.post(PATH, body, Content_Type=ND).status == 200

    def test_rates_of_the_listener(self) -> None:
        house = WebHouse(listener_rate_messages=1)
        assert house.post(PATH, b"x").status == 200
        assert house.post(PATH, b"x").error == (429, "rate-limited")

    def test_rates_of_bytes_count_senders_and_headers(self) -> None:
        house = WebHouse(rate_bytes=30)
        given = {"Content_Type": ND, "Pubsub_Sender": "s" * 10}
        # The last message may take more than is left.
        for size, status in ((8, 200), (9, 413)):
            row = {"value": "x" * 10, "headers": [{"key": "h", "value": "y" * size}]}
            answer = house.connect().post(PATH, f"{json.dumps(row)}\n".encode() * 2, **given)
            assert answer.status == status, answer.json

    def test_a_large_message(self) -> None:
        house = WebHouse(max_message="2K")
        assert house.post(PATH, bytes(2048)).status == 200
        assert house.post(PATH, bytes(2049)).error == (413, "too-large")
        assert house.post("/v1/history", {"start": 0, "topics": ["x" * 200] * 20}).status == 200

    def test_a_topic_too_many(self) -> None:
        topics = self.house.broker.topics
        topics.limit = len(topics) - topics.own
        assert self.post().error == (507, "limit-reached")

    def test_an_unwritable_history(self) -> None:
        class Full(Slow):
            def append(self, batch: Any, parts: Any = None) -> None:
                raise HistoryUnavailable("disk full: '/var/lib/history'")

        house = WebHouse(Full())
        answer = house.post(PATH, b"x")
        assert answer.error == (503, "history-unavailable")
        assert "outcome" not in answer.json
        # The reason is for operators.
        assert "cannot be written at present" in answer.json["message"]
        assert b"/var" not in answer.body
        assert "a" not in house.broker.topics

    def test_a_topic_is_not_claimed_for_a_message_that_cannot_be_stored(self) -> None:
        class Full(MemoryStore):
            trouble = "disk full"  # type: ignore[assignment]

            def append(self, batch: Any, senders: Any = None) -> None:
                raise HistoryUnavailable(self.trouble)

        house = WebHouse(Full(100, 2**20))
        topics, store = house.broker.topics, house.store
        topics.create("n", hosted=False).set_durability(Durability.NONE)
        known = {name for name, _ in store.items(TOPICS)}
        for name in ("x", "y", "z"):
            answer = house.post(f"/v1/topics/{name}/messages", b"x")
            assert answer.error == (503, "history-unavailable")
            assert name not in topics
        assert {name for name, _ in store.items(TOPICS)} == known
        assert house.post("/v1/topics/n/messages", b"x").status == 200
        assert topics.named("n").hosted

    def test_each_is_counted(self) -> None:
        self.post("b")
        assert self.house.broker.counters.refusals["http", "not-authorized"] == 1


class WaitTests(SynchronousTestCase):
    """Backpressure and durability"""

    def test_the_answer_waits_for_the_history(self) -> None:
        store = Slow()
        house = WebHouse(store)
        client = house.connect()
        client.ask("POST", PATH, b"x")
        assert not client.stream.received
        store.waiting.pop()(True)
        house.clock.advance(0)
        answer = client.answer("POST").json
        assert (answer["offset"], answer["level"]) == (0, "stored")

    def test_it_cannot_be_stored(self) -> None:
        store = Slow()
        house = WebHouse(store)
        client = house.connect()
        client.ask("POST", PATH, b"x")
        store.waiting.pop()(False)
        house.clock.advance(0)
        answer = client.answer("POST")
        assert answer.error == (503, "history-unavailable")
        # Unlike that to a request of which nothing was published.
        assert answer.json["outcome"] == "unknown"

    def test_the_disk_does_not_answer(self) -> None:
        store = Slow()
        house = WebHouse(store)
        client = house.connect()
        client.ask("POST", PATH, b"x")
        house.pass_time(WAIT_SECONDS + 1)
        answer = client.answer("POST")
        assert answer.error == (503, "unconfirmed")
        assert answer.json["outcome"] == "unknown"
        store.waiting.pop()(True)
        assert not client.stream.received

    def test_the_client_leaves_meanwhile(self) -> None:
        store = Slow()
        house = WebHouse(store)
        client = house.connect()
        client.ask("POST", PATH, b"x")
        client.stream.lose()
        store.waiting.pop()(True)
        house.pass_time(WAIT_SECONDS + 1)
        assert store.next_offset == 1
        assert house.body_bytes == 0

    def test_topics_that_are_not_stored(self) -> None:
        house = WebHouse(Slow())
        house.broker.topics.create("a").set_durability(Durability.NONE)
        answer = house.post(PATH, b"x").json
        assert (answer["offset"], answer["messages"], answer["level"]) == (None, 1, "handled")

    def test_a_blocked_topic_holds_the_request(self) -> None:
        house = WebHouse()
        topic = house.broker.topics.create("a")
        blocker = Held()
        topic.block(blocker)
        client = house.connect()
        client.ask("POST", PATH, b"x")
        assert house.store.next_offset == 0
        topic.unblock(blocker)
        house.clock.advance(0)
        assert client.answer("POST").status == 200

    def test_a_slow_backplane_holds_the_request(self) -> None:
        house = WebHouse()
        backplane = MemoryBackplane(MemoryEngine(), lambda call: house.clock.callLater(0, call))
        Fanout(house.broker, backplane)
        client = house.connect()
        backplane.gate.close()
        client.ask("POST", PATH, b"x")
        assert house.store.next_offset == 0
        backplane.gate.open()
        house.clock.advance(0)
        assert client.answer("POST").status == 200
        assert house.store.next_offset == 1

    def test_it_is_refused_after_a_time(self) -> None:
        house = WebHouse()
        house.broker.topics.create("a").block(Held())
        client = house.connect()
        client.ask("POST", PATH, b"x")
        house.pass_time(WAIT_SECONDS + 1)
        assert client.answer("POST").error == (429, "rate-limited")
        assert house.store.next_offset == 0

    def test_the_topic_is_deleted_meanwhile(self) -> None:
        house = WebHouse()
        topic = house.broker.topics.create("a")
        topic.block(Held())
        client = house.connect()
        client.ask("POST", PATH, b"x")
        house.broker.topic_lifecycle.end(topic)
        house.clock.advance(0)
        assert client.answer("POST").error == (429, "rate-limited")
        assert house.store.next_offset == 0
