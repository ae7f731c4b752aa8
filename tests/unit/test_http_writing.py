"""HTTP: parts are staged, batches committed once; positions of readers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.admin import parts
from pubsub.admin.errors import ApiError
from pubsub.admin.parts import pieces_of, summary_of
from pubsub.broker.durability import Durability
from pubsub.store.memory import MemoryStore
from tests.unit.fakes import Lines, Transport
from tests.unit.test_http_streams import Threads
from tests.unit.web import Answer, WebHouse, stream_of

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def table(topics: list[str], values: list[bytes], **columns: Any) -> pa.Table:
    """A part's messages."""
    texts = pa.array(topics, pa.string())
    return pa.table({"topic": texts, "value": pa.array(values, pa.binary()), **columns})


class WritingCase(SynchronousTestCase):
    """A broker that is written to as the query q"""

    def setUp(self) -> None:
        self.house = WebHouse()

    def stage(
        self, data: pa.Table | bytes, batch: int = 0, query: str = "q", **given: Any
    ) -> Answer:
        """Stage a part."""
        body = data if isinstance(data, bytes) else stream_of(data)
        return self.house.post(f"/v1/stage?query={query}&batch={batch}", body, **given)

    def part(self, *values: bytes, topic: str = "a", **given: Any) -> str:
        """The id of a part with these payloads."""
        answer = self.stage(table([topic] * len(values), list(values)), **given)
        assert answer.status == 201
        id: str = answer.json["part"]
        return id

    def commit(self, *ids: str, batch: int = 0, query: str = "q", **given: Any) -> Answer:
        """Commit parts."""
        body = {"query": query, "batch": batch, "parts": list(ids)}
        return self.house.post("/v1/commit", body, **given)

    def values(self) -> list[bytes]:
        """The payloads of the whole history."""
        return [row["value"] for row in self.house.get("/v1/history?start=0").rows]


class StageTests(WritingCase):
    """What is taken as a part"""

    def test_messages_are_counted(self) -> None:
        answer = self.stage(table(["a", "b"], [b"1", b"2"]))
        assert (answer.status, answer.json["messages"]) == (201, 2)
        assert self.values() == []

    def test_an_empty_part(self) -> None:
        assert self.stage(table([], [])).json["messages"] == 0

    def test_columns_may_be_of_other_types(self) -> None:
        data = pa.table(
            {
                "value": pa.array(["é"], pa.large_string()),
                "topic": pa.array(["a"], pa.large_string()),
                "key": pa.array([None], pa.string()),
            }
        )
        id = self.stage(data).json["part"]
        assert self.commit(id).status == 200
        assert self.values() == ["é".encode()]

    def test_no_arrow(self) -> None:
        good = stream_of(table(["a"], [b"1"]))
        for bad in (
            b"",
            b"x",
            b"\xff" * 100,
            good[:100],
            good[:-20],
            b"\xff\xff\xff\xff\0\0\0\x7f",
        ):
            assert self.stage(bad).error == (400, "invalid-request"), bad
        assert self.house.factory.spooled.used == 0

    def test_other_columns(self) -> None:
        for columns in (
            {"topic": ["a"]},
            {"value": ["a"]},
            {"topic": ["a"], "value": [1]},
            {"topic": ["a"], "value": ["b"], "more": [1]},
            {"topic": [b"a"], "value": ["b"]},
            {"topic": [None], "value": pa.array(["b"])},
            {"topic": pa.array([None], pa.string()), "value": ["b"]},
            {"topic": ["a"], "value": pa.array([None], pa.binary())},
            {"topic": pa.array(["a"]).dictionary_encode(), "value": ["b"]},
            {"topic": [""], "value": ["b"]},
            {"topic": ["x" * 256], "value": ["b"]},
        ):
            assert self.stage(pa.table(columns)).error[0] == 400, columns

    def test_two_columns_of_a_name(self) -> None:
        data = pa.Table.from_arrays([pa.array(["a"])] * 3, names=["topic", "topic", "value"])
        assert self.stage(data).error == (400, "invalid-request")

    def test_compressed_streams_are_not_taken(self) -> None:
        for kind in ("zstd", "lz4"):
            data = stream_of(table(["a"], [bytes(1000)]), compression=kind)
            assert self.stage(data).error == (415, "compressed")

    def test_offsets_that_point_elsewhere(self) -> None:
        data = bytearray(stream_of(table(["a", "b"], [b"1", b"2"])))
        ends = pa.array([0, 1, 2], pa.int32()).buffers()[1].to_pybytes()[:12]
        place = data.rindex(ends)
        data[place + 8 : place + 12] = b"\xff\xff\xff\x0f"
        assert self.stage(bytes(data)).error == (400, "invalid-request")

    @settings(max_examples=200, deadline=None)
    @given(st.data())
    def test_nothing_that_is_wrong_does_harm(self, data: st.DataObject) -> None:
        stream = bytearray(stream_of(table(["a", "b"], [b"1", b"22"], key=[b"x", b"y"])))
        for _ in range(data.draw(st.integers(1, 4))):
            stream[data.draw(st.integers(0, len(stream) - 1))] = data.draw(st.integers(0, 255))
        house = WebHouse()
        answer = house.post("/v1/stage?query=q&batch=0", bytes(stream))
        assert answer.status in (201, 400, 413, 415)
        if answer.status == 201:
            body = {"query": "q", "batch": 0, "parts": [answer.json["part"]]}
            assert house.post("/v1/commit", body).status in (200, 400)
        assert not self.flushLoggedErrors()  # type: ignore[no-untyped-call]

    def test_parameters(self) -> None:
        body = stream_of(table(["a"], [b"1"]))
        for query in ("", "query=q", "batch=1", "query=q&batch=-1", "query=&batch=1"):
            assert self.house.post(f"/v1/stage?{query}", body).error == (400, "invalid-request")

    def test_too_many_messages(self) -> None:
        self.patch(parts, "_MESSAGES", 3)  # type: ignore[no-untyped-call]
        assert self.stage(table(["a"] * 4, [b""] * 4)).error == (413, "too-large")

    def test_a_batch_is_bounded(self) -> None:
        self.house = WebHouse(max_batch="100K")
        data = table(["a"], [bytes(60_000)])
        assert self.stage(data).status == 201
        assert self.stage(data).error == (413, "too-large")
        assert self.stage(data, batch=1).status == 201

    def test_all_that_is_staged_is_bounded_and_expires(self) -> None:
        self.house = WebHouse(max_staged="100K", stage_seconds=60)
        data = table(["a"], [bytes(60_000)])
        id = self.stage(data).json["part"]
        assert self.stage(data, batch=1).error == (507, "staged")
        self.house.pass_time(61)
        assert self.stage(data, batch=1).status == 201
        assert self.commit(id).error == (409, "unknown-part")

    def test_a_rate_limit(self) -> None:
        self.house = WebHouse(listener_rate_messages=10)
        assert self.stage(table(["a"] * 25, [b""] * 25)).status == 201
        answer = self.stage(table(["a"], [b""]))
        assert answer.error == (429, "rate-limited")
        assert answer.headers["Retry-After"] == "1"
        self.house.pass_time(3)
        assert self.stage(table(["a"], [b""])).status == 201

    def test_a_client_that_leaves_leaves_nothing(self) -> None:
        threads = Threads()
        self.house = WebHouse(run=threads.run)
        client = self.house.connect()
        client.ask("POST", "/v1/stage?query=q&batch=0", stream_of(table(["a"], [b"1"])))
        client.stream.lose()
        threads.step()
        assert self.house.factory.spooled.used == 0


class CommitTests(WritingCase):
    """Once, together, in order"""

    def test_parts_in_the_order_that_is_given(self) -> None:
        first, second = self.part(b"1", b"22"), self.part(b"3", topic="b")
        answer = self.commit(second, first)
        assert answer.json == {"first": 0, "next": 3, "messages": 3, "duplicate": False}
        assert self.values() == [b"3", b"1", b"22"]
        assert self.house.factory.spooled.used == 0

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
        self.commit(self.part(b"1", token=token))
        self.commit(self.part(b"2", batch=1), batch=1, token=token)
        rows = self.house.get("/v1/history?start=0").rows
        assert [row["key"] for row in rows] == [b"bob", b""]

    def test_again_it_is_a_duplicate(self) -> None:
        id = self.part(b"1")
        first = self.commit(id).json
        assert self.commit(id).json == {**first, "duplicate": True}
        assert self.commit(self.part(b"1")).json == {**first, "duplicate": True}
        assert self.values() == [b"1"]
        assert self.house.factory.spooled.used == 0

    def test_what_was_before_the_last_batch_is_a_duplicate(self) -> None:
        self.commit(self.part(b"1", batch=5), batch=5)
        assert self.commit(self.part(b"0", batch=4), batch=4).json == {"duplicate": True}
        assert self.commit(self.part(b"0"), query="r").error == (409, "unknown-part")
        assert self.values() == [b"1"]

    def test_queries_are_apart(self) -> None:
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

    def test_a_batch_of_nothing(self) -> None:
        answer = self.commit()
        assert answer.json == {"first": 0, "next": 0, "messages": 0, "duplicate": False}
        assert self.commit().json["duplicate"] is True

    def test_two_at_the_same_time(self) -> None:
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
        assert self.house.factory.spooled.used == 0

    def test_live_subscribers_get_it(self) -> None:
        broker = self.house.broker
        topic = broker.topics.create("a")
        transport = Transport()
        transport.outbox = self.house.listener.outbox(transport, lambda reason: None, "bob")
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

    def test_it_waits_while_publishers_have_to(self) -> None:
        topic = self.house.broker.topics.create("a")
        id = self.part(b"1")
        topic.block("somebody")
        client = self.house.connect()
        client.ask("POST", "/v1/commit", {"query": "q", "batch": 0, "parts": [id]})
        self.house.pass_time(10)
        assert not client.stream.received
        topic.unblock("somebody")
        assert client.answer().status == 200
        topic.block("somebody")
        id = self.part(b"2", batch=1)
        client.ask("POST", "/v1/commit", {"query": "q", "batch": 1, "parts": [id]})
        self.house.pass_time(21)
        assert client.answer().error == (429, "rate-limited")
        topic.unblock("somebody")
        assert self.commit(id, batch=1).status == 200

    def test_topics_that_are_not_stored_are_delivered_alone(self) -> None:
        self.house.broker.topics.create("a").durability = Durability.NONE
        assert self.commit(self.part(b"1")).json["messages"] == 1
        assert self.values() == []

    def test_abort(self) -> None:
        id = self.part(b"1")
        other = self.part(b"2", batch=1)
        assert self.house.post("/v1/abort", {"query": "q", "batch": 0}).status == 204
        assert self.commit(id).error == (409, "unknown-part")
        assert self.commit(other, batch=1).status == 200

    def test_nonsense(self) -> None:
        good = {"query": "q", "batch": 0, "parts": []}
        for change in ({"query": ""}, {"query": 1}, {"batch": -1}, {"parts": "x"}, {"more": 1}):
            answer = self.house.post("/v1/commit", {**good, **change})
            assert answer.error == (400, "invalid-request")


class AccessTests(WritingCase):
    """Who may write what"""

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

    def test_the_commit_needs_it_too(self) -> None:
        token = self.house.token("publish")
        id = self.stage(self.data, token=token).json["part"]
        assert self.commit(id).error == (403, "not-authorized")
        assert self.commit(id, token=token).status == 200

    def test_a_key_that_changes_in_between(self) -> None:
        token = self.house.token("publish")
        id = self.stage(self.data, token=token).json["part"]
        topic = self.house.broker.topics.named("a")
        self.house.broker.queue_keys.rotate(topic, b"new", "owner", "owner")
        assert self.commit(id, token=token).error == (403, "not-authorized")

    def test_what_the_listener_does_not_allow(self) -> None:
        self.house = WebHouse(allow_publish="b*")
        assert self.stage(self.data).error == (403, "not-authorized")
        assert self.stage(table(["b", "a"], [b"", b""])).error == (403, "not-authorized")
        assert self.stage(table(["b"], [b""])).status == 201

    def test_a_topic_of_another_broker(self) -> None:
        self.house.broker.topics.create("b").upstream = object()  # type: ignore[assignment]
        id = self.part(b"1", topic="b")
        assert self.commit(id).error == (409, "remote-topic")


class PieceTests(SynchronousTestCase):
    """Parts as batches"""

    def test_what_is_said_is_what_there_is(self) -> None:
        import io

        file = io.BytesIO(stream_of(table(["a", "a", "b"], [b"1", b"22", b""])))
        assert summary_of(file) == (3, frozenset("ab"))
        one, two = pieces_of(file, b"s")
        assert (one.topic, one.sender, one.payloads, one.nbytes, one.size, one.headers) == (
            "a", b"s", [b"1", b"22"], 3, -1, None,
        )  # fmt: skip
        assert (two.topic, two.payloads, two.size) == ("b", [b""], 0)

    def test_no_part(self) -> None:
        import io

        with pytest.raises(ApiError):
            summary_of(io.BytesIO(b"?"))


class ReaderTests(SynchronousTestCase):
    """/v1/readers"""

    def setUp(self) -> None:
        self.house = WebHouse(max_readers=2)
        self.house.publish("a", b"1", b"2", b"3")

    def put(self, name: str, **body: Any) -> Answer:
        """Report a position."""
        client = self.house.connect()
        client.ask("PUT", f"/v1/readers/{name}", body)
        return client.answer("PUT")

    def delete(self, name: str) -> int:
        """Forget a reader."""
        client = self.house.connect()
        client.ask("DELETE", f"/v1/readers/{name}")
        return client.answer("DELETE").status

    def readers(self) -> list[Any]:
        """All of them."""
        rows: list[Any] = self.house.get("/v1/readers").json["readers"]
        return rows

    def test_positions_and_lag(self) -> None:
        epoch = self.house.store.epoch
        assert self.put("a%20%2F%C3%BC", offset=1).status == 204
        assert self.put("b", offset=3, epoch=epoch).status == 204
        self.house.publish("a", b"4")
        stamp = self.house.broker.timestamp()
        first, second = self.readers()
        assert first == {
            "name": "a /ü", "offset": 1, "epoch": epoch, "updated": stamp, "lag": 3,
        }  # fmt: skip
        assert (second["name"], second["lag"]) == ("b", 1)
        assert self.put("b", offset=4).status == 204
        assert self.readers()[1]["lag"] == 0

    def test_one_that_is_no_more(self) -> None:
        self.put("a", offset=1)
        assert self.delete("a") == 204
        assert self.delete("a") == 204
        assert self.readers() == []

    def test_not_too_many(self) -> None:
        assert [self.put(name, offset=0).status for name in "aba"] == [204] * 3
        assert self.put("c", offset=0).error == (507, "limit-reached")

    def test_positions_that_cannot_be(self) -> None:
        assert self.put("a", offset=4).error == (416, "beyond-end")
        assert self.put("a", offset=0, epoch="other").error == (409, "epoch")
        for body in ({}, {"offset": -1}, {"offset": "x"}, {"offset": 1, "more": 2}):
            assert self.put("a", **body).error == (400, "invalid-request")
        for name in ("", "%ff", "x" * 256):
            assert self.put(name, offset=0).error == (400, "invalid-request")
        assert self.readers() == []
