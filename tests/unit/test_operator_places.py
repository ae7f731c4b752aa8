"""The HTTP API at the bounds of memory and connections: operators are served."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.limits import CONNECTION_BYTES
from pubsub.http_api.operators.status_follower import _SPARED
from pubsub.http_api.reading.live_response import RESPONSE_BYTES
from pubsub.http_api.requests.operator_places import _PLACES, PLACE_SECONDS
from pubsub.http_api.server import _SPARED_CONNECTIONS
from tests.unit.web import WebClient, WebHouse

# Those that an operator uses.
SERVED = (
    *("healthz", "readyz", "metrics", "v1", "v1/configuration"),
    *(f"v1/{name}" for name in ("status", "listeners", "store", "refusals", "audit", "peers")),
    *(f"v1/{name}" for name in ("slow", "sessions", "topics", "readers", "subscriptions")),
)
REFUSED = ("v1/history?start=0", "v1/topics/t/messages", "v1/ws", "v1/limits", "v1/bounds", "none")


class PlaceTests(SynchronousTestCase):
    """Connections at the memory bound, beyond those that are always admitted"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.clients = [self.house.connect() for _ in range(_SPARED_CONNECTIONS)]
        self.fill()

    def fill(self) -> None:
        """Use up the memory."""
        memory = self.house.broker.memory
        memory.limit = memory.used

    def sent(self, path: str, **given: Any) -> WebClient:
        client = self.house.connect()
        client.ask("GET", f"/{path}", token=self.house.token("admin"), **given)
        return client

    def test_requests_of_operators_are_answered_with_one_connection_each(self) -> None:
        used = self.house.broker.memory.used
        for path in SERVED:
            client = self.sent(path)
            answer = client.answer()
            assert answer.status == 200, path
            assert answer.headers["connection"] == "close"
            assert client.closed
            client.stream.lose()
        assert self.house.broker.memory.used == used

    def test_an_operator_can_disconnect_clients(self) -> None:
        mark = self.sent("v1/sessions?limit=1").answer().json["items"][0]["mark"]
        client = self.house.connect()
        client.ask("DELETE", f"/v1/sessions/{mark}", token=self.house.token("admin"))
        assert client.answer("DELETE").status in (202, 204)

    def test_other_requests_are_refused(self) -> None:
        for path in REFUSED:
            client = self.sent(path)
            assert client.answer().error == (503, "memory"), path
            assert client.closed
            client.stream.lose()
        assert self.house.broker.counters.refusals["http", "memory"] == len(REFUSED)

    def test_some_operators_can_follow_the_state(self) -> None:
        used = self.house.broker.memory.used
        followers = [self.sent("v1/status?follow=1&format=jsonl") for _ in range(_SPARED)]
        for client in followers:
            client.stream.received.clear()
        self.house.pass_time(int(3 * PLACE_SECONDS))
        for client in followers:
            assert b'"stats"' in client.stream.received
            assert not client.closed
        assert self.sent("v1/status?follow=1").answer().error == (503, "memory")
        assert self.sent("v1/status").answer().status == 200
        followers[0].stream.lose()
        assert b'"stats"' in self.sent("v1/status?follow=1").stream.received
        for client in followers[1:]:
            client.stream.lose()
        self.house.pass_time(1)
        # One that follows, and two whose requests were answered.
        assert self.house.broker.memory.used == used + 3 * CONNECTION_BYTES + RESPONSE_BYTES

    def test_a_body_of_another_request_is_refused_with_its_head(self) -> None:
        client = self.house.connect()
        client.send(b"POST /v1/topics/t/messages HTTP/1.1\r\nContent-Length: 9\r\n\r\n")
        assert client.answer("POST").error == (503, "memory")
        assert client.closed

    def test_the_places_are_bounded_and_returned(self) -> None:
        holders = [self.house.connect() for _ in range(_PLACES)]
        assert not any(client.closed for client in holders)
        refused = self.house.connect()
        assert refused.answer().error == (503, "memory")
        assert refused.closed
        holders[0].stream.lose()
        assert self.sent("v1/status").answer().status == 200

    def test_a_connection_without_a_request_gives_its_place_back(self) -> None:
        silent, slow = self.house.connect(), self.house.connect()
        slow.send(b"GET /v1/sta")
        for _ in range(int(PLACE_SECONDS)):
            self.house.clock.advance(1)
        assert not silent.closed
        assert not slow.closed
        for _ in range(3):
            self.house.clock.advance(1)
        assert silent.closed
        assert slow.answer().error == (408, "timeout")
        assert not any(client.closed for client in self.clients)

    def test_with_memory_again_the_connection_is_one_like_the_others(self) -> None:
        client = self.house.connect()
        self.house.broker.memory.limit *= 2
        assert client.get("/v1/bounds", token=self.house.token("admin")).status == 200
        assert not client.closed
        self.fill()
        assert client.get("/healthz").status == 200
        assert not client.closed

    def test_the_first_connections_need_no_place(self) -> None:
        client = self.clients[0]
        for _ in range(2):
            assert client.get("/healthz").status == 200
        assert not client.closed


class ConnectionTests(SynchronousTestCase):
    """Connections beyond ``max-connections``"""

    def setUp(self) -> None:
        self.house = WebHouse(max_connections=3)
        self.clients = [self.house.connect() for _ in range(3)]

    def test_operators_are_served(self) -> None:
        for path in SERVED:
            client = self.house.connect()
            client.ask("GET", f"/{path}", token=self.house.token("admin"))
            answer = client.answer()
            assert answer.status == 200, path
            assert answer.headers["connection"] == "close"
            client.stream.lose()
        assert self.house.broker.counters.connections == 3

    def test_others_are_refused(self) -> None:
        for path in REFUSED:
            client = self.house.connect()
            client.ask("GET", f"/{path}", token=self.house.token("admin"))
            assert client.answer().error == (503, "limit-reached"), path
            assert client.closed
            client.stream.lose()

    def test_the_places_are_bounded(self) -> None:
        for _ in range(_PLACES):
            assert not self.house.connect().closed
        refused = self.house.connect()
        assert refused.answer().error == (503, "limit-reached")
        assert refused.closed

    def test_some_operators_can_follow_the_state(self) -> None:
        token = self.house.token("admin")
        followers = [self.house.connect() for _ in range(_SPARED)]
        for client in followers:
            client.ask("GET", "/v1/status?follow=1", token=token)
            assert b'"stats"' in client.stream.received
        self.house.pass_time(int(3 * PLACE_SECONDS))
        assert not any(client.closed for client in followers)
        client = self.house.connect()
        client.ask("GET", "/v1/status?follow=1", token=token)
        assert client.answer().error == (503, "limit-reached")
        assert self.house.get("/v1/status", token=token).status == 200

    def test_a_client_that_leaves_makes_room(self) -> None:
        client = self.house.connect()
        self.clients[0].stream.lose()
        assert client.get("/v1/bounds", token=self.house.token("admin")).status == 200
        assert not client.closed
        assert self.house.connect().get("/v1/bounds").error == (503, "limit-reached")
