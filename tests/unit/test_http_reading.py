"""HTTP: bounds, topics, and the history in both formats."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch
from urllib.parse import quote

from twisted.internet.defer import Deferred, succeed

from pubsub.broker.routing.batch import message_id
from pubsub.store.memory_store import MemoryStore
from tests.unit.fakes import START
from tests.unit.house_case import HouseCase
from tests.unit.web import WebHouse

NOW = int(START * 1_000_000)


class IndexTests(HouseCase):
    """The index page"""

    def test_the_root_names_the_endpoints(self) -> None:
        answer = self.house.get("/")
        assert answer.status == 200
        for path in ("bounds", "topics", "history", "readers", "stage", "commit", "abort"):
            assert f"/v1/{path}".encode() in answer.body

    def test_other_paths_are_not_found(self) -> None:
        for path in ("/x", "/v1/", "/v1/bounds/", "//"):
            assert self.house.get(path).error == (404, "not-found")

    def test_other_methods(self) -> None:
        assert self.house.post("/v1/bounds", {}).error == (405, "method")
        assert self.house.get("/v1/commit").error == (405, "method")

    def test_refusals_are_counted(self) -> None:
        before = self.house.broker.counters.refused
        self.house.get("/x")
        assert self.house.broker.counters.refused == before + 1

    def test_one_connection_serves_request_after_request(self) -> None:
        client = self.house.connect()
        client.send(b"GET /v1/bounds HTTP/1.1\r\nHost: localhost\r\n\r\n" * 2)
        first = client.answer()
        assert first.json["next"] == 3
        assert first.rest.startswith(b"HTTP/1.1 200")
        assert client.get("/v1/bounds").json["next"] == 3


class BoundsTests(HouseCase):
    """/v1/bounds"""

    def test_first_and_next_offset(self) -> None:
        epoch = self.house.store.epoch
        assert self.house.get("/v1/bounds").json == {"first": 0, "next": 3, "epoch": epoch}

    def test_an_offset_by_time(self) -> None:
        self.house.pass_time(10)
        self.house.publish("a", b"4")
        stamps = {-5: 0, NOW: 0, NOW + 1: 3, NOW + 10_000_000: 3, NOW + 10_000_001: 4}
        found = {at: self.house.get(f"/v1/bounds?timestamp={at}").json["offset"] for at in stamps}
        assert found == stamps

    def test_invalid_parameters(self) -> None:
        for query in (
            "timestamp=x", "timestamp=1&timestamp=2", "time=1", "timestamp=" + "9" * 30,
            "skip_expired=2", "timestamp=%D9%A3",
        ):  # fmt: skip
            assert self.house.get(f"/v1/bounds?{query}").error == (400, "invalid-request")

    def test_numbers_at_the_limits(self) -> None:
        for number in (-(2**63), 2**63 - 1):
            assert self.house.get(f"/v1/bounds?timestamp={number}").status == 200
        for value, limit in (
            (str(-(2**63) - 1), "at least -9223372036854775808"),
            (str(2**63), "at most 9223372036854775807"),
            (str(10**29), "at most 9223372036854775807"),
            ("2026-01-31T12:00:00Z", "at least -9223372036854775808"),
        ):
            detail = self.house.get(f"/v1/bounds?timestamp={value}").json["detail"]
            unit = "µs since the Unix epoch, a whole number"
            assert detail == f"timestamp: expected {unit}, {limit}"


class TopicsTests(HouseCase):
    """/v1/topics"""

    def test_of_all_and_of_a_range(self) -> None:
        a, b = (
            {"name": "a", "messages": 2, "bytes": 3 + 2 * len(b"alice")},
            {"name": "b", "messages": 1, "bytes": 1 + len(b"alice")},
        )
        assert self.house.get("/v1/topics?start=0").json == {"topics": [a, b]}
        assert self.house.get("/v1/topics?start=2").json == {"topics": [b]}
        part = {"name": "a", "messages": 1, "bytes": 1 + len(b"alice")}
        assert self.house.get("/v1/topics?stop=1").json == {"topics": [part]}

    def test_a_topic_that_begins_again_while_they_are_listed(self) -> None:
        topics = self.house.broker.topics
        topics.remove(topics.named("b"))

        def finish(work: Iterator[None]) -> Deferred[None]:
            next(work)
            topics.create("b")
            list(work)
            return succeed(None)

        with patch.object(self.house.broker.slices, "finish", finish):
            found = self.house.get("/v1/topics?start=0").json["topics"]
        assert [row["name"] for row in found] == ["a", "b"]

    def test_topics_with_a_key_need_a_token(self) -> None:
        self.house.lock("a", b"k")
        names = [row["name"] for row in self.house.get("/v1/topics?start=0").json["topics"]]
        assert names == ["b"]
        token = self.house.token("history", key="other")
        names = [
            row["name"] for row in self.house.get("/v1/topics?start=0", token=token).json["topics"]
        ]
        assert names == ["a", "b"]


class ArrowTests(HouseCase):
    """/v1/history, format=arrow"""

    def test_every_column(self) -> None:
        answer = self.house.get("/v1/history?start=0&headers=1")
        assert (answer.status, answer.complete) == (200, True)
        assert answer.headers["Content-Type"] == "application/vnd.apache.arrow.stream"
        names = ("Pubsub-Start", "Pubsub-Stop", "Pubsub-First", "Pubsub-Epoch")
        assert [answer.headers[name] for name in names] == ["0", "3", "0", self.house.store.epoch]
        row = answer.rows[1]
        stamp = row.pop("timestamp")
        assert round(stamp.timestamp() * 1e6) == NOW
        assert row == {
            "topic": "a",
            "partition": 0,
            "offset": 1,
            "protocol": "toy",
            "key": b"alice",
            "value": b"\xff2",
            "message_id": str(message_id(self.house.broker.dispatcher.run_id, 1)),
            "headers": [],
        }

    def test_proxies_are_told_to_read_as_fast_as_the_client(self) -> None:
        for query in ("start=0", "start=0&format=jsonl"):
            answer = self.house.get(f"/v1/history?{query}")
            assert answer.headers["X-Accel-Buffering"] == "no"

    def test_ranges_and_topics(self) -> None:
        assert self.values("/v1/history?start=1&stop=3") == [b"\xff2", b"3"]
        assert self.values("/v1/history?start=1&stop=1") == []
        assert self.values("/v1/history?start=0&topic=b&topic=x") == [b"3"]
        posted = self.house.post("/v1/history", {"start": 1, "topics": ["a"], "stop": 3})
        assert [row["value"] for row in posted.rows] == [b"\xff2"]

    def test_unusual_topic_names(self) -> None:
        names = ["ü&=?#/ %", "x" * 255, "\n", "日本"]
        for name in names:
            self.house.publish(name, name.encode())
        for name in names:
            assert self.values(f"/v1/history?start=0&topic={quote(name)}") == [name.encode()]

    def test_compression(self) -> None:
        self.house.publish("z", b"0" * 100_000)
        plain = self.house.get("/v1/history?start=3")
        for kind in ("zstd", "lz4"):
            packed = self.house.get(f"/v1/history?start=3&compression={kind}")
            assert packed.rows == plain.rows
            assert len(packed.body) < len(plain.body) / 10

    def test_headers_of_messages(self) -> None:
        self.house.publish("h", b"", headers=[{"k": b"\xff", "l": b""}])
        answer = self.house.get("/v1/history?start=3&headers=1")
        expected = [{"key": "k", "value": b"\xff"}, {"key": "l", "value": b""}]
        assert answer.rows[0]["headers"] == expected

    def test_a_large_message(self) -> None:
        self.house.publish("z", b"0" * 2**20)
        assert self.values("/v1/history?start=3") == [b"0" * 2**20]


class JsonTests(HouseCase):
    """/v1/history, format=jsonl"""

    def test_each_message_is_a_line(self) -> None:
        answer = self.house.get("/v1/history?start=0&format=jsonl")
        assert answer.headers["Content-Type"] == "application/x-ndjson"
        first, second, third = answer.lines
        assert first == {
            "offset": 0,
            "timestamp": NOW,
            "topic": "a",
            "protocol": "toy",
            "key": "YWxpY2U=",
            "value": "1",
            "message_id": str(message_id(self.house.broker.dispatcher.run_id, 0)),
        }
        assert (second["offset"], second["value_base64"]) == (1, "/zI=")
        assert "value" not in second
        assert third["topic"] == "b"

    def test_ranges_topics_and_headers(self) -> None:
        self.house.publish("b", b"4", headers=[{"k": b"v"}])
        lines = self.house.get("/v1/history?start=1&stop=4&topic=b&format=jsonl&headers=1").lines
        assert [line["headers"] for line in lines] == [[], [{"key": "k", "value": "v"}]]

    def test_a_range_in_the_middle_of_a_run(self) -> None:
        lines = self.house.get("/v1/history?start=1&stop=2&format=jsonl").lines
        assert [line["offset"] for line in lines] == [1]


class RangeTests(HouseCase):
    """Ranges that cannot be read"""

    def test_beyond_the_end(self) -> None:
        for query in ("start=4", "start=0&stop=4"):
            answer = self.house.get(f"/v1/history?{query}")
            assert answer.error == (416, "beyond-end")
            assert answer.json["next"] == 3
        assert self.values("/v1/history?start=3") == []

    def test_expired(self) -> None:
        house = WebHouse(MemoryStore(2, 2**20))
        for payload in (b"1", b"2", b"3"):
            house.publish("a", payload)
        answer = house.get("/v1/history?start=0")
        assert answer.error == (410, "expired")
        assert answer.json["first"] == 1
        skipped = house.get("/v1/history?start=0&skip_expired=1")
        assert skipped.headers["Pubsub-Start"] == "1"
        assert [row["value"] for row in skipped.rows] == [b"2", b"3"]
        assert house.get("/v1/history?start=0&stop=1&skip_expired=1").rows == []

    def test_another_epoch(self) -> None:
        good = self.house.store.epoch
        assert self.values(f"/v1/history?start=2&epoch={good}") == [b"3"]
        answer = self.house.get("/v1/history?start=0&epoch=other")
        assert answer.error == (409, "epoch")
        assert answer.json["epoch"] == good

    def test_invalid_parameters(self) -> None:
        for query in (
            "", "start=-1", "start=x", "start=2&stop=1", "start=0&format=xml", "start=0&topic=",
            "start=0&topic=" + "x" * 256, "start=0&headers=7", "start=0&x=1", "start=0&start=1",
            "start=0&topic=%ff", "start=0&compression=gzip",
            "start=0&format=jsonl&compression=zstd", "start=0&to=1", "start=%D9%A3",
        ):  # fmt: skip
            assert self.house.get(f"/v1/history?{query}").error == (400, "invalid-request"), query

    def test_a_parameter_that_is_missing(self) -> None:
        answer = self.house.get("/v1/history?format=jsonl")
        detail = "the parameter start is missing; give a whole number, at least 0"
        assert answer.json["detail"] == detail
        assert self.house.post("/v1/history", {"topics": ["a"]}).json["detail"] == detail
        answer = self.house.get("/v1/history?start=x")
        assert answer.json["detail"] == "start: expected a whole number, at least 0"

    def test_invalid_parameters_in_json(self) -> None:
        for body in (
            b"", b"[]", b"{", b"[" * 10_000, {"start": True}, {"start": 1.5}, {"start": [0, 1]},
            {"start": 0, "topics": "a"}, {"start": 0, "topics": [1]}, {"start": 0, "topic": ["a"]},
            {"start": 2**63}, {"start": [0]}, {"start": 0, "headers": [True]},
            {"start": 0, "topics": ["\ud800"]},
        ):  # fmt: skip
            assert self.house.post("/v1/history", body).error == (400, "invalid-request"), body

    def test_http_1_0_does_not_show_a_truncated_stream(self) -> None:
        client = self.house.connect()
        client.send(b"GET /v1/history?start=0 HTTP/1.0\r\n\r\n")
        assert client.answer().error == (505, "version")
