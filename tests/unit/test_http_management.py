"""The endpoints that show and change the broker's objects."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from socket import gethostname
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.connection_marks import mark_text
from pubsub.broker.credentials.master_secrets import SecretRing
from pubsub.broker.routing import sliced_routing
from pubsub.broker.topic_space.durability import Durability
from pubsub.http_api.reading.live_response import RESPONSE_BYTES
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import START, Bench, Guest, Lines
from tests.unit.streams import ROOM
from tests.unit.web import WebHouse
from tests.unit.web_sockets import connected

NAMES = ["../../x", "<script>alert(1)</script>", "a%2Fb", "a/b", "\0nul", "ä" * 127]


def open_house(**settings: object) -> WebHouse:
    """Return a broker without secrets."""
    house = WebHouse(**settings)  # type: ignore[arg-type]
    house.broker.tokens.replace(SecretRing([]))
    return house


class TopicListTests(SynchronousTestCase):
    """GET /v1/topics"""

    def setUp(self) -> None:
        self.house = open_house()

    def get(self, target: str, **given: Any) -> Any:
        return self.house.connect("127.0.0.1").get(target, **given).json

    def test_traffic_since_the_start_is_shown(self) -> None:
        self.house.publish("a", b"1", b"22")
        (row,) = self.get("/v1/topics?match=a")["items"]
        assert row.pop("last_timestamp") > 0
        assert row == {
            "name": "a", "durability": "async", "subscribers": 0, "messages": 2, "bytes": 3,
            "keyed": False, "exclusive": False, "remote": False, "used": True,
        }  # fmt: skip
        assert self.get("/v1/topics/a")["messages"] == 2

    def test_names_of_any_kind_are_text(self) -> None:
        for name in NAMES:
            self.house.publish(name, b"x")
        rows = self.get("/v1/topics")["items"]
        assert sorted(row["name"] for row in rows) == sorted([*NAMES, "$SYS/stats"])
        for name in NAMES:
            assert self.get("/v1/topics/" + quote(name, safe=""))["name"] == name

    def test_a_name_that_is_too_long_is_refused(self) -> None:
        answer = self.house.connect("127.0.0.1").get("/v1/topics/" + "x" * 6000)
        assert answer.error == (400, "invalid-request")

    def test_a_list_is_paged_behind_a_name(self) -> None:
        names = [f"t{n:04}" for n in range(250)]
        for name in names:
            self.house.broker.topics.create(name)
        found, after, pages = [], "%24SYS%2Fstats", 0
        while True:
            page = self.get("/v1/topics?limit=99" + (f"&after={after}" if after else ""))
            found += [row["name"] for row in page["items"]]
            pages += 1
            after = page["next"]
            # The list changes between two pages: behind, and before the rows shown so far.
            self.house.broker.topics.create(f"a{pages}")
            if after is None:
                break
        assert found == names
        assert pages == 3

    def test_a_pattern_selects(self) -> None:
        for name in ("a/1", "a/2", "b/1"):
            self.house.broker.topics.create(name)
        page = self.get("/v1/topics?match=a%2F*")
        assert [row["name"] for row in page["items"]] == ["a/1", "a/2"]
        assert page["next"] is None

    def test_topics_that_no_client_has_used_are_left_out(self) -> None:
        topics = self.house.broker.topics
        for name in ("b/1", "b/2", "b/3"):
            topics.create(name, hosted=False)
        self.house.publish("b/2", b"x")
        topics.named("b/3").history_readers += 1
        found = self.get("/v1/topics?match=b%2F*")["items"]
        assert [(row["name"], row["used"]) for row in found] == [("b/2", True), ("b/3", True)]
        found = self.get("/v1/topics?match=b%2F*&unused=1")["items"]
        assert [row["used"] for row in found] == [False, True, True]
        assert self.get("/v1/topics/b%2F1")["used"] is False

    def test_a_pattern_of_a_long_name(self) -> None:
        self.house.broker.topics.create("A" * 255)
        (row,) = self.get("/v1/topics?match=*" + "%5BaA%5D" * 255 + "*")["items"]
        assert row["name"] == "A" * 255
        answer = self.house.connect("127.0.0.1").get(f"/v1/topics?match={'a' * 1025}")
        assert answer.error == (400, "invalid-request")

    def test_topics_that_may_not_be_read_are_not_listed(self) -> None:
        self.house.publish("open", b"x")
        self.house.lock("closed", b"key")
        page = self.house.get("/v1/topics").json
        assert [row["name"] for row in page["items"]] == ["open"]
        assert self.house.get("/v1/topics/closed").error == (404, "unknown-topic")
        assert self.get("/v1/topics/closed")["keyed"] is True

    def test_bad_parameters_are_refused(self) -> None:
        for query in ("limit=0", "limit=1001", "limit=x", "after=", "match=", "nonsense=1"):
            answer = self.house.connect("127.0.0.1").get(f"/v1/topics?{query}")
            assert answer.error == (400, "invalid-request"), query

    def test_operators_get_lists_at_the_bound_of_the_memory(self) -> None:
        house = WebHouse()
        other, local = house.connect("192.0.2.9"), house.connect("127.0.0.1")
        admin, memory = house.token("admin"), house.broker.memory
        memory.limit = used = memory.used
        for path in ("topics", "sessions", "subscriptions", "slow", "readers", "listeners"):
            assert other.get(f"/v1/{path}", token=admin).status == 200, path
        assert local.get("/v1/topics").status == 200
        assert other.get("/v1/topics").error == (503, "memory")
        assert memory.used == used

    def test_no_memory_is_left_charged(self) -> None:
        for n in range(300):
            self.house.broker.topics.create(f"t{n}")
        client = self.house.connect("127.0.0.1")
        used = self.house.broker.memory.used
        assert client.get("/v1/topics?limit=1000").json["next"] is None
        assert self.house.broker.memory.used == used

    def test_a_response_that_is_not_taken_is_charged(self) -> None:
        for n in range(600):
            self.house.broker.topics.create(f"t{n}")
        client = self.house.connect("127.0.0.1")
        used = self.house.broker.memory.used
        client.stream.stop_reading()
        client.ask("GET", "/v1/topics?limit=1000")
        waiting = client.stream.unsent_bytes
        assert waiting > ROOM
        assert self.house.broker.memory.used == used + waiting
        client.stream.read()
        assert self.house.broker.memory.used == used
        client.stream.stop_reading()
        client.ask("GET", "/v1/topics?limit=1000")
        client.stream.lose()
        assert self.house.broker.memory.used < used

    def test_a_client_that_leaves_ends_the_work(self) -> None:
        for n in range(1000):
            self.house.broker.topics.create(f"t{n}")
        client = self.house.connect("127.0.0.1")
        data = b"GET /v1/topics?limit=1000 HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.stream.feed(data)
        assert len(self.house.broker.slices) == 1
        client.stream.lose()
        self.house.clock.advance(0)
        self.house.clock.advance(0)
        assert len(self.house.broker.slices) == 0


class TopicChangeTests(SynchronousTestCase):
    """PUT /v1/topics/NAME, POST /v1/topics/NAME/key"""

    def setUp(self) -> None:
        self.house = open_house()

    def send(self, method: str, target: str, body: object, **given: Any) -> Any:
        client = self.house.connect("127.0.0.1")
        client.ask(method, target, body, **given)
        return client.answer(method)

    def test_a_topic_of_a_subscriber_outlives_the_subscriber(self) -> None:
        for body in ({}, {"queue_key": "k1"}):
            self.setUp()
            follower = connected(self.house)
            follower.ask("subscribe", topic="a")
            assert self.send("PUT", "/v1/topics/a", body).status == 200
            follower.stream.lose()
            self.house.pass_time(1)
            topic = self.house.broker.topics.get("a")
            assert topic is not None
            assert topic.hosted

    def test_a_topic_is_created_once(self) -> None:
        first = self.send("PUT", "/v1/topics/a%2Fb", {})
        assert (first.status, first.json["name"]) == (201, "a/b")
        assert self.send("PUT", "/v1/topics/a%2Fb", {}).status == 200
        assert self.house.broker.topics.named("a/b").hosted

    def test_a_topic_may_be_synchronous(self) -> None:
        assert self.send("PUT", "/v1/topics/a", {"sync": True}).json["durability"] == "sync"

    def test_the_error_of_a_boolean_has_the_form_of_the_request(self) -> None:
        in_body = self.send("PUT", "/v1/topics/a", {"sync": "yes"}).json["message"]
        in_url = self.house.connect().get("/v1/topics?unused=yes").json["message"]
        assert (in_body, in_url) == ("sync: expected true or false", "unused: expected 1 or 0")

    def test_a_queue_key_that_no_token_of_fast_has(self) -> None:
        """One of before stays, and can be given again."""
        long = "é" * 55
        for topic in ("a", "b"):
            made = self.send("PUT", f"/v1/topics/{topic}", {"queue_key": long})
            assert made.error == (400, "invalid-request")
            assert "at most 108 bytes" in made.json["message"]
            assert not self.house.broker.topics.get(topic)
            assert self.send("PUT", f"/v1/topics/{topic}", {"queue_key": "é" * 54}).status == 201
        rotated = self.send("POST", "/v1/topics/a/key", {"queue_key": long})
        assert rotated.error == (400, "invalid-request")
        keys, topic_b = self.house.broker.queue_keys, self.house.broker.topics.named("b")
        self.successResultOf(keys.rotate(topic_b, long.encode(), "", ""))
        assert self.send("PUT", "/v1/topics/b", {"queue_key": long}).status == 200

    def test_a_queue_key_closes_it_and_is_replaced(self) -> None:
        assert self.send("PUT", "/v1/topics/a", {"queue_key": "k1"}).json["keyed"] is True
        topic = self.house.broker.topics.named("a")
        rotated = self.send("POST", "/v1/topics/a/key", {"queue_key": "k2"})
        assert rotated.json == {"kept": 0, "ended": 0}
        assert self.house.broker.queue_keys.matches(topic, b"k2")
        other = self.send("PUT", "/v1/topics/a", {"queue_key": "k1"})
        assert other.error == (409, "topic-exists")

    def test_a_topic_of_another_client_is_not_changed(self) -> None:
        self.house = WebHouse()
        self.house.lock("closed", b"other")
        self.house.lock("own", b"k")
        self.house.broker.queue_keys.exclusive.add("own")
        token, admin = self.house.token("create"), self.house.token("admin")
        for name, body, sent in (
            ("closed", {"sync": True}, token),
            ("closed", {"queue_key": "k", "sync": True}, token),
            ("closed", {"queue_key": "k", "sync": True}, admin),
            ("own", {"queue_key": "k", "sync": True}, token),
            ("own", {"sync": True}, admin),
        ):
            answer = self.send("PUT", f"/v1/topics/{name}", body, token=sent)
            assert answer.error == (409, "topic-exists"), (name, body)
            assert self.house.broker.topics.named(name).durability is Durability.ASYNC
        assert self.send("PUT", "/v1/topics/closed", {"sync": True}, token=admin).status == 200

    def test_a_key_is_replaced_for_all_before_the_answer(self) -> None:
        self.patch(sliced_routing, "_FEW", 0)  # type: ignore[no-untyped-call]
        broker = self.house.broker
        topic = broker.topics.create("a")
        for number in range(3):
            reader = Bench().outbox(recheck=lambda _, change: bool(change and change.old)).outbox
            assert reader is not None
            broker.router.subscribe(reader, topic, Lines())
            if not number:
                created = self.send("PUT", "/v1/topics/a", {"queue_key": "k1"})
                assert created.json["subscribers"] == 0
        rotated = self.send("POST", "/v1/topics/a/key", {"queue_key": "k2"})
        assert rotated.json == {"kept": 2, "ended": 0}

    def test_only_a_topic_with_a_key_can_be_rotated(self) -> None:
        missing = self.send("POST", "/v1/topics/a/key", {"queue_key": "k"})
        assert missing.error == (404, "unknown-topic")
        self.send("PUT", "/v1/topics/a", {})
        assert self.send("POST", "/v1/topics/a/key", {"queue_key": "k"}).error[1] == "no-queue-key"

    def test_reserved_topics_are_the_brokers(self) -> None:
        assert self.send("PUT", "/v1/topics/%24SYS%2Fx", {}).error == (403, "not-authorized")

    def test_the_answer_waits_for_the_disk(self) -> None:
        class Unsynced(MemoryStore):
            def when_synced(self, call: Callable[[bool], None]) -> None:
                waiting.append(call)

        waiting: list[Callable[[bool], None]] = []
        self.house = open_house(store=Unsynced(100, 2**20))
        answers = ((False, "PUT", 503), (True, "PUT", 200), (False, "DELETE", 503))
        for is_on_disk, method, status in answers:
            client = self.house.connect("127.0.0.1")
            client.ask(method, "/v1/topics/a", {} if method == "PUT" else None)
            self.house.clock.advance(0)
            assert not client.stream.received
            waiting.pop()(is_on_disk)
            assert client.answer(method).status == status

    def test_clients_elsewhere_may_not(self) -> None:
        client = self.house.connect()
        client.ask("PUT", "/v1/topics/a", {})
        assert client.answer("PUT").error == (403, "not-authorized")
        assert "a" not in self.house.broker.topics


class TokenTests(SynchronousTestCase):
    """With secrets, each change needs its action"""

    def setUp(self) -> None:
        self.house = WebHouse()

    def send(
        self, method: str, target: str, body: object, *permissions: str, key: str = "k"
    ) -> Any:
        client = self.house.connect("127.0.0.1")
        token = self.house.token(*permissions, key=key) if permissions else None
        client.ask(method, target, body, token=token)
        return client.answer(method)

    def test_creation_needs_the_action_and_the_own_key(self) -> None:
        assert self.send("PUT", "/v1/topics/a", {}).status == 403
        assert self.send("PUT", "/v1/topics/a", {}, "publish").status == 403
        assert self.send("PUT", "/v1/topics/a", {"queue_key": "other"}, "create").status == 403
        assert self.send("PUT", "/v1/topics/a", {"queue_key": "k"}, "create").status == 201

    def test_a_new_key_needs_the_action_and_the_old_key(self) -> None:
        self.house.lock("a", b"k")
        new = {"queue_key": "new"}
        assert self.send("POST", "/v1/topics/a/key", new, "publish").status == 403
        assert self.send("POST", "/v1/topics/a/key", new, "rotate", key="x").status == 403
        assert self.send("POST", "/v1/topics/a/key", new, "rotate").status == 200

    def test_sessions_and_audit_need_admin(self) -> None:
        for path in ("sessions", "audit", "slow", "subscriptions"):
            assert self.send("GET", f"/v1/{path}", None).status == 403, path
            assert self.send("GET", f"/v1/{path}", None, "metrics").status == 403, path
            assert self.send("GET", f"/v1/{path}", None, "admin").status == 200, path

    def test_figures_need_metrics_elsewhere(self) -> None:
        for path in ("status", "store", "listeners", "refusals", "peers"):
            assert self.house.get(f"/v1/{path}").status == 403, path
            token = self.house.token("metrics")
            assert self.house.get(f"/v1/{path}", token=token).status == 200, path
            assert self.house.connect("127.0.0.1").get(f"/v1/{path}").status == 200, path


class SessionTests(SynchronousTestCase):
    """/v1/sessions"""

    def setUp(self) -> None:
        self.house = open_house()
        self.client = self.house.connect("127.0.0.1")

    def test_a_session_is_listed_by_its_mark(self) -> None:
        page = self.client.get("/v1/sessions").json
        (row,) = page["items"]
        mark = mark_text(self.client.channel.mark)
        assert row == {
            "mark": mark, "protocol": "http", "client": "127.0.0.1:40001", "identity": "",
            "address": "127.0.0.1:40001", "connected": self.client.channel.mark,
            "subscriptions": 0, "messages_in": 0, "bytes_in": 0, "messages_out": 0, "bytes_out": 0,
            "queued_bytes": 0, "state": "live", "behind": 0,
        }  # fmt: skip
        assert self.client.get(f"/v1/sessions/{mark}").json == row

    def test_connections_that_are_no_sessions_are_left_out(self) -> None:
        """Those to other brokers, and the ports of UDP."""
        guest = Guest(self.house.broker)
        (row,) = self.client.get("/v1/sessions").json["items"]
        assert row["protocol"] == "http"
        found = self.client.get(f"/v1/sessions/{mark_text(guest.mark)}")
        assert found.error == (404, "unknown-session")

    def test_slow_subscribers(self) -> None:
        quick, slow = connected(self.house), connected(self.house)
        for one in (quick, slow):
            one.ask("subscribe", topic="a")
        assert self.client.get("/v1/slow").json["items"] == []
        slow.stream.stop_reading()
        self.house.publish("a", bytes(ROOM))
        quick.pull()
        (row,) = self.client.get("/v1/slow").json["items"]
        assert (row["mark"], row["state"]) == (mark_text(slow.client.channel.mark), "paused")
        assert self.client.get(f"/v1/slow?after={row['mark']}").json["items"] == []
        assert self.client.get("/v1/slow?match=192.*").json["items"] == [row]
        assert self.client.get("/v1/slow?match=bob").json == {"items": [], "next": None}
        assert self.client.get("/v1/slow?after=odd").error == (400, "invalid-request")

    def test_filters_and_pages(self) -> None:
        others = [self.house.connect("192.0.2.9") for _ in range(30)]
        page = self.client.get("/v1/sessions?client=192.*&limit=20").json
        marks = [row["mark"] for row in page["items"]]
        others[3].stream.lose()
        page = self.client.get(f"/v1/sessions?client=192.*&limit=20&after={page['next']}").json
        marks += [row["mark"] for row in page["items"]]
        assert marks == [mark_text(one.channel.mark) for one in others]
        both = self.client.get("/v1/sessions?client=192.*&match=*:1").json
        assert both["items"] == []
        assert self.client.get("/v1/sessions?protocol=cafe").json["items"] == []
        assert self.client.get("/v1/sessions?state=paused").json["items"] == []
        assert self.client.get("/v1/sessions?state=odd").error == (400, "invalid-request")
        assert self.client.get("/v1/sessions?after=odd").error == (400, "invalid-request")

    def test_unknown_sessions(self) -> None:
        for mark in ("0" * 16, "zz", "..%2F..%2Fx", "f" * 16):
            assert self.client.get(f"/v1/sessions/{mark}").error == (404, "unknown-session")

    def test_a_follower_gets_the_reason_of_its_disconnection(self) -> None:
        other = self.house.connect("192.0.2.9")
        other.ask("GET", "/v1/topics/a/messages?follow=1")
        mark = mark_text(other.channel.mark)
        row = self.client.get(f"/v1/sessions/{mark}").json
        assert row["subscriptions"] == 1
        self.client.ask("DELETE", f"/v1/sessions/{mark}?reason=noisy")
        assert self.client.answer("DELETE").status == 204
        assert b'{"end": {"reason": "administrator: noisy"}}' in other.stream.received
        other.stream.lose()
        self.client.ask("DELETE", f"/v1/sessions/{mark}")
        assert self.client.answer("DELETE").error == (404, "unknown-session")
        record = self.client.get("/v1/audit").json["items"][0]
        assert (record["event"], record["reason"], record["mark"]) == ("disconnect", "noisy", mark)

    def test_a_follower_of_the_status_gets_the_reason(self) -> None:
        other = self.house.connect("127.0.0.1")
        other.ask("GET", "/v1/status?follow=1")
        mark = mark_text(other.channel.mark)
        self.client.ask("DELETE", f"/v1/sessions/{mark}?reason=noisy")
        reply = b'event: end\ndata: {"reason": "administrator: noisy"}\n\n'
        assert reply in other.stream.received

    def test_disconnecting_twice_cuts(self) -> None:
        other = self.house.connect("192.0.2.9")
        mark = mark_text(other.channel.mark)
        for _ in range(2):
            self.client.ask("DELETE", f"/v1/sessions/{mark}")
            assert self.client.answer("DELETE").status == 204
        assert other.stream.aborted

    def test_disconnecting_oneself_is_answered(self) -> None:
        mark = mark_text(self.client.channel.mark)
        self.client.ask("DELETE", f"/v1/sessions/{mark}")
        assert self.client.answer("DELETE").status == 204
        assert self.client.channel.leaving

    def test_a_reason_is_printable(self) -> None:
        mark = mark_text(self.client.channel.mark)
        self.client.ask("DELETE", f"/v1/sessions/{mark}?reason=a%0Ab")
        assert self.client.answer("DELETE").error == (400, "invalid-request")


class ExpiryTests(SynchronousTestCase):
    """A token that expires while the status is followed"""

    def test_the_response_ends_with_the_token(self) -> None:
        house = WebHouse()
        client = house.connect()
        token = house.token("metrics", lasts=3)
        client.ask("GET", "/v1/status?follow=1&format=jsonl", token=token)
        house.pass_time(5)
        answer = client.answer()
        assert answer.complete
        assert answer.lines[-1] == {"end": {"reason": "token-expired"}}


class StateTests(SynchronousTestCase):
    """Status, health, and the lists of the broker's parts"""

    def setUp(self) -> None:
        self.house = open_house()
        self.client = self.house.connect("127.0.0.1")

    def test_status(self) -> None:
        status = self.client.get("/v1/status").json
        assert status["ready"] is True
        assert status["attention"] == []
        assert status["stats"]["protocols"]["http"]["connections"] == 1
        assert {"version", "kernel", "started"} <= set(status)
        assert status["name"] == gethostname()

    def test_the_status_is_followed_in_lines(self) -> None:
        other = self.house.connect("127.0.0.1")
        other.ask("GET", "/v1/status?follow=1&format=jsonl")
        self.house.pass_time(2)
        assert other.stream.received.count(b'"version"') == 3
        used = self.house.broker.memory.used
        other.stream.lose()
        self.house.pass_time(1)
        # The response and its connection.
        assert used - self.house.broker.memory.used > RESPONSE_BYTES

    def test_the_status_is_followed_as_events(self) -> None:
        other = self.house.connect("127.0.0.1")
        other.ask("GET", "/v1/status?follow=1")
        assert b"text/event-stream" in other.stream.received
        assert b"retry: 1000\n\n" in other.stream.received
        assert b'data: {"version"' in other.stream.received

    def test_a_follower_that_does_not_read_gets_only_the_newest(self) -> None:
        other = self.house.connect("127.0.0.1")
        other.ask("GET", "/v1/status?follow=1&format=jsonl")
        other.channel.pauseProducing()
        self.house.pass_time(5)
        assert other.stream.received.count(b'"version"') == 1
        other.channel.resumeProducing()
        self.house.pass_time(1)
        assert other.stream.received.count(b'"version"') == 2

    def test_a_follower_that_never_reads_is_disconnected(self) -> None:
        other = self.house.connect("127.0.0.1")
        other.ask("GET", "/v1/status?follow=1&format=jsonl")
        other.channel.pauseProducing()
        self.house.pass_time(40)
        assert other.stream.aborted

    def test_many_followers_are_served_in_steps(self) -> None:
        others = [self.house.connect("127.0.0.1") for _ in range(100)]
        for other in others:
            other.ask("GET", "/v1/status?follow=1&format=jsonl")
        self.house.pass_time(1)
        assert {other.stream.received.count(b'"version"') for other in others} == {2}

    def test_format_needs_follow(self) -> None:
        answer = self.client.get("/v1/status?format=jsonl")
        assert answer.error == (400, "invalid-request")

    def test_health_is_open_to_everybody(self) -> None:
        assert self.house.get("/healthz").body == b"ok\n"
        assert self.house.get("/readyz").body == b"ready\n"
        client = self.house.connect()
        client.ask("HEAD", "/readyz")
        assert client.answer("HEAD").status == 200

    def test_a_broker_that_stops_is_not_ready(self) -> None:
        self.house.broker.drainage.draining = True
        answer = self.house.get("/readyz")
        assert (answer.status, answer.body) == (503, b"not ready: stopping\n")
        assert self.house.get("/healthz").status == 200
        assert self.client.get("/v1/status").json["attention"][0]["level"] == "critical"

    def test_a_broker_whose_disk_does_not_answer_is_not_ready(self) -> None:
        store = self.house.broker.store
        told = "cannot be written: the disk has not ended a write or sync for 30 s"
        for seconds, status in ((29.0, 200), (30.0, 503), (0.0, 200)):
            figures = {**store.figures(), "stalled_seconds": seconds}
            with patch.object(store, "figures", return_value=figures):
                assert self.house.get("/readyz").status == status
                texts = [one.text for one in self.house.broker.readiness.obstacles()]
                assert texts == (["the history " + told] if status == 503 else [])

    def test_what_needs_attention(self) -> None:
        statistics = self.house.broker.statistics
        stats = statistics.snapshot()
        for part, values, expected in (
            ("memory", {"used": 89, "limit": 100}, None),
            ("memory", {"used": 90, "limit": 100}, ("warning", "90% of max-memory is in use")),
            ("memory", {"used": 100, "limit": 100}, ("critical", "100% of max-memory is in use")),
            ("memory", {"used": 1, "limit": 0}, None),
            ("reactor", {"lag": 0.24}, None),
            ("reactor", {"lag": 0.25}, ("warning", "the broker did not answer for 0.25 s")),
            ("store", {"disk_free": 2**30}, None),
            ("store", {"disk_free": 2**29}, ("warning", "512 MiB are left on the disk")),
            (
                "store", {"damaged_offsets": 3},
                ("critical", "the history has 3 damaged or missing offsets"),
            ),
            (
                "store", {"unreadable_segments": 2.0},
                ("critical", "2 segments of the history cannot be read"),
            ),
            (
                "store", {"unreadable_segments": 1.0},
                ("critical", "1 segment of the history cannot be read"),
            ),
            (
                "twice_hosted", {"topics": 1, "example": ["t", "tcp://b:7073"]},
                ("warning", "1 topic with two hosts, such as 't', which tcp://b:7073 hosts too"),
            ),
            ("slow", {"behind": 9_999}, None),
            (
                "slow", {"behind": 10_000, "catching_up": 2},
                ("warning", "2 subscribers are 10,000 messages behind"),
            ),
        ):  # fmt: skip
            changed = {**stats, part: {**stats[part], **values}}
            with patch.object(statistics, "snapshot", return_value=changed):
                found = self.client.get("/v1/status").json["attention"]
            if expected is None:
                assert found == []
            else:
                (one,) = found
                assert one["level"] == expected[0]
                assert one["what"].startswith(expected[1])
                assert one["do"]

    def test_segments_that_cannot_be_read_have_a_metric(self) -> None:
        store = self.house.broker.store
        figures = {**store.figures(), "unreadable_segments": 2.0}
        with patch.object(store, "figures", return_value=figures):
            metrics = self.client.get("/metrics").body
        assert b"\npubsub_history_unreadable_segments 2" in metrics

    def test_metadata_that_cannot_be_written_is_shown(self) -> None:
        store = self.house.broker.store
        for failing in (1.0, 0.0):
            figures = {**store.figures(), "metadata_failing": failing}
            with patch.object(store, "figures", return_value=figures):
                texts = [one["what"] for one in self.client.get("/v1/status").json["attention"]]
                metrics = self.client.get("/metrics").body
            assert any("metadata" in text for text in texts) == bool(failing)
            assert b"pubsub_history_metadata_failing %g" % failing in metrics
            self.house.clock.advance(10)

    def test_the_store_and_refusals_are_shown(self) -> None:
        self.house.broker.configuration.content = {"broker": {"retention": "7d"}}
        store = self.client.get("/v1/store").json
        assert (store["durable"], store["retention"]) == (False, "7d")

    def test_refusals_are_shown_with_the_last_client_to_administrators(self) -> None:
        house = WebHouse()
        for path in ("/nothing", "/neither"):
            other = house.connect("192.0.2.9")
            other.get(path)
            house.clock.advance(1)
        row = {
            "protocol": "http",
            "reason": "not-found",
            "count": 2,
            "last_timestamp": int((START + 1) * 1e6),
            "last_client": other.channel.label,
        }
        found = f"/v1/refusals?match={quote(other.channel.label)}"
        admin, metrics = house.token("metrics", "admin"), house.token("metrics")
        assert house.get("/v1/refusals", token=admin).json["items"] == [row]
        assert house.get(found, token=admin).json["items"] == [row]
        assert house.get(found, token=metrics).json["items"] == []
        (seen,) = house.get("/v1/refusals", token=metrics).json["items"]
        assert seen == {**row, "last_client": None}

    def test_subscriptions_to_long_names_are_paged(self) -> None:
        other = self.house.connect("192.0.2.9")
        names = ["a" * 254 + end for end in "bcd"]
        more = "&".join(f"topic={name}" for name in names[1:])
        other.ask("GET", f"/v1/topics/{names[0]}/messages?follow=1&{more}")
        page = self.client.get("/v1/subscriptions?limit=2").json
        rest = self.client.get(f"/v1/subscriptions?after={page['next']}").json
        assert [row["topic"] for row in page["items"] + rest["items"]] == names

    def test_subscriptions_by_topic_and_session(self) -> None:
        others = [self.house.connect("192.0.2.9") for _ in range(2)]
        for other in others:
            other.ask("GET", "/v1/topics/b/messages?follow=1&topic=a")
        marks = [mark_text(other.channel.mark) for other in others]
        page = self.client.get("/v1/subscriptions?limit=3").json
        assert [(row["topic"], row["mark"]) for row in page["items"]] == [
            ("a", marks[0]), ("b", marks[0]), ("a", marks[1])
        ]  # fmt: skip
        rest = self.client.get(f"/v1/subscriptions?after={quote(page['next'])}").json
        assert [(row["topic"], row["mark"]) for row in rest["items"]] == [("b", marks[1])]
        page = self.client.get("/v1/subscriptions?limit=2").json
        rest = self.client.get(f"/v1/subscriptions?after={quote(page['next'])}").json
        assert [(row["topic"], row["mark"]) for row in rest["items"]] == [
            ("a", marks[1]), ("b", marks[1])
        ]  # fmt: skip
        self.house.connect("192.0.2.9").ask("GET", "/v1/topics/a/messages?follow=1")
        of_topic = self.client.get("/v1/subscriptions?topic=b").json["items"]
        assert [row["mark"] for row in of_topic] == marks
        of_session = self.client.get(f"/v1/subscriptions?mark={marks[1]}").json["items"]
        assert [row["topic"] for row in of_session] == ["a", "b"]
        assert self.client.get("/v1/subscriptions?topic=none").json["items"] == []
        matching = self.client.get("/v1/subscriptions?match=[!a]").json
        assert [row["topic"] for row in matching["items"]] == ["b", "b"]

    def test_a_page_of_subscriptions_behind_no_place_is_refused(self) -> None:
        for after in ("odd", "0" * 16, "g" * 16 + "a", "0" * 15 + "%CE%B1a"):
            answer = self.client.get(f"/v1/subscriptions?after={after}")
            assert answer.error == (400, "invalid-request"), after
        assert self.client.get(f"/v1/subscriptions?after={'0' * 16}a").json["items"] == []

    def test_subscriptions_that_do_not_match_are_passed_over_in_slices(self) -> None:
        """A broker may have a million of them."""
        follower = connected(self.house)
        for number in range(200):
            follower.ask("subscribe", topic=f"t{number}")
        steps: list[None] = []

        def finish(work: Iterator[None]) -> Deferred[None]:
            steps.extend(work)
            return succeed(None)

        with patch.object(self.house.broker.slices, "finish", finish):
            assert self.client.get("/v1/subscriptions?match=none").json["items"] == []
        assert len(steps) > 20

    def test_audit_records_are_paged_from_the_newest(self) -> None:
        for n in range(5):
            self.house.broker.reconfigure(SecretRing([]), {})
            assert n is not None
        page = self.client.get("/v1/audit?limit=2").json
        assert [row["number"] for row in page["items"]] == [5, 4]
        page = self.client.get(f"/v1/audit?limit=9&after={page['next']}").json
        assert [row["number"] for row in page["items"]] == [3, 2, 1]
