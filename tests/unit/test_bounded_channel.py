"""HTTP: heads within limits, and requests that arrive together."""

from __future__ import annotations

import gc
import tracemalloc
from itertools import pairwise
from typing import Any

from twisted.internet.defer import Deferred

from pubsub.broker.memory_budget import INPUT
from pubsub.wire.direct_transport import READ_BYTES
from tests.unit.house_case import HouseCase
from tests.unit.streams import logged
from tests.unit.web import Answer, WebClient

PROBE = b"GET /healthz HTTP/1.1\r\n\r\n"
MANY = 500


def statuses(client: WebClient) -> list[bytes]:
    """Return the statuses of the responses so far."""
    return [part[:3] for part in bytes(client.stream.received).split(b"HTTP/1.1 ")[1:]]


class HeadTests(HouseCase):
    """Heads"""

    def test_a_length_of_thousands_of_digits_is_refused(self) -> None:
        lines = logged(self)
        client = self.house.connect()
        client.send(b"POST /v1/abort HTTP/1.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n")
        assert client.answer("POST").error == (400, "invalid-request")
        assert client.stream.half_closed
        assert "Traceback" not in "".join(lines)
        refusals = self.house.broker.counters.refusals
        assert refusals["http", "invalid-request"] == 1


class MemoryTests(HouseCase):
    """The memory that requests take"""

    def setUp(self) -> None:
        super().setUp()
        self.client = self.house.connect()
        self.memory = self.house.broker.memory

    def test_a_large_head_is_charged_until_its_request_is_answered(self) -> None:
        used = self.memory.used
        head = b"GET /healthz HTTP/1.1\r\n" + b"".join([b"X-%d: 1\r\n" % n for n in range(480)])
        self.client.send(head)
        assert self.memory.held[INPUT] > 480 * 100
        self.client.send(b"\r\n")
        assert self.client.answer().status == 200
        assert self.memory.used == used

    def test_so_is_that_of_a_response_without_end(self) -> None:
        used = self.memory.used
        self.client.ask("GET", "/v1/topics/a/messages?follow=1", Padding="x" * 12_000)
        assert self.memory.held[INPUT] > 6_000
        self.client.stream.lose()
        assert self.memory.held[INPUT] == 0
        assert self.memory.used < used

    def test_usual_heads_are_not_charged(self) -> None:
        headers: dict[str, Any] = {f"H{number}": "x" for number in range(20)}
        self.client.ask("GET", "/v1/topics/a/messages?follow=1", **headers)
        assert self.memory.held[INPUT] == 0

    def test_requests_behind_another_one_are_charged(self) -> None:
        self.client.send(b"POST /v1/topics/a/messages HTTP/1.1\r\nContent-Length: 2\r\n\r\n")
        self.client.stream.feed(b"hi" + PROBE * MANY)
        assert self.memory.held[INPUT] > len(PROBE) * (MANY - 11) - 4096
        self.house.clock.advance(0)
        assert self.memory.held[INPUT] == 0

    def test_none_is_kept_after_the_end(self) -> None:
        gc.disable()
        self.addCleanup(gc.enable)
        clients = [self.house.connect() for _ in range(3)]
        follow = b"GET /v1/topics/a/messages?follow=1 HTTP/1.1\r\n"
        for client in clients:
            client.send(follow + b"\r\n")
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        heads = [b"X: " + b"%d" % n * 7000 + b"\r\n\r\n" for n in range(3)]
        for client, head in zip(clients, heads, strict=True):
            client.stream.feed(PROBE * 10_000)
            client.stream.lose()
            one = self.house.connect()
            one.send(follow + head)
            one.stream.lose()
        del heads, head, one
        kept, _ = tracemalloc.get_traced_memory()
        assert kept < 100_000

    def test_many_trailers_are_refused(self) -> None:
        head = b"POST /v1/topics/a/messages HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
        self.client.send(head + b"A: b\r\n" * 50 + b"\r\n")
        assert self.client.answer("POST").status == 200
        self.client.send(head + b"A: b\r\n" * 500)
        assert self.client.answer("POST").error == (400, "invalid-request")


class ReadTests(HouseCase):
    """The bytes of a read"""

    def test_small_chunks_are_read_a_few_at_a_time(self) -> None:
        client = self.house.connect()
        short = client.stream.bufferSize
        assert short == 1024
        client.send(b"POST /v1/topics/a/messages HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert client.stream.bufferSize == short
        client.send(b"1\r\nx\r\n" * 10)
        assert client.stream.bufferSize == short
        client.send(b"3000\r\n" + b"x" * 0x2000)
        assert client.stream.bufferSize == 0x1000
        client.send(b"x" * 0x1000 + b"\r\n80000\r\n")
        assert client.stream.bufferSize == READ_BYTES
        client.send(b"x" * 0x80000 + b"\r\n0\r\n\r\n")
        assert client.answer("POST").status == 200
        assert client.stream.bufferSize == short


class TogetherTests(HouseCase):
    """Requests that arrive together"""

    # The largest number of calls that waited for a tick.
    calls = 0

    def client_before_a_body(self) -> WebClient:
        """Return a client that has sent the head of a request."""
        client = self.house.connect()
        client.send(b"POST /v1/topics/t/messages HTTP/1.1\r\nContent-Length: 2\r\n\r\n")
        return client

    def requests_behind_a_body(self, number: int) -> WebClient:
        """Return a client; one read has had the end of a body and ``number`` requests."""
        client = self.client_before_a_body()
        client.stream.feed(b"hi" + PROBE * number)
        return client

    def counts_by_tick(self, *clients: WebClient) -> list[tuple[int, ...]]:
        """Run ticks until all have MANY responses; return how many they have after each."""
        counts: list[tuple[int, ...]] = []

        def look() -> None:
            counts.append(tuple([len(statuses(client)) for client in clients]))
            self.calls = max(self.calls, len(self.house.clock.getDelayedCalls()))
            if min(counts[-1]) < MANY and len(counts) < 10 * MANY:
                self.house.clock.callLater(0, look)

        look()
        self.house.clock.advance(0)
        return counts

    def test_a_tick_handles_few_of_them(self) -> None:
        client = self.requests_behind_a_body(MANY)
        seen = len(statuses(client))
        assert seen <= 11
        assert client.stream.paused
        counts = [seen, *[count for (count,) in self.counts_by_tick(client)]]
        assert max(after - before for before, after in pairwise(counts)) <= 11
        assert statuses(client) == [b"200"] * (1 + MANY)
        assert not client.stream.paused

    def test_requests_behind_one_that_is_answered_later_take_turns_too(self) -> None:
        client = self.house.connect()
        self.house.broker.topics.create("t")
        client.send(b"GET /v1/topics/t/messages?follow=1 HTTP/1.1\r\n\r\n")
        client.stream.feed(PROBE * 30)
        assert not client.stream.paused
        client.stream.feed(PROBE * 30)
        assert client.stream.paused

    def test_a_tick_has_one_call_for_all_that_wait(self) -> None:
        client = self.client_before_a_body()
        before = len(self.house.clock.getDelayedCalls())
        client.stream.feed(b"hi" + PROBE * MANY)
        self.counts_by_tick(client)
        assert self.calls <= before + 5

    def test_connections_share_the_ticks(self) -> None:
        first, second = [self.client_before_a_body() for _ in range(2)]
        for client in (first, second):
            client.stream.feed(b"hi" + PROBE * MANY)
        for one, other in self.counts_by_tick(first, second):
            assert abs(one - other) <= 12

    def test_others_are_served_meanwhile(self) -> None:
        client = self.requests_behind_a_body(MANY)
        other = self.house.connect()
        other.stream.feed(PROBE)
        assert statuses(other) == []
        assert other.stream.paused
        served = [one for one, more in self.counts_by_tick(client, other) if more]
        assert served[0] <= 30
        assert not other.stream.paused

    def test_heads_of_many_connections_take_turns(self) -> None:
        clients = [self.house.connect() for _ in range(100)]
        for client in clients:
            client.stream.feed(PROBE[:-2] + b"X: y\r\n" * 160)
        assert sum(not client.stream.paused for client in clients) <= 15
        for client in clients:
            client.send(b"\r\n")
        assert [statuses(client) for client in clients] == [[b"200"]] * 100

    def test_requests_of_many_connections_take_turns(self) -> None:
        clients = [self.house.connect() for _ in range(200)]
        for client in clients:
            client.stream.feed(PROBE[:9])
            client.stream.feed(PROBE[9:])
        assert sum(len(statuses(client)) for client in clients) <= 11
        clients[150].stream.lose()
        clients[160].channel.drain()
        self.house.clock.advance(0)
        answered = [statuses(client) == [b"200"] for client in clients]
        assert answered == [number not in (150, 160) for number in range(200)]
        assert clients[160].closed

    def test_a_client_that_closes_its_half_gets_all_responses(self) -> None:
        client = self.requests_behind_a_body(MANY)
        client.channel.readConnectionLost()
        self.house.clock.advance(0)
        assert len(statuses(client)) == 1 + MANY
        assert client.stream.half_closed

    def test_a_client_that_has_closed_its_half_gets_responses_behind_a_later_one(self) -> None:
        waiting: list[Deferred[Any]] = []
        run, self.house.run_in_thread = self.house.run_in_thread, lambda _: waiting[0]
        client = self.house.connect()
        waiting.append(Deferred())
        client.send(b"GET /v1/history?start=3&format=jsonl HTTP/1.1\r\n\r\n" + PROBE * 5)
        client.channel.readConnectionLost()
        self.house.run_in_thread = run
        waiting[0].callback(b"")
        self.house.clock.advance(0)
        assert statuses(client) == [b"200"] * 6
        assert client.stream.half_closed

    def test_a_client_that_leaves_is_forgotten(self) -> None:
        lines = logged(self)
        client = self.requests_behind_a_body(MANY)
        client.stream.lose()
        self.house.clock.advance(0)
        assert len(statuses(client)) <= 11
        assert "Traceback" not in "".join(lines)
        assert self.house.body_bytes == 0

    def test_the_requests_of_two_reads_are_answered_in_order(self) -> None:
        client = self.requests_behind_a_body(20)
        client.stream.feed(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n" + PROBE[:5])
        client.stream.feed(PROBE[5:])
        self.house.clock.advance(0)
        assert statuses(client) == [b"200"] * 21 + [b"404", b"200"]
        assert Answer(bytes(client.stream.received), "POST").status == 200
