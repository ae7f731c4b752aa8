"""HTTP: the last messages of topics."""

from __future__ import annotations

from unittest.mock import patch

from twisted.internet.defer import Deferred, succeed

from pubsub.http_api.endpoints import MAX_LAST
from pubsub.http_api.reading import last_messages
from pubsub.store.memory_store import MemoryStore
from pubsub.store.records.parcel import Parcel
from tests.unit.house_case import HouseCase
from tests.unit.web import Answer


class LastTests(HouseCase):
    """GET /v1/history?last="""

    def last(self, number: int, *topics: str, more: str = "") -> list[str]:
        """Return the last payloads of topics."""
        return [row["value"] for row in self.answer(number, *topics, more=more).lines]

    def answer(self, number: object, *topics: str, more: str = "") -> Answer:
        named = "".join(f"&topic={topic}" for topic in topics)
        return self.house.get(f"/v1/history?last={number}&format=jsonl{named}{more}")

    def test_the_last_messages_oldest_first(self) -> None:
        self.house.publish("c", b"4", b"5", b"6")
        self.house.publish("b", b"7")
        assert self.last(2, "c") == ["5", "6"]
        assert self.last(1, "c") == ["6"]
        assert self.last(3, "b", "c") == ["5", "6", "7"]

    def test_fewer_and_none(self) -> None:
        assert self.last(10, "b") == ["3"]
        answer = self.answer(10, "nothing")
        assert (answer.status, answer.lines) == (200, [])
        assert answer.headers["pubsub-start"] == answer.headers["pubsub-stop"] == "3"

    def test_the_start_is_where_a_follower_can_begin(self) -> None:
        self.house.publish("c", b"4", b"5", b"6")
        self.house.publish("b", b"7")
        answer = self.answer(2, "c")
        assert (answer.headers["pubsub-start"], answer.headers["pubsub-stop"]) == ("4", "7")

    def test_before_an_offset(self) -> None:
        self.house.publish("c", b"4", b"5", b"6")
        assert self.last(2, "c", more="&stop=5") == ["4", "5"]
        assert self.answer(2, "c", more="&stop=7").error == (416, "beyond-end")

    def test_with_a_body(self) -> None:
        body = {"last": 1, "topics": ["a", "b"], "format": "jsonl", "headers": True}
        assert [row["value"] for row in self.house.post("/v1/history", body).lines] == ["3"]

    def test_parameters_that_do_not_fit(self) -> None:
        for number in (0, -1, MAX_LAST + 1, "x"):
            assert self.answer(number, "a").error == (400, "invalid-request"), number
        for more in ("&start=0", "&from=x", "&to=x", "&epoch=x"):
            assert self.answer(1, "a", more=more).error == (400, "invalid-request"), more
        assert self.answer(1).error == (400, "invalid-request")
        assert str(MAX_LAST) in self.answer(MAX_LAST + 1, "a").json["message"]

    def test_a_topic_that_may_not_be_read(self) -> None:
        self.house.lock("b", b"k")
        assert self.answer(1, "b").error == (403, "not-authorized")

    def test_a_deleted_topic(self) -> None:
        self.house.store.forget("a")
        assert self.last(1, "a") == []

    def test_a_rare_topic_among_many_messages(self) -> None:
        for _ in range(3000):
            self.house.publish("c", b"x")
        reads = self.reads_of(1, "b")
        assert len(reads) < 12
        assert self.last(1, "b") == ["3"]

    def test_many_large_messages_are_not_read(self) -> None:
        self.house.publish("b", *[b"%06d" % number + bytes(60_000) for number in range(200)])
        self.house.publish("c", *[b"x"] * 2000)
        nbytes: list[int] = []
        read = MemoryStore.read_parcel

        def count(store: MemoryStore, *args: object) -> Deferred[Parcel]:
            found = read(store, *args)  # type: ignore[arg-type]
            nbytes.append(self.successResultOf(found).nbytes)
            return read(store, *args)  # type: ignore[arg-type]

        with patch.object(MemoryStore, "read_parcel", count):
            (row,) = self.answer(1, "b").lines
        assert row["value"].startswith("000199")
        assert len(nbytes) < 40

    def reads_of(self, number: int, *topics: str) -> list[tuple[int, int]]:
        """Return the ranges that a request reads."""
        ranges: list[tuple[int, int]] = []
        read = MemoryStore.read_parcel

        def note(store: MemoryStore, start: int, stop: int, *args: object) -> Deferred[Parcel]:
            ranges.append((start, stop))
            return read(store, start, stop, *args)  # type: ignore[arg-type]

        with patch.object(MemoryStore, "read_parcel", note):
            assert self.answer(number, *topics).status == 200
        return ranges

    def test_the_reads_are_bounded(self) -> None:
        self.house.publish("c", *[b"x"] * 100)

        def nothing(store: MemoryStore, start: int, *args: object) -> Deferred[Parcel]:
            reads.append(start)
            return succeed(Parcel(start, start + 1, 0))

        reads: list[int] = []
        with (
            patch.object(last_messages, "READS", 20),
            patch.object(MemoryStore, "read_parcel", nothing),
        ):
            assert self.last(1, "a") == []
        assert len(reads) == 20

    def test_others_are_served_between_reads(self) -> None:
        for _ in range(3000):
            self.house.publish("c", b"x")
        reads: list[int] = []
        read = MemoryStore.read_parcel

        def note(store: MemoryStore, start: int, *args: object) -> Deferred[Parcel]:
            reads.append(start)
            return read(store, start, *args)  # type: ignore[arg-type]

        client = self.house.connect()
        request = b"GET /v1/history?last=1&topic=b HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with patch.object(MemoryStore, "read_parcel", note):
            client.stream.feed(request)
            assert len(reads) == 1
            client.send(b"")
        assert len(reads) > 1

    def test_memory_is_charged_while_it_looks(self) -> None:
        memory = self.house.broker.memory
        before, during = memory.used, 0
        read = MemoryStore.read_parcel

        def note(store: MemoryStore, *args: object) -> Deferred[Parcel]:
            nonlocal during
            during = max(during, memory.used - before)
            return read(store, *args)  # type: ignore[arg-type]

        with patch.object(MemoryStore, "read_parcel", note):
            assert self.last(1, "b") == ["3"]
        assert during >= last_messages._READ_BYTES
        # A connection has taken some.
        assert memory.used - before < last_messages._READ_BYTES
