"""HTTP: parts are staged, and batches are committed once."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pyarrow as pa

from pubsub.broker.topic_space.durability import Durability
from pubsub.broker.topic_space.topic_lifecycle import TOPICS
from pubsub.broker.topic_space.topics import Topic
from pubsub.store.memory_store import MemoryStore
from tests.unit.big_house import Threads
from tests.unit.fakes import Lines, Reader, Transport
from tests.unit.web import WebHouse, stream_of
from tests.unit.writing_case import HEADERS, WritingCase, table


class CommitTests(WritingCase):
    """Commits: once, together, in order"""

    def test_parts_in_the_order_that_is_given(self) -> None:
        first, second = self.part(b"1", b"22"), self.part(b"3", topic="b")
        answer = self.commit(second, first)
        assert answer.json == {"first": 0, "next": 3, "messages": 3, "duplicate": False}
        assert self.values() == [b"3", b"1", b"22"]
        assert self.house.body_bytes == 0

    def test_every_column(self) -> None:
        data = table(
            ["a", "a", "a", "b"],
            [b"1", b"", b"3", b"4"],
            key=pa.array([b"x", b"x", None, b"x"], pa.binary()),
            headers=pa.array([[{"key": "k", "value": b"v"}], None, [], []], HEADERS),
        )
        assert self.commit(self.stage(data).json["part"]).status == 200
        rows = self.house.get("/v1/history?start=0&headers=1").rows
        seen = [(row["topic"], row["key"], row["value"], row["protocol"]) for row in rows]
        assert seen == [
            ("a", b"x", b"1", "http"),
            ("a", b"x", b"", "http"),
            ("a", b"", b"3", "http"),
            ("b", b"x", b"4", "http"),
        ]
        assert [row["headers"] for row in rows] == [[{"key": "k", "value": b"v"}], [], [], []]

    def test_the_sender_is_the_tokens_subject(self) -> None:
        token = self.house.token()
        self.commit(self.part(b"1", token=token), token=token)
        rows = self.house.get("/v1/history?start=0").rows
        assert [row["key"] for row in rows] == [b"bob"]

    def test_a_repeated_commit_is_a_duplicate(self) -> None:
        id = self.part(b"1")
        first = self.commit(id).json
        assert self.commit(id).json == {**first, "duplicate": True}
        assert self.commit(self.part(b"1")).json == {**first, "duplicate": True}
        assert self.values() == [b"1"]
        assert self.house.body_bytes == 0

    def test_earlier_batches_are_duplicates(self) -> None:
        self.commit(self.part(b"1", batch=5), batch=5)
        assert self.commit(self.part(b"0", batch=4), batch=4).json == {"duplicate": True}
        assert self.commit(self.part(b"0"), query="r").error == (409, "unknown-part")
        assert self.values() == [b"1"]

    def test_queries_are_independent(self) -> None:
        self.commit(self.part(b"1"))
        other = self.part(b"1", query="r")
        assert self.commit(other, query="r").json["duplicate"] is False

    def test_an_unknown_part_commits_nothing(self) -> None:
        good = self.part(b"1")
        answer = self.commit(good, "0" * 32)
        assert answer.error == (409, "unknown-part")
        assert answer.json["part"] == "0" * 32
        assert self.commit(self.part(b"x", batch=1)).error == (409, "unknown-part")
        assert self.values() == []
        assert self.commit(good).json["messages"] == 1

    def test_an_empty_batch(self) -> None:
        answer = self.commit()
        assert answer.json == {"first": 0, "next": 0, "messages": 0, "duplicate": False}
        assert self.commit().json == answer.json

    def test_two_concurrent_commits(self) -> None:
        threads = Threads()
        self.house = WebHouse(run=threads.run)
        first, second = self.house.connect(), self.house.connect()
        first.ask("POST", "/v1/stage?query=q&batch=0", stream_of(table(["a"], [b"1"])))
        threads.step()
        body = {"query": "q", "batch": 0, "parts": [first.answer().json["part"]]}
        first.ask("POST", "/v1/commit", body)
        second.ask("POST", "/v1/commit", body)
        threads.step()
        assert first.answer().json["duplicate"] is False
        assert second.answer().json["duplicate"] is True
        assert self.house.store.next_offset == 1

    def test_commits_that_follow_one_another_on_a_connection(self) -> None:
        """The second begins within the end of the first, before the one that both waited for."""
        threads = Threads()
        self.house = WebHouse(run=threads.run)
        clients = [self.house.connect() for _ in range(3)]
        bodies = []
        for batch in (0, 1):
            data = stream_of(table(["a"], [b"%d" % batch]))
            clients[0].ask("POST", f"/v1/stage?query=q&batch={batch}", data)
            threads.step()
            part = clients[0].answer().json["part"]
            bodies.append({"query": "q", "batch": batch, "parts": [part]})
        clients[0].ask("POST", "/v1/commit", bodies[0])
        for body in bodies:
            clients[1].ask("POST", "/v1/commit", body)
        threads.step()
        clients[2].ask("POST", "/v1/commit", bodies[1])
        while threads.waiting:
            threads.step()
        assert clients[2].answer().json["duplicate"] is True
        assert self.house.store.next_offset == 2

    def test_parts_are_not_dropped_while_they_are_committed(self) -> None:
        threads = Threads()
        self.house = WebHouse(run=threads.run, stage_seconds=10)
        client = self.house.connect()
        client.ask("POST", "/v1/stage?query=q&batch=0", stream_of(table(["a"], [b"1"])))
        threads.step()
        body = {"query": "q", "batch": 0, "parts": [client.answer().json["part"]]}
        client.ask("POST", "/v1/commit", body)
        self.house.pass_time(11)
        assert self.house.post("/v1/abort", {"query": "q", "batch": 0}).status == 204
        threads.step()
        assert client.answer().json["messages"] == 1
        assert self.house.body_bytes == 0

    def test_the_end_of_the_broker(self) -> None:
        held = self.held()
        self.part(b"1")
        assert self.house.body_bytes
        self.house.broker.sessions.stop()
        self.part(b"2")
        assert self.house.body_bytes == 0
        assert self.held() == held
        names = [str(call) for call in self.house.clock.getDelayedCalls()]
        assert not [name for name in names if "drop" in name]

    def test_expired_parts_are_dropped_when_a_commit_fails(self) -> None:
        self.house = WebHouse(stage_seconds=10)
        id = self.part(b"1")
        topic = self.house.broker.topics.create("a")
        topic.block("somebody")
        client = self.house.connect()
        client.ask("POST", "/v1/commit", {"query": "q", "batch": 0, "parts": [id]})
        self.house.pass_time(21)
        assert client.answer().status == 429
        assert self.house.body_bytes == 0
        assert self.commit(id).error == (409, "unknown-part")

    def test_live_subscribers_receive_it(self) -> None:
        broker = self.house.broker
        topic = broker.topics.create("a")
        transport = Transport()
        transport.outbox = self.house.listener.outbox(transport, Reader())
        broker.router.subscribe(transport.outbox, topic, Lines())
        self.commit(self.part(b"1", b"2"))
        self.house.pass_time(1)
        assert transport.data == b"1\n2\n"

    def test_many_messages_are_published_in_pieces(self) -> None:
        values = [bytes([i % 256]) * 1000 for i in range(1000)]
        self.commit(self.part(*values))
        assert self.values() == values
        assert isinstance(self.house.store, MemoryStore)
        assert len(self.house.store._log._runs) > 3

    def test_a_commit_waits_like_publishers(self) -> None:
        topic = self.house.broker.topics.create("a")
        id = self.part(b"1")
        topic.block("somebody")
        client = self.house.connect()
        client.ask("POST", "/v1/commit", {"query": "q", "batch": 0, "parts": [id]})
        self.house.pass_time(10)
        assert not client.stream.received
        topic.unblock("somebody")
        self.house.pass_time(0.5)
        assert client.answer().status == 200
        topic.block("somebody")
        id = self.part(b"2", batch=1)
        client.ask("POST", "/v1/commit", {"query": "q", "batch": 1, "parts": [id]})
        self.house.pass_time(21)
        assert client.answer().error == (429, "rate-limited")
        topic.unblock("somebody")
        assert self.commit(id, batch=1).status == 200

    def test_unstored_topics_are_only_delivered(self) -> None:
        self.house.broker.topics.create("a").set_durability(Durability.NONE)
        assert self.commit(self.part(b"1")).json["messages"] == 1
        assert self.values() == []

    def test_abort(self) -> None:
        id = self.part(b"1")
        other = self.part(b"2", batch=1)
        assert self.house.post("/v1/abort", {"query": "q", "batch": 0}).status == 204
        assert self.commit(id).error == (409, "unknown-part")
        assert self.commit(other, batch=1).status == 200

    def test_invalid_parameters(self) -> None:
        good = {"query": "q", "batch": 0, "parts": []}
        for change in ({"query": ""}, {"query": 1}, {"batch": -1}, {"parts": "x"}, {"more": 1}):
            answer = self.house.post("/v1/commit", {**good, **change})
            assert answer.error == (400, "invalid-request")


class MistakeTests(WritingCase):
    """Commits that are not complete"""

    def test_a_commit_without_parts_drops_none(self) -> None:
        part = self.part(b"1")
        answer = self.house.post("/v1/commit", {"query": "q", "batch": 0})
        assert answer.error == (400, "invalid-request")
        assert self.commit(part).json["messages"] == 1


class ManyTopicsTests(WritingCase):
    """Batches with messages of many topics"""

    def setUp(self) -> None:
        super().setUp()
        self.house.broker.topics.limit = 2000
        self.names = [f"t{number:04}" for number in range(1900)]

    def part_of(self, names: list[str]) -> str:
        """Stage a part with a message for each of these topics."""
        id: str = self.stage(table(names, [name.encode() for name in names])).json["part"]
        return id

    def test_the_order_of_messages_is_kept(self) -> None:
        names = [*self.names, *reversed(self.names)]
        answer = self.commit(self.part_of(names)).json
        assert (answer["first"], answer["next"]) == (0, 3800)
        assert self.values() == [name.encode() for name in names]
        assert all(topic.hosted for topic in self.house.broker.topics)
        assert {name for name, _ in self.house.store.items(TOPICS)} >= set(names)

    def test_subscribers_of_some_topics_receive_theirs(self) -> None:
        broker = self.house.broker
        transport = Transport()
        transport.outbox = self.house.listener.outbox(transport, Reader())
        for name in ("t0007", "t1800", "t0001"):
            broker.router.subscribe(transport.outbox, broker.topics.create(name), Lines())
        broker.topics.named("t0007").set_durability(Durability.NONE)
        self.commit(self.part_of(self.names))
        self.house.pass_time(1)
        assert transport.data == b"t0001\nt0007\nt1800\n"
        values = self.values()
        assert len(values) == 1899
        assert b"t0007" not in values

    def refuse(self, names: list[str]) -> None:
        """Commit a batch that is refused and check that it changes nothing."""
        topics, memory = len(self.house.broker.topics), self.held()
        rows = sorted(self.house.store.items(TOPICS))
        id = self.part_of(names)
        assert self.commit(id).status in (409, 507)
        assert self.house.post("/v1/abort", {"query": "q", "batch": 0}).status == 204
        assert len(self.house.broker.topics) == topics
        assert self.held() == memory
        assert sorted(self.house.store.items(TOPICS)) == rows
        assert self.values() == []

    def test_a_refused_batch_leaves_no_topics(self) -> None:
        for number in range(200):
            self.house.broker.topics.create(f"u{number}")
        self.refuse(self.names)
        assert "t0000" not in self.house.broker.topics
        assert self.commit(self.part_of(self.names[:1800])).status == 200

    def test_a_batch_that_fails_midway_keeps_the_topics_of_its_messages(self) -> None:
        ids = [self.part(b"x", topic=name) for name in "abc"]
        dispatcher = self.house.broker.dispatcher
        publish, topics = dispatcher.publish, self.house.broker.topics

        def fail(topic: Topic, *arguments: Any) -> Any:
            if topic.name == "b":
                raise MemoryError
            return publish(topic, *arguments)

        with patch.object(dispatcher, "publish", fail):
            assert self.commit(*ids).status == 500
        self.flushLoggedErrors(MemoryError)  # type: ignore[no-untyped-call]
        assert ("a" in topics, "c" in topics) == (True, False)
        # As of those before, no mark is left.
        assert topics._provisional == {}

    def test_more_topics_than_there_may_be_are_refused_when_they_are_staged(self) -> None:
        names = [f"t{number}" for number in range(2001)]
        assert self.stage(table(names, [b""] * 2001)).error == (507, "limit-reached")

    def test_topics_of_another_broker_refuse_the_batch(self) -> None:
        self.house.broker.topics.create("u").upstream = object()  # type: ignore[assignment]
        self.refuse([*self.names, "u"])

    def test_topics_that_others_request_during_the_commit_stay(self) -> None:
        topics = self.house.broker.topics
        id = self.part_of(["a", "b", "c", "d", "e", "u"])
        other_id = self.stage(table(["c", "d", "u"], [b"", b"", b""]), query="r").json["part"]
        client, other = self.house.connect(), self.house.connect()
        threads = Threads()
        self.house.run_in_thread = threads.run
        client.ask("POST", "/v1/commit", {"query": "q", "batch": 0, "parts": [id]})
        other.ask("POST", "/v1/commit", {"query": "r", "batch": 0, "parts": [other_id]})
        # The topic is blocked while the parts are read.
        topics.create("u").block("somebody")
        threads.step()
        threads.step()
        # Each of these is a client that requests the topic.
        topics.create("a", hosted=False)
        topics.named("b")
        topics.named("d")
        self.house.pass_time(21)
        assert (client.answer().status, other.answer().status) == (429, 429)
        assert sorted(topic.name for topic in topics) == ["$SYS/stats", "a", "b", "d", "u"]


class AccessTests(WritingCase):
    """The right to write"""

    def setUp(self) -> None:
        super().setUp()
        self.house.lock("a", b"k")
        self.data = table(["a"], [b"1"])

    def test_a_topic_with_a_key(self) -> None:
        assert self.stage(self.data).error == (403, "not-authorized")
        for token in (
            self.house.token("publish", key="other"),
            self.house.token("history"),
            self.house.token("publish", key=""),
        ):
            assert self.stage(self.data, token=token).error == (403, "not-authorized")
        assert self.stage(self.data, token=self.house.token("publish")).status == 201

    def test_the_commit_needs_the_permission_too(self) -> None:
        token = self.house.token("publish")
        id = self.stage(self.data, token=token).json["part"]
        assert self.commit(id, token=self.house.token()).error == (403, "not-authorized")
        assert self.commit(id, token=token).status == 200

    def test_a_key_that_changes_in_between(self) -> None:
        token = self.house.token("publish")
        id = self.stage(self.data, token=token).json["part"]
        topic = self.house.broker.topics.named("a")
        self.house.broker.queue_keys.rotate(topic, b"new", "owner", "owner")
        assert self.commit(id, token=token).error == (403, "not-authorized")

    def test_topics_that_the_listener_does_not_allow(self) -> None:
        self.house = WebHouse(allow_publish="b*")
        assert self.stage(self.data).error == (403, "not-authorized")
        assert self.stage(table(["b", "a"], [b"", b""])).error == (403, "not-authorized")
        assert self.stage(table(["b"], [b""])).status == 201

    def test_a_topic_of_another_broker(self) -> None:
        self.house.broker.topics.create("b").upstream = object()  # type: ignore[assignment]
        id = self.part(b"1", topic="b")
        assert self.commit(id).error == (409, "remote-topic")
