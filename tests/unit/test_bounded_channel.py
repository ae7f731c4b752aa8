"""HTTP: heads within limits, and requests that arrive together."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from twisted.internet.defer import Deferred

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


class TogetherTests(HouseCase):
    """Requests that arrive together"""

    def requests_behind_a_body(self, number: int) -> WebClient:
        """Return a client; one read has had the end of a body and ``number`` requests."""
        client = self.house.connect()
        client.send(b"POST /v1/topics/t/messages HTTP/1.1\r\nContent-Length: 2\r\n\r\n")
        client.stream.feed(b"hi" + PROBE * number)
        return client

    def test_a_tick_handles_few_of_them(self) -> None:
        client = self.requests_behind_a_body(MANY)
        seen = len(statuses(client))
        assert seen <= 11
        assert client.stream.paused
        counts = [seen]

        def look() -> None:
            counts.append(len(statuses(client)))
            if counts[-1] <= MANY:
                self.house.clock.callLater(0, look)

        look()
        self.house.clock.advance(0)
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

    def test_others_are_served_meanwhile(self) -> None:
        self.requests_behind_a_body(MANY)
        other = self.house.connect()
        other.stream.feed(PROBE)
        assert statuses(other) == [b"200"]

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
