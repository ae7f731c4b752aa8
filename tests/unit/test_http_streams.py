"""HTTP streams: clients that do not read, disconnect, or lose their rights; request limits."""

from __future__ import annotations

import errno
import io
import os
import tempfile
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import CONNECTION_BYTES
from pubsub.broker.memory_budget import OUTPUT
from pubsub.http_api.requests.request_body import Body
from pubsub.store.memory_store import MemoryStore
from pubsub.store.records.parcel import Parcel
from pubsub.wire.departure import LINGER
from tests.unit.big_house import ALL, BIG, Threads, big_house
from tests.unit.web import WebClient, WebHouse

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer


class SmallDisk(io.FileIO):
    """A file on a disk with ``room`` bytes."""

    def __init__(self, room: int) -> None:
        super().__init__(os.memfd_create("small-disk"), "r+")
        self._room = room

    def write(self, data: Buffer, /) -> int:
        written = memoryview(data)[: self._room]
        if not written:
            raise OSError(errno.ENOSPC, "No space left on device")
        self._room -= len(written)
        return super().write(written)


class SlowTests(SynchronousTestCase):
    """Clients that do not read"""

    def setUp(self) -> None:
        self.house = big_house()
        self.client = self.house.connect()
        self.client.stream.stop_reading()
        self.client.ask("GET", ALL)

    def test_at_most_one_piece_is_queued(self) -> None:
        self.house.pass_time(5)
        assert 0 < len(self.client.stream.buffered) < 3 * len(BIG)

    def test_bytes_that_are_written_after_the_end_are_not_charged(self) -> None:
        memory = self.house.broker.memory
        client = self.house.connect()
        client.stream.stop_reading()
        used = memory.used
        client.channel.abort("evicted")
        # A response of the same tick: the transport still takes it, and is gone in the next one.
        client.stream.buffered += bytes(5000)
        client.channel.pauseProducing()
        self.house.pass_time(5)
        assert client.stream.lost
        assert memory.held[OUTPUT] == 0
        assert memory.used == used - CONNECTION_BYTES

    def test_a_client_that_resumes_reading_gets_everything(self) -> None:
        self.house.pass_time(20)
        self.client.stream.read()
        self.house.pass_time(1)
        answer = self.client.answer()
        assert answer.complete
        assert [row["value"] for row in answer.rows] == [BIG] * 12

    def test_it_is_disconnected_after_the_timeout(self) -> None:
        self.house.pass_time(29)
        assert not self.client.closed
        self.house.pass_time(2)
        assert self.client.closed
        assert self.house.body_bytes == 0

    def test_others_are_served_meanwhile(self) -> None:
        assert len(self.house.get(ALL).rows) == 12

    def test_reading_resets_the_timeout(self) -> None:
        for _ in range(3):
            self.house.pass_time(20)
            self.client.stream.read(on=False)
        assert not self.client.closed

    def test_a_truncated_reply_is_detectable(self) -> None:
        self.client.stream.received += self.client.stream.buffered
        self.house.pass_time(40)
        assert not self.client.answer().complete


class EndTests(SynchronousTestCase):
    """Streams that end early"""

    def half(self, house: WebHouse, target: str = ALL, **given: Any) -> WebClient:
        """Return a client that has received the first piece."""
        client = house.connect()
        client.stream.stop_reading()
        client.ask("GET", target, **given)
        client.stream.read(on=False)
        return client

    def cut(self, client: WebClient) -> bool:
        """Return whether the client can detect the missing data."""
        client.read_on()
        return client.stream.aborted and not client.answer().complete

    def test_the_client_disconnects(self) -> None:
        house = big_house(max_streams=1)
        client = self.half(house)
        assert house.get(ALL).error == (503, "streams")
        client.stream.lose()
        assert len(house.get(ALL).rows) == 12

    def test_the_client_disconnects_during_a_read_in_a_thread(self) -> None:
        threads = Threads()
        house = WebHouse(run=threads.run, max_streams=1)
        house.publish("a", b"1")
        client = house.connect()
        client.ask("GET", ALL)
        client.stream.lose()
        threads.step()
        assert not client.stream.received
        other = house.connect()
        other.ask("GET", ALL)
        threads.step()
        threads.step()
        assert other.answer().complete

    def test_its_token_expires(self) -> None:
        house = big_house()
        client = self.half(house, token=house.token("history", lasts=10))
        house.pass_time(11)
        assert self.cut(client)

    def test_a_named_topic_gets_a_key(self) -> None:
        house = big_house()
        client = self.half(house, ALL + "&topic=a")
        house.lock("a", b"k")
        assert self.cut(client)

    def test_an_unnamed_topic_that_gets_a_key_is_left_out(self) -> None:
        house = big_house()
        client = self.half(house)
        house.lock("a", b"k")
        client.read_on()
        answer = client.answer()
        assert answer.complete
        assert 0 < len(answer.rows) < 12

    def test_retention_overtakes_it(self) -> None:
        house = WebHouse(MemoryStore(12, 2**26))
        for _ in range(12):
            house.publish("a", BIG)
        client = self.half(house)
        for _ in range(12):
            house.publish("a", b"later")
        assert self.cut(client)

    def test_retention_overtakes_it_with_skip_expired(self) -> None:
        house = WebHouse(MemoryStore(12, 2**26))
        for _ in range(12):
            house.publish("a", BIG)
        client = self.half(house, ALL + "&skip_expired=1")
        for _ in range(12):
            house.publish("a", b"later")
        client.read_on()
        assert client.answer().complete

    def test_the_broker_stops(self) -> None:
        house = big_house()
        stream, idle = self.half(house), house.connect()
        done: list[object] = []
        house.broker.stopService().addCallback(done.append)
        assert idle.closed
        assert self.cut(stream)
        # The idle client does not close.
        house.pass_time(LINGER)
        assert done

    def test_a_defect_truncates_the_reply(self) -> None:
        house = big_house()

        def fail(call: Callable[[], Any]) -> Deferred[Any]:
            raise ZeroDivisionError

        house.run_in_thread = fail
        client = house.connect()
        client.ask("GET", ALL)
        assert client.closed
        assert not client.stream.received
        errors = self.flushLoggedErrors(ZeroDivisionError)  # type: ignore[no-untyped-call]
        assert len(errors) == 1


class RareTopicTests(SynchronousTestCase):
    """A range that has few messages of its topics"""

    def test_others_are_served_between_its_reads(self) -> None:
        house = WebHouse()
        for _ in range(5000):
            house.publish("a", b"x")
        house.publish("b", b"y")
        reads: list[int] = []
        read = MemoryStore.read_parcel

        def note(store: MemoryStore, start: int, *args: object) -> Deferred[Parcel]:
            reads.append(start)
            return read(store, start, *args)  # type: ignore[arg-type]

        client = house.connect()
        request = (
            b"GET /v1/history?start=0&topic=b&format=jsonl HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        with patch.object(MemoryStore, "read_parcel", note):
            client.stream.feed(request)
            assert len(reads) == 1
            client.send(b"")
        assert len(reads) > 2
        (row,) = client.answer().lines
        assert row["value"] == "y"


class WireTests(SynchronousTestCase):
    """Limits of requests"""

    def setUp(self) -> None:
        self.house = WebHouse(max_batch="2M", max_staged="6M")
        self.client = self.house.connect()

    def test_a_long_line(self) -> None:
        self.client.send(b"GET /" + b"x" * 20_000)
        assert self.client.closed

    def test_many_headers(self) -> None:
        self.client.send(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 1200)
        assert self.client.closed
        assert self.client.answer().status == 400

    def test_large_headers(self) -> None:
        self.client.send(b"GET / HTTP/1.1\r\n" + (b"X: " + b"y" * 1000 + b"\r\n") * 20)
        assert self.client.closed

    def test_input_that_is_not_http(self) -> None:
        self.client.send(b"\x00\xff\r\n\r\n")
        assert self.client.closed

    def test_a_body_announced_as_too_large(self) -> None:
        head = b"POST /v1/commit HTTP/1.1\r\nContent-Length: 1048577\r\n\r\n"
        self.client.send(head)
        answer = self.client.answer()
        assert answer.error == (413, "too-large")
        assert answer.headers["Connection"] == "close"
        assert self.client.closed
        self.client.send(b"x" * 1000)
        self.house.pass_time(3)
        assert self.client.stream.lost
        assert self.house.body_bytes == 0

    def test_no_continue_for_a_refused_body(self) -> None:
        head = b"POST /v1/commit HTTP/1.1\r\nContent-Length: 1048577\r\n"
        self.client.send(head + b"Expect: 100-continue\r\n\r\n")
        answer = self.client.answer()
        assert answer.error == (413, "too-large")
        assert answer.rest == b""

    def test_a_body_that_turns_out_too_large(self) -> None:
        self.client.send(b"POST /v1/stage HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(3):
            self.client.send(b"100000\r\n" + bytes(2**20) + b"\r\n")
        assert self.client.answer().error == (413, "too-large")
        self.house.pass_time(3)
        assert self.client.stream.lost
        assert self.house.body_bytes == 0

    def test_the_sum_of_bodies_is_limited(self) -> None:
        head = b"POST /v1/stage HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n"
        self.client.send(head + bytes(1_900_000))
        other = self.house.connect()
        other.send(head + bytes(1_900_000))
        assert other.answer().error == (507, "staged")
        self.client.stream.lose()
        assert self.house.connect().get("/v1/bounds").status == 200
        third = self.house.connect()
        third.send(head + bytes(1_900_000))
        assert not third.stream.received

    def test_a_request_that_does_not_arrive(self) -> None:
        self.client.send(b"GET / HTTP/1.1\r\n")
        for _ in range(15):
            self.client.send(b"X: y\r\n")
            self.house.pass_time(1)
        assert not self.client.closed
        self.house.pass_time(8)
        assert self.client.answer().error == (408, "timeout")
        assert self.client.closed

    def test_a_body_that_arrives_slowly(self) -> None:
        self.client.send(b"POST /v1/stage HTTP/1.1\r\nContent-Length: 2000000\r\n\r\n")
        for _ in range(18):
            self.client.send(bytes(65_536))
            self.house.pass_time(2)
        assert not self.client.closed
        for _ in range(25):
            self.client.send(b"x")
            self.house.pass_time(1)
        assert self.client.closed

    def test_a_connection_without_requests(self) -> None:
        assert self.client.get("/").status == 200
        self.house.pass_time(59)
        assert not self.client.closed
        self.house.pass_time(3)
        assert self.client.closed

    def test_connections_are_counted(self) -> None:
        house = WebHouse(max_connections_per_address=1)
        first, second = house.connect(), house.connect()
        refused = second.answer()
        assert refused.error == (503, "limit-reached")
        assert refused.json["detail"].startswith("the broker has no room for more connections")
        assert second.closed
        assert first.get("/").status == 200
        first.stream.lose()
        assert house.connect().get("/").status == 200
        assert house.broker.counters.connections == 1

    def test_forms_are_not_parsed(self) -> None:
        answer = self.client.post(
            "/v1/history", {"start": 0}, Content_Type="application/x-www-form-urlencoded"
        )
        assert answer.status == 200

    def test_a_full_disk(self) -> None:
        def full(body: object, data: bytes) -> int:
            raise OSError(28, "No space left on device")

        self.patch(Body, "write", full)  # type: ignore[no-untyped-call]
        answer = self.client.post("/v1/history", {"start": 0})
        assert answer.error == (507, "staged")
        assert self.house.connect().get("/").status == 200
        self.client.stream.lose()
        assert self.house.body_bytes == 0

    def test_a_disk_that_is_full_with_the_last_bytes(self) -> None:
        size = 100_000
        self.patch(  # type: ignore[no-untyped-call]
            tempfile,
            "TemporaryFile",
            lambda **options: io.BufferedRandom(SmallDisk(size - 500)),
        )
        # What is less than a buffer is written with what follows, or at the end.
        head = f"POST /v1/topics/a/messages HTTP/1.1\r\nContent-Length: {size}\r\n\r\n"
        self.client.send(head.encode() + b"x" * (size - 1000))
        self.client.send(b"x" * 1000)
        answer = self.client.answer("POST")
        self.client.stream.lose()
        assert answer.error == (507, "staged")
        assert self.house.body_bytes == 0
        assert self.house.broker.counters.connections == 0

    def test_without_descriptors_the_cause_is_told(self) -> None:
        def none_left(*arguments: object, **options: object) -> int:
            raise OSError(errno.EMFILE, "Too many open files")

        self.patch(tempfile, "tempdir", None)  # type: ignore[no-untyped-call]
        house = WebHouse()
        self.patch(os, "open", none_left)  # type: ignore[no-untyped-call]
        answer = house.connect().post("/v1/topics/a/messages", b"x" * 70_000)
        assert answer.error == (507, "staged")
        assert answer.json["detail"] == "cannot store the request body: Too many open files"

    def test_expect_continue(self) -> None:
        head = b"POST /v1/history HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 11\r\n\r\n"
        self.client.send(head)
        assert bytes(self.client.stream.received).startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.client.stream.received.clear()
        self.client.send(b'{"start":0}')
        assert self.client.answer().status == 200
