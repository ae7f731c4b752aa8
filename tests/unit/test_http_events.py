"""HTTP: the events of its connections and refusals, and the right to read them."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.figures.events import TOPIC
from tests.unit.web import WebClient, WebHouse, stream_of
from tests.unit.web_sockets import connected
from tests.unit.writing_case import table

NAMED = f"/v1/history?start=0&topic={quote(TOPIC)}"


class EventsCase(SynchronousTestCase):
    """A broker with the API and events"""

    def build(self, **settings: Any) -> None:
        """Start a broker with a closed topic and one client."""
        self.house = WebHouse(events=True, **settings)
        self.house.publish("a", b"1")
        self.house.lock("closed", b"k")
        self.client = self.house.connect()

    def published_events(self) -> list[dict[str, Any]]:
        """Return the events so far, without the fields that every HTTP event has."""
        self.house.pass_time(0.5)
        page = self.successResultOf(self.house.store.read(0, frozenset({TOPIC}), 2**24))
        events = [json.loads(data) for batch in page.batches for data in batch.payloads()]
        for event in events:
            assert (event.pop("protocol"), event.pop("listener")) == ("http", "")
        return events

    def stage(self, client: WebClient, *values: bytes) -> str:
        """Stage a part for the topic a and return its id."""
        body = stream_of(table(["a"] * len(values), list(values)))
        id: str = client.post("/v1/stage?query=q&batch=0", body).json["part"]
        return id

    def commit(self, client: WebClient, *ids: str) -> None:
        """Commit the staged parts."""
        body = {"query": "q", "batch": 0, "parts": list(ids)}
        assert client.post("/v1/commit", body).status == 200


class EventContentTests(EventsCase):
    """The content of events"""

    def setUp(self) -> None:
        self.build()

    def test_events_of_a_publisher(self) -> None:
        self.commit(self.client, self.stage(self.client, b"1", b"234"))
        self.client.stream.lose()
        connect, disconnect = self.published_events()
        assert (connect.pop("event"), disconnect.pop("event")) == ("connect", "disconnect")
        assert len(connect["session"]) == 16
        assert disconnect == {**connect, "reason": "left", "messages": 2, "bytes": 4}

    def test_the_end_has_the_identity_of_a_websocket(self) -> None:
        """The address does not tell whose connection it was."""
        socket = connected(self.house, token=self.house.token("publish", sub="ada").decode())
        socket.ask("publish", topic="a", value="1")
        socket.stream.lose()
        connect, disconnect = self.published_events()
        assert (disconnect["identity"], disconnect["client"]) == ("ada", connect["client"])

    def test_a_websocket_that_only_subscribes(self) -> None:
        reader = self.house.connect()
        reader.get("/v1/bounds")
        reader.stream.lose()
        assert self.published_events() == []
        socket = connected(self.house, token=self.house.token("subscribe", sub="ada").decode())
        socket.ask("subscribe", topic="a")
        (connect,) = self.published_events()
        assert connect["event"] == "connect"
        socket.ask("connect", token=self.house.token("subscribe", sub="bob").decode())
        socket.stream.lose()
        *_, disconnect = events = self.published_events()
        assert [event["event"] for event in events] == ["connect", "disconnect"]
        assert disconnect["session"] == connect["session"]
        assert (disconnect["identity"], disconnect["messages"]) == ("bob", 0)

    def test_staged_messages_are_not_counted_as_published(self) -> None:
        part = self.stage(self.client, b"1")
        self.client.stream.lose()
        other = self.house.connect()
        self.commit(other, part)
        other.stream.lose()
        ends = [event for event in self.published_events() if event["event"] == "disconnect"]
        assert [event["messages"] for event in ends] == [0, 1]

    def test_readers_have_no_events(self) -> None:
        assert self.client.get("/v1/history?start=0").complete
        assert self.client.get("/v1/bounds").status == 200
        self.commit(self.client, self.stage(self.client))
        self.client.stream.lose()
        assert self.published_events() == []

    def test_requests_that_are_refused(self) -> None:
        for _ in range(2):
            assert self.client.get("/v1/history?start=0&topic=closed").status == 403
        assert self.client.get("/nowhere").status == 404
        self.client.stream.lose()
        connect, first, second, nowhere, end = self.published_events()
        for refused, reason, topic in (
            (first, "not-authorized", "closed"),
            (second, "not-authorized", "closed"),
            (nowhere, "not-found", None),
        ):
            assert refused["event"] == "refused"
            assert (refused["reason"], refused.get("topic")) == (reason, topic)
            assert refused["messages"] == 1
            assert refused["session"] == connect["session"] == end["session"]
        assert self.house.broker.counters.refused == 3

    def test_a_body_that_is_too_large(self) -> None:
        self.client.ask("POST", "/v1/commit", b"", Content_Length="2000000")
        self.client.stream.lose()
        assert [(e["event"], e.get("reason")) for e in self.published_events()] == [
            ("connect", None), ("refused", "too-large"), ("disconnect", "too-large"),
        ]  # fmt: skip

    def test_a_stream_that_is_cut(self) -> None:
        for _ in range(9):
            self.house.publish("a", bytes(2**20))
        self.client.stream.stop_reading()
        self.client.ask("GET", "/v1/history?start=0")
        self.client.stream.read(on=False)
        self.house.pass_time(31)
        assert self.client.stream.aborted
        _, cut, end = self.published_events()
        assert (cut["event"], cut["reason"]) == ("refused", "stream-cut")
        assert end["reason"] == "the client has not read for 30 s"

    def test_connections_that_the_broker_closes(self) -> None:
        self.stage(self.client, b"1")
        idle = self.house.connect()
        self.stage(idle, b"1")
        self.house.pass_time(40)
        assert self.client.get("/").status == 200
        self.house.pass_time(22)
        assert (idle.closed, self.client.closed) == (True, False)
        self.house.broker.stopService()
        ends = [event for event in self.published_events() if event["event"] == "disconnect"]
        assert [event["reason"] for event in ends] == ["idle", "stopped"]


class RefusedConnectionTests(EventsCase):
    """Refused connections"""

    def test_refused_connections_are_counted_and_published_once(self) -> None:
        self.build(max_connections_per_address=1)
        second = self.house.connect()
        assert second.answer().error == (503, "limit-reached")
        second.stream.lose()
        (refused,) = self.published_events()
        assert (refused["event"], refused["reason"]) == ("refused", "limit-reached")
        # The mark of the second connection, which had no other event.
        assert refused["session"].endswith("4001")
        assert self.house.broker.counters.refused == 1


class ReadingTests(EventsCase):
    """The right to read events"""

    def topics(self, **given: Any) -> list[str]:
        """Return the listed topics."""
        return [row["name"] for row in self.house.get("/v1/topics?start=0", **given).json["topics"]]

    def named(self, **given: Any) -> set[str]:
        """Return the topics of a request that names the events."""
        return {row["topic"] for row in self.house.get(NAMED, **given).rows}

    def unnamed(self, **given: Any) -> set[str]:
        """Return the topics of a request for all topics."""
        return {row["topic"] for row in self.house.get("/v1/history?start=0", **given).rows}

    def fill(self, **settings: Any) -> None:
        """Start a broker that has published an event."""
        self.build(**settings)
        self.client.get("/nowhere")
        assert self.published_events()

    def test_events_require_a_token(self) -> None:
        self.fill()
        answer = self.house.get(NAMED)
        assert answer.error == (403, "not-authorized")
        assert answer.json["topic"] == TOPIC
        body = {"start": 0, "topics": ["a", TOPIC]}
        assert self.house.post("/v1/history", body).error == (403, "not-authorized")
        assert self.unnamed() == {"a"}
        assert self.topics() == ["a"]

    def test_other_permissions_do_not_suffice(self) -> None:
        self.fill(grant="*")
        token = self.house.token("publish", "subscribe", "create")
        assert self.house.get(NAMED, token=token).error == (403, "not-authorized")
        assert self.unnamed(token=token) == {"a"}
        assert self.topics(token=token) == ["a"]

    def test_the_permission_history_suffices(self) -> None:
        self.fill()
        token = self.house.token("history")
        assert self.named(token=token) == {TOPIC}
        assert self.unnamed(token=token) == {"a"}
        assert self.topics(token=token) == [TOPIC, "a"]

    def test_a_grant(self) -> None:
        self.fill(grant=TOPIC)
        assert self.named() == {TOPIC}
        assert self.unnamed() == {"a"}
        assert self.topics() == [TOPIC, "a"]
