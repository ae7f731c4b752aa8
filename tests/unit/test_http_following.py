"""HTTP: reading the messages of topics, and following new ones."""

from __future__ import annotations

import json
from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.topic_space.durability import Durability
from pubsub.http_api.reading.live_response import HEARTBEAT_SECONDS
from pubsub.store.memory_store import MemoryStore
from pubsub.wire.departure import LINGER
from tests.unit.http_follower import PATH, Follower
from tests.unit.web import WebHouse

EVENTS = "text/event-stream"
BIG = "x" * 60_000


class ReadingTests(SynchronousTestCase):
    """Without follow"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.house.publish("a", b"1", b"2")
        self.house.publish("b", b"3")

    def test_stored_messages_are_read(self) -> None:
        answer = self.house.get(PATH)
        assert [row["value"] for row in answer.lines] == ["1", "2"]
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        assert answer.headers["Pubsub-Epoch"] == self.house.store.epoch

    def test_rows_are_those_of_the_history(self) -> None:
        self.house.publish("a", b"\xff", b'"\n', headers=[{"k": b"\x00"}, {"l": b"\xfe"}])
        history = self.house.get("/v1/history?start=0&topic=a&format=jsonl&headers=1").lines
        assert self.house.get(PATH + "?headers=1").lines == history
        follower = Follower(self.house, PATH + "?follow=1&start=0&headers=1")
        assert follower.rows() == history

    def test_from_an_offset(self) -> None:
        assert [row["offset"] for row in self.house.get(PATH + "?start=1").lines] == [1]
        assert self.house.get(PATH + "?start=earliest").lines == self.house.get(PATH).lines
        assert self.house.get(PATH + "?start=3").lines == []

    def test_from_a_time(self) -> None:
        self.house.clock.advance(5)
        stamp = int(self.house.clock.seconds() * 10**6)
        self.house.publish("a", b"4")
        assert [r["value"] for r in self.house.get(f"{PATH}?timestamp={stamp}").lines] == ["4"]

    def test_several_topics(self) -> None:
        rows = self.house.get(PATH + "?topic=b").lines
        assert [(row["topic"], row["value"]) for row in rows] == [
            ("a", "1"), ("a", "2"), ("b", "3"),
        ]  # fmt: skip

    def test_events(self) -> None:
        answer = self.house.get(PATH, Accept=EVENTS)
        assert answer.headers["Content-Type"] == EVENTS
        first = answer.body.decode().split("\n\n")[0].split("\n")
        assert first[0] == f"id: {self.house.store.epoch}:1"
        assert json.loads(first[1].removeprefix("data: "))["value"] == "1"

    def test_an_unknown_topic_is_empty_and_not_created(self) -> None:
        assert self.house.get("/v1/topics/none/messages").lines == []
        assert "none" not in self.house.broker.topics

    def test_head(self) -> None:
        for target in (PATH, PATH + "?follow=1", "/v1/history?start=0&format=jsonl", "/v1/bounds"):
            client = self.house.connect()
            client.ask("HEAD", target)
            answer = client.answer("HEAD")
            assert (answer.status, answer.rest) == (200, b""), target
            assert client.get("/v1/bounds").status == 200

    def test_mistakes(self) -> None:
        for query, error in (
            ("start=9", (416, "beyond-end")),
            ("start=x", (400, "invalid-request")),
            ("start=0&epoch=other", (409, "epoch")),
            ("start=0&timestamp=0", (400, "invalid-request")),
            ("format=arrow", (400, "invalid-request")),
            ("topic=", (400, "invalid-request")),
            ("follow=maybe", (400, "invalid-request")),
            ("stop=3", (400, "invalid-request")),
        ):
            assert self.house.get(f"{PATH}?{query}").error == error, query
            assert self.house.get(f"{PATH}?{query}&follow=1").error == error, query

    def test_what_start_may_be(self) -> None:
        answer = self.house.get(f"{PATH}?start=latest")
        assert answer.json["detail"] == "start: expected earliest or a whole number, at least 0"

    def test_the_formats_that_are_known(self) -> None:
        """The one without a name is not offered."""
        detail = self.house.get(f"{PATH}?format=arrow").json["detail"]
        assert detail == "format: expected jsonl or events"

    def test_positions_that_are_no_positions(self) -> None:
        for given in ("x", ":1", "e:", "e:-1", "e:1.5", "e:" + "9" * 40):
            answer = self.house.get(PATH, Last_Event_ID=given)
            assert answer.error == (400, "invalid-request"), given

    def test_proxies_are_told_to_pass_each_message_on(self) -> None:
        for target in (PATH + "?follow=1", "/v1/status?follow=1"):
            follower = Follower(self.house, target, token=self.house.token("metrics"))
            follower.body()
            assert b"\r\nX-Accel-Buffering: no\r\n" in follower.head

    def test_http_1_0(self) -> None:
        client = self.house.connect()
        client.send(f"GET {PATH}?follow=1 HTTP/1.0\r\n\r\n".encode())
        assert client.answer().error == (505, "version")

    def test_expired_messages_are_reported_as_a_gap(self) -> None:
        house = WebHouse(MemoryStore(2, 2**20))
        house.publish("a", b"1", b"2")
        house.publish("a", b"3", b"4")
        rows = house.get(PATH + "?start=0").lines
        assert rows[0] == {"gap": {"start": 0, "stop": 2, "reason": "expired"}}
        assert [row["value"] for row in rows[1:]] == ["3", "4"]


class FollowTests(SynchronousTestCase):
    """With follow"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.house.publish("a", b"before")

    def test_new_messages_arrive(self) -> None:
        follower = Follower(self.house)
        assert follower.values() == []
        assert b"Transfer-Encoding: chunked" in follower.head
        assert b"Pubsub-Start: 1" in follower.head
        self.house.publish("a", b"1", b"2")
        self.house.publish("b", b"3")
        self.house.publish("a", b"4")
        rows = follower.rows()
        assert [(row["offset"], row["value"]) for row in rows] == [(1, "1"), (2, "2"), (4, "4")]
        assert not follower.complete

    def test_from_the_beginning(self) -> None:
        follower = Follower(self.house, PATH + "?follow=1&start=0")
        assert follower.values() == ["before"]
        self.house.publish("a", b"1")
        assert follower.values() == ["1"]

    def test_several_topics_in_the_order_of_publishing(self) -> None:
        follower = Follower(self.house, PATH + "?follow=1&topic=b&topic=a&start=0")
        for topic in ("b", "a", "b"):
            self.house.publish(topic, topic.encode())
        assert follower.values() == ["before", "b", "a", "b"]

    def test_messages_while_very_many_topics_are_subscribed(self) -> None:
        """They come in order, so the position of each is behind all before it."""
        topics = [self.house.broker.topics.create(f"t{number}") for number in range(200)]
        topics[1].set_durability(Durability.NONE)
        also = "".join([f"&topic={topic.name}" for topic in topics])
        with patch.object(self.house.clock, "advance"):
            follower = Follower(self.house, f"{PATH}?follow=1&format=events{also}")
        assert sum([topic.subscriber_count for topic in topics]) < 200
        for name in ("t199", "t0", "t199", "t0"):
            self.house.publish(name, b"")
        ids = [int(event["id"].partition(":")[2]) for event in follower.events()]
        assert ids == [1, 2, 3, 4, 5]
        assert sum([topic.subscriber_count for topic in topics]) == 200
        # It is live again, and gets what is not stored.
        self.house.publish("t1", b"x")
        assert [json.loads(event["data"])["value"] for event in follower.events()] == ["x"]
        assert self.house.broker.counters.dropped == 0

    def test_it_may_be_requested_before_the_topic_exists(self) -> None:
        follower = Follower(self.house, "/v1/topics/new/messages?follow=1")
        assert "new" in self.house.broker.topics
        self.house.post("/v1/topics/new/messages", b"x")
        assert follower.values() == ["x"]
        follower.stream.lose()
        assert "new" in self.house.broker.topics

    def test_unused_topics_are_removed(self) -> None:
        topics = self.house.broker.topics
        before, held = len(topics), self.house.broker.memory.used
        names = "&topic=".join(f"t{number}" for number in range(200))
        one, two = (Follower(self.house, PATH + f"?follow=1&topic={names}") for _ in range(2))
        self.house.pass_time(1)
        assert len(topics) == before + 200
        one.stream.lose()
        self.house.pass_time(1)
        assert len(topics) == before + 200
        two.stream.lose()
        self.house.pass_time(1)
        assert len(topics) == before
        assert self.house.broker.memory.used == held

    def test_too_many_topics(self) -> None:
        topics = self.house.broker.topics
        topics.limit = len(topics) - topics.own
        answer = self.house.get("/v1/topics/new/messages?follow=1")
        assert answer.error == (507, "limit-reached")

    def test_events_have_their_position(self) -> None:
        follower = Follower(self.house, Accept=EVENTS)
        epoch = self.house.store.epoch
        (first,) = follower.events()
        assert first == {"retry": "1000", "id": f"{epoch}:1"}
        self.house.publish("a", b"1", b"2")
        one, two = follower.events()
        assert [one["id"], two["id"]] == [f"{epoch}:2", f"{epoch}:3"]
        assert json.loads(two["data"])["value"] == "2"

    def test_a_client_continues_at_its_position(self) -> None:
        first = Follower(self.house, Accept=EVENTS)
        self.house.publish("a", b"1")
        position = first.events()[-1]["id"]
        first.stream.lose()
        self.house.publish("a", b"2", b"3")
        second = Follower(self.house, Accept=EVENTS, Last_Event_ID=position)
        values = [json.loads(event["data"])["value"] for event in second.events()[1:]]
        assert values == ["2", "3"]

    def test_a_client_of_another_history(self) -> None:
        follower = Follower(self.house, Accept=EVENTS, Last_Event_ID="other-1:7")
        events = follower.events()
        assert events[1]["event"] == "gap"
        assert json.loads(events[1]["data"]) == {"start": 0, "stop": 0, "reason": "replaced"}
        assert json.loads(events[2]["data"])["value"] == "before"

    def test_messages_lost_in_a_crash_are_reported(self) -> None:
        class Reopened(MemoryStore):
            def continuation(self, epoch: str, offset: int) -> int | None:
                return min(offset, 1)

        house = WebHouse(Reopened(100, 2**20))
        house.publish("a", b"0", b"1", b"2")
        follower = Follower(house, Last_Event_ID="e:3")
        rows = follower.rows()
        assert rows[0] == {"gap": {"start": 1, "stop": 3, "reason": "lost"}}
        assert [row["value"] for row in rows[1:]] == ["1", "2"]

    def test_messages_that_are_not_stored(self) -> None:
        self.house.broker.topics.create("n").set_durability(Durability.NONE)
        follower = Follower(self.house, "/v1/topics/n/messages?follow=1&start=0")
        self.house.publish("n", b"1")
        assert follower.values() == ["1"]

    def test_signs_of_life(self) -> None:
        lines, events = Follower(self.house), Follower(self.house, Accept=EVENTS)
        lines.body(), events.body()
        self.house.publish("b", b"elsewhere")
        self.house.pass_time(HEARTBEAT_SECONDS + 1)
        assert lines.body() == b"\n"
        assert events.body() == f": \nid: {self.house.store.epoch}:2\n\n".encode()

    def test_expired_messages_are_reported_as_a_gap(self) -> None:
        house = WebHouse(MemoryStore(2, 2**20))
        house.publish("a", b"1", b"2")
        house.publish("a", b"3", b"4")
        rows = Follower(house, PATH + "?follow=1&start=0").rows()
        assert rows[0] == {"gap": {"start": 0, "stop": 2, "reason": "expired"}}
        assert [row["value"] for row in rows[1:]] == ["3", "4"]
        # It was not there when they expired.
        assert house.broker.counters.dropped == 0

    def test_the_next_request_of_a_connection_waits(self) -> None:
        follower = Follower(self.house)
        follower.client.ask("GET", "/v1/bounds")
        assert not follower.complete
        assert follower.values() == []

    def test_messages_that_are_not_stored_do_not_move_the_position(self) -> None:
        self.house.broker.topics.create("n").set_durability(Durability.NONE)
        target = PATH + "?topic=n&follow=1"
        follower = Follower(self.house, target, Accept=EVENTS)
        self.house.publish("a", b"1")
        self.house.publish("n", b"2", b"3")
        events = follower.events()
        assert [json.loads(one["data"])["value"] for one in events[1:]] == ["1", "2", "3"]
        position = [one["id"] for one in events if "id" in one][-1]
        follower.stream.lose()
        self.house.publish("a", b"4", b"5")
        again = Follower(self.house, target, Accept=EVENTS, Last_Event_ID=position).events()
        assert [json.loads(one["data"])["value"] for one in again[1:]] == ["4", "5"]


class SlowTests(SynchronousTestCase):
    """Followers that do not read"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.slow, self.fast = Follower(self.house), Follower(self.house)
        self.slow.stream.stop_reading()

    def publish(self, count: int) -> list[str]:
        """Publish large messages; return those that the fast follower gets."""
        found: list[str] = []
        for number in range(count):
            self.house.publish("a", (str(number) + BIG).encode())
            found += self.fast.values()
        return found

    def test_it_catches_up_from_the_history(self) -> None:
        fast = self.publish(60)
        assert len(fast) == 60
        assert self.house.broker.memory.used < 2 * 2**20
        self.slow.stream.read()
        assert self.slow.values() == fast
        assert not self.house.broker.counters.drops
        self.house.publish("a", b"live")
        assert self.slow.values() == ["live"]

    def test_retention_overtakes_it(self) -> None:
        house = self.house = WebHouse(MemoryStore(10, 2**26))
        self.slow, self.fast = Follower(house), Follower(house)
        self.slow.stream.stop_reading()
        self.publish(60)
        self.slow.stream.read()
        rows = self.slow.rows()
        (gap,) = [row["gap"] for row in rows if "gap" in row]
        assert gap["reason"] == "expired"
        offsets = [row["offset"] for row in rows if "offset" in row]
        assert offsets == [*range(gap["start"]), *range(gap["stop"], 60)]

    def test_the_policy_of_the_listener_applies(self) -> None:
        self.house = WebHouse(slow_consumer="disconnect", slow_bytes="256K")
        self.slow, self.fast = Follower(self.house), Follower(self.house)
        self.slow.stream.stop_reading()
        assert len(self.publish(20)) == 20
        assert self.slow.client.closed
        assert sum(self.house.broker.counters.drops.values()) > 0
        assert self.house.broker.memory.used < 200_000

    def test_no_sign_of_life_is_queued(self) -> None:
        self.publish(3)
        before = len(self.slow.stream.buffered)
        self.house.pass_time(10 * HEARTBEAT_SECONDS)
        assert len(self.slow.stream.buffered) == before

    def test_memory_is_charged_and_freed(self) -> None:
        used = self.house.broker.memory.used
        self.publish(10)
        assert self.house.broker.memory.used > used + len(BIG)
        self.slow.stream.lose()
        self.fast.stream.lose()
        self.house.clock.advance(0)
        assert self.house.broker.memory.used < used

    def test_messages_that_it_does_not_take_are_counted(self) -> None:
        self.publish(5)
        self.slow.stream.lose()
        drops = self.house.broker.counters.drops
        assert {reason for _, _, reason in drops} == {"disconnected"}
        assert sum(drops.values()) >= 3


class EndTests(SynchronousTestCase):
    """The end of a response"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.house.broker.topics.create("a")

    def ended(self, follower: Follower) -> str:
        """Return the reason with which a response has ended in order."""
        rows = follower.rows()
        assert follower.complete
        reason: str = rows[-1]["end"]["reason"]
        return reason

    def test_the_broker_stops(self) -> None:
        follower, slow = Follower(self.house), Follower(self.house)
        slow.body()
        slow.stream.stop_reading()
        for _ in range(3):
            self.house.publish("a", BIG.encode())
        done: list[object] = []
        self.house.broker.stopService().addCallback(done.append)
        assert self.ended(follower) == "stopped"
        assert not slow.complete
        slow.stream.read()
        assert self.ended(slow) == "stopped"
        self.house.pass_time(LINGER)
        assert done

    def test_an_administrator_disconnects(self) -> None:
        lines = Follower(self.house)
        lines.client.channel.dismiss("administrator: too noisy")
        assert self.ended(lines) == "administrator: too noisy"
        client = self.house.connect()
        client.ask("GET", "/v1/topics/a/messages?follow=1", Accept="text/event-stream")
        client.channel.dismiss("administrator")
        assert b'event: end\ndata: {"reason": "administrator"}\n\n' in client.stream.received

    def test_it_does_not_read_while_the_broker_stops(self) -> None:
        slow = Follower(self.house)
        slow.stream.stop_reading()
        for _ in range(3):
            self.house.publish("a", BIG.encode())
        done: list[object] = []
        self.house.broker.stopService().addCallback(done.append)
        self.house.pass_time(12)
        assert slow.client.closed
        assert done
        assert sum(self.house.broker.counters.drops.values()) > 0

    def test_the_client_closes_its_half(self) -> None:
        follower = Follower(self.house)
        self.house.publish("a", b"1")
        follower.client.channel.readConnectionLost()
        assert follower.rows()[0]["value"] == "1"
        assert follower.complete
        assert not self.house.broker.topics.named("a").has_readers

    def test_the_client_is_gone(self) -> None:
        follower = Follower(self.house)
        follower.stream.lose()
        self.house.publish("a", b"1")
        topic = self.house.broker.topics.named("a")
        assert not topic.has_readers
        assert self.house.broker.counters.connections == 0

    def test_the_topic_is_closed(self) -> None:
        follower = Follower(self.house)
        follower.body()
        self.house.publish("a", b"1")
        self.house.lock("a", b"k")
        self.house.publish("a", b"secret")
        rows = follower.rows()
        assert [row.get("value") for row in rows] == ["1", None, None]
        assert rows[1:] == [{"revoked": {"topic": "a"}}, {"end": {"reason": "revoked"}}]
        assert follower.complete
        assert follower.client.get("/v1/bounds").status == 200

    def test_one_of_several_topics_is_closed(self) -> None:
        follower = Follower(self.house, PATH + "?follow=1&topic=b")
        self.house.lock("a", b"k")
        self.house.publish("b", b"1")
        assert follower.rows() == [{"revoked": {"topic": "a"}}, *self.house.get(
            "/v1/topics/b/messages").lines]  # fmt: skip
        assert not follower.complete

    def test_the_topic_is_deleted(self) -> None:
        follower = Follower(self.house)
        topic = self.house.broker.topics.named("a")
        self.house.broker.slices.run(self.house.broker.topic_lifecycle.delete(topic))
        assert self.ended(follower) == "revoked"

    def test_rules_change(self) -> None:
        follower = Follower(self.house)
        listener = self.house.listener
        new = {**listener.settings, "allow-subscribe": ("b",)}
        self.house.broker.reconfigure(self.house.broker.tokens.ring, {("admin", ""): new})
        assert self.ended(follower) == "revoked"

    def test_the_token_expires(self) -> None:
        self.house.lock("a", b"k")
        follower = Follower(self.house, token=self.house.token("history", lasts=10))
        self.house.pass_time(8)
        self.house.publish("a", b"1")
        assert follower.values() == ["1"]
        self.house.pass_time(3)
        assert self.ended(follower) == "token-expired"
        self.house.publish("a", b"2")
        assert follower.body() == b""


class AccessTests(SynchronousTestCase):
    """Topics with a queue key"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.house.lock("a", b"k")

    def status(self, target: str, *permissions: str, key: str = "k") -> int:
        """Return the status of a request with a token with these permissions."""
        token = self.house.token(*permissions, key=key)
        follower = Follower(self.house, target, token=token)
        follower.body()
        return int(follower.head.split()[1])

    def test_new_messages_need_the_key_or_the_permission_history(self) -> None:
        live = PATH + "?follow=1"
        assert self.house.get(live).error == (403, "not-authorized")
        assert self.status(live, "subscribe") == 200
        assert self.status(live, "subscribe", key="other") == 403
        assert self.status(live, "publish") == 403
        assert self.status(live, "history", key="other") == 200

    def test_stored_messages_need_the_permission_history(self) -> None:
        for target in (PATH, PATH + "?follow=1&start=0"):
            assert self.status(target, "subscribe") == 403
            assert self.status(target, "history") == 200

    def test_a_rotated_key_ends_the_subscription(self) -> None:
        token = self.house.token("subscribe")
        follower = Follower(self.house, token=token)
        topic = self.house.broker.topics.named("a")
        self.house.broker.queue_keys.close(topic, b"new", "owner", "owner")
        rows = follower.rows()
        assert rows[-1] == {"end": {"reason": "revoked"}}

    def test_reserved_topics(self) -> None:
        path = "/v1/topics/$SYS%2Fevents/messages?follow=1"
        assert self.house.get(path).error == (403, "not-authorized")
