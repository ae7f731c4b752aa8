"""The WebSocket endpoint: handshake, requests, subscriptions."""

from __future__ import annotations

import json
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import AccessTable
from pubsub.broker.credentials.master_secrets import DenyList, SecretRing
from pubsub.broker.topic_space.durability import Durability
from pubsub.http_api.websocket.websocket_frames import SUBPROTOCOL
from pubsub.store.memory_store import MemoryStore
from tests.unit.access_rules import rule
from tests.unit.slow_store import Slow
from tests.unit.web import WebHouse
from tests.unit.web_sockets import URL, SocketClient, connected

UPGRADE: dict[str, Any] = {
    "Upgrade": "websocket",
    "Connection": "keep-alive, Upgrade",
    "Sec_WebSocket_Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec_WebSocket_Version": "13",
    "Sec_WebSocket_Protocol": SUBPROTOCOL,
}


class HandshakeTests(SynchronousTestCase):
    """GET /v1/ws"""

    def setUp(self) -> None:
        self.house = WebHouse(http_origins="https://good.example")

    def test_the_connection_is_upgraded(self) -> None:
        client = self.house.connect()
        client.ask("GET", "/v1/ws", **UPGRADE)
        answer = client.answer()
        assert answer.status == 101
        assert answer.headers["Sec-WebSocket-Accept"] == "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="
        assert answer.headers["Sec-WebSocket-Protocol"] == SUBPROTOCOL
        assert answer.headers["Sec-WebSocket-Extensions"] is None

    def test_compression_is_not_agreed_on(self) -> None:
        client = self.house.connect()
        given = {**UPGRADE, "Sec_WebSocket_Extensions": "permessage-deflate"}
        client.ask("GET", "/v1/ws", **given)
        assert client.answer().headers["Sec-WebSocket-Extensions"] is None

    def test_a_request_without_upgrade(self) -> None:
        answer = self.house.get("/v1/ws")
        assert answer.error == (426, "upgrade")
        assert answer.headers["Upgrade"] == "websocket"

    def test_handshakes_that_are_refused(self) -> None:
        for name, value in (
            ("Sec_WebSocket_Key", "short"),
            ("Sec_WebSocket_Version", "8"),
            ("Sec_WebSocket_Protocol", "other"),
            ("Accept", "a\x1ab"),
        ):
            client = self.house.connect()
            client.ask("GET", "/v1/ws", **{**UPGRADE, name: value})
            assert client.answer().error == (400, "invalid-request"), name
            assert client.get("/v1/bounds").status == 200

    def test_a_token_in_the_url_is_refused(self) -> None:
        client = self.house.connect()
        client.ask("GET", "/v1/ws?token=secret", **UPGRADE)
        answer = client.answer()
        assert answer.error == (400, "invalid-request")
        assert b"secret" not in answer.body

    def test_other_methods(self) -> None:
        client = self.house.connect()
        client.ask("POST", "/v1/ws", b"", **UPGRADE)
        assert client.answer("POST").error == (405, "method")

    def test_origins(self) -> None:
        for origin, status in (
            ("https://evil.example", 403),
            ("https://good.example", 101),
            ("http://localhost", 101),
            (None, 101),
        ):
            client = SocketClient(self.house, origin=origin)
            assert client.response is not None
            assert client.response.status_code == status, origin

    def test_names_of_the_broker(self) -> None:
        client = SocketClient(self.house, url="ws://evil.example/v1/ws")
        assert client.response is not None
        assert client.response.status_code == 403

    def test_requests_that_arrive_with_the_handshake(self) -> None:
        client = self.house.connect()
        given = {**UPGRADE, "Host": "localhost"}
        head = "".join(f"{k.replace('_', '-')}: {v}\r\n" for k, v in given.items())
        other = connected(self.house)
        other.frames.send_text(b'{"id": 1, "op": "connect"}')
        (data,) = other.frames.data_to_send()
        client.send(f"GET /v1/ws HTTP/1.1\r\n{head}\r\n".encode() + data)
        assert b'{"id": 1, "ok": {' in bytes(client.stream.received)

    def test_there_is_no_memory(self) -> None:
        self.house.broker.memory.limit = 1
        client = SocketClient(self.house)
        assert client.response is not None
        assert client.response.status_code == 503


class ConnectTests(SynchronousTestCase):
    """The first request"""

    def setUp(self) -> None:
        self.house = WebHouse()

    def test_connect(self) -> None:
        client = SocketClient(self.house)
        assert client.ask("connect")["epoch"] == self.house.store.epoch

    def test_another_request_is_refused(self) -> None:
        client = SocketClient(self.house)
        assert client.refused("subscribe", topic="a") == "not-connected"
        assert client.close_code == 1008
        self.house.pass_time(3)
        assert client.client.closed

    def test_a_token_that_is_not_valid(self) -> None:
        client = SocketClient(self.house)
        assert client.refused("connect", token="x.y.z") == "bad-token"
        assert client.close_code == 4001

    def test_a_token_that_is_no_text(self) -> None:
        client = SocketClient(self.house)
        assert client.refused("connect", token=1) == "invalid-request"
        assert client.close_code == 1008

    def test_too_many_unknown_tokens(self) -> None:
        verifications = self.house.listener.verifications
        verifications.take(verifications.available())
        client = SocketClient(self.house)
        assert client.refused("connect", token="x.y.z") == "rate-limited"
        assert client.close_code == 1013

    def test_a_missing_handshake(self) -> None:
        client = SocketClient(self.house)
        self.house.pass_time(9)
        assert client.close_code is None
        self.house.pass_time(2)
        assert client.close_code == 4008
        assert self.house.broker.counters.refusals["http", "handshake-timeout"] == 1

    def test_a_token_opens_topics(self) -> None:
        self.house.lock("a", b"k")
        token = self.house.token("subscribe", "publish").decode()
        client = connected(self.house)
        assert client.refused("subscribe", topic="a") == "not-authorized"
        assert client.refused("publish", topic="a", value="x") == "not-authorized"
        client.ask("connect", token=token)
        client.ask("subscribe", topic="a")
        client.send("publish", topic="a", value="x")
        message, answer = sorted(client.pull(), key=lambda one: "id" in one)
        assert message["message"]["key"] == "Ym9i"
        assert answer["ok"]["messages"] == 1

    def test_a_token_that_expires(self) -> None:
        client = connected(self.house, token=self.house.token("history", lasts=5).decode())
        self.house.pass_time(6)
        assert client.close_code == 4001

    def test_no_request_is_carried_out_with_a_token_that_was_denied(self) -> None:
        token = self.house.token("publish", sub="ada").decode()
        client, other = (connected(self.house, token=token) for _ in range(2))
        assert client.ask("publish", topic="a", value="1")
        secrets = tuple(self.house.broker.tokens.ring)
        denied = DenyList(subjects=frozenset({"ada"}))
        self.house.broker.tokens.replace(SecretRing(secrets, denied))
        # No time passes: the sweep, once a second, does not end it.
        assert client.refused("publish", topic="a", value="2") == "bad-token"
        assert client.close_code == 4001
        assert client.close_reason == "the token is not valid any more"
        assert other.refused("subscribe", topic="a") == "bad-token"
        assert other.close_code == 4001
        assert self.house.broker.store.next_offset == 1

    def test_a_denied_client_may_connect_with_another_token(self) -> None:
        client = connected(self.house, token=self.house.token("publish", sub="ada").decode())
        secrets = tuple(self.house.broker.tokens.ring)
        denied = DenyList(subjects=frozenset({"ada"}))
        self.house.broker.tokens.replace(SecretRing(secrets, denied))
        client.ask("connect", token=self.house.token("publish", sub="bob").decode())
        client.ask("publish", topic="a", value="1")
        assert client.close_code is None

    def test_another_token_ends_subscriptions_that_it_does_not_permit(self) -> None:
        self.house.lock("a", b"k")
        client = connected(self.house, token=self.house.token("history").decode())
        client.ask("subscribe", topic="a")
        client.send("connect")
        assert {"revoked": {"topic": "a"}} in client.pull()
        client.ask("subscribe", topic="b")


class RequestTests(SynchronousTestCase):
    """Requests and replies"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.client = connected(self.house)

    def raw(self, data: bytes, binary: bool = False) -> dict[str, Any]:
        """Send a frame and return the answer."""
        send = self.client.frames.send_binary if binary else self.client.frames.send_text
        send(data)
        self.client.push()
        (answer,) = self.client.pull()
        return answer

    def test_ids_are_returned_as_they_are(self) -> None:
        for id in (1, -1.5, 10**400, "x", "", None):
            answer = self.raw(json.dumps({"id": id, "op": "ping"}).encode())
            assert answer == {"id": id, "ok": {}}
        assert self.raw(b'{"op": "ping"}') == {"id": None, "ok": {}}
        assert self.raw(b'{"op": "ping", "id": "\\ud800"}') == {"id": "\ud800", "ok": {}}

    def test_ids_that_are_not_accepted(self) -> None:
        for id in (b"[1]", b"{}", b"NaN", b"1e999", b"true", b"false"):
            answer = self.raw(b'{"op": "ping", "id": %b}' % id)
            assert answer["id"] is None
            assert answer["error"]["message"] == "id: expected text or a number"

    def test_frames_that_are_no_requests(self) -> None:
        for data, binary in (
            (b"", False), (b"[]", False), (b"{", False), (b"[" * 10_000, False),
            (b"", True), (b"\x00\x00\x00\x09{}", True), (b"\x00\x00\x00\x02{]", True),
            (b'\x00\x00\x00\x0d{"op":"ping"}', True),
        ):  # fmt: skip
            answer = self.raw(data, binary)
            assert answer["error"]["code"] == "invalid-request", data
        assert self.client.close_code is None
        assert self.house.broker.counters.refusals["http", "invalid-request"] == 8

    def test_mistakes(self) -> None:
        for op, members, code in (
            ("none", {}, "unknown-op"),
            ("ping", {"x": 1}, "invalid-request"),
            ("subscribe", {}, "invalid-request"),
            ("subscribe", {"topic": ""}, "invalid-request"),
            ("subscribe", {"topic": 1}, "invalid-request"),
            ("subscribe", {"topic": "a", "start": 9}, "beyond-end"),
            ("subscribe", {"topic": "a", "position": "x"}, "invalid-request"),
            ("subscribe", {"topic": "a", "start": 0, "reader": "r"}, "invalid-request"),
            ("subscribe", {"topic": "a", "start": [0]}, "invalid-request"),
            ("subscribe", {"topic": "a", "durable": True}, "invalid-request"),
            ("unsubscribe", {"topic": "a"}, "not-subscribed"),
            ("publish", {"topic": "a"}, "invalid-request"),
            ("publish", {"value": "a"}, "invalid-request"),
            ("publish", {"topic": "a", "value": "a", "durable": True}, "invalid-request"),
            ("publish", {"topic": "a", "value": "a", "sender": 1}, "invalid-request"),
            ("acknowledge", {"reader": "r"}, "invalid-request"),
            ("acknowledge", {"reader": "r", "offset": 0}, "beyond-end"),
            ("acknowledge", {"reader": "r", "offset": 0, "epoch": "x"}, "epoch"),
            ("connect", {"sender": "x" * 256}, "invalid-request"),
        ):
            assert self.client.refused(op, **members) == code, (op, members)
        assert self.client.ask("ping") == {}

    def test_publish(self) -> None:
        headers = [{"key": "k", "value": "v"}]
        answer = self.client.ask("publish", topic="a", value="ü", headers=headers, sender="me")
        assert answer == {"offset": 0, "messages": 1, "level": "handled"}
        self.client.ask("publish", topic="a", value_base64="/w==")
        number = self.client.send_binary(b"\x00\xff", op="publish", topic="a")
        assert self.client.pull()[0]["id"] == number
        rows = self.house.get("/v1/topics/a/messages?headers=1").lines
        assert rows[0]["value"] == "ü"
        assert (rows[0]["key"], rows[0]["protocol"]) == ("bWU=", "http")
        assert rows[0]["headers"] == headers
        assert [row["value_base64"] for row in rows[1:]] == ["/w==", "AP8="]

    def test_a_binary_publish_has_no_value(self) -> None:
        self.client.send_binary(b"x", op="publish", topic="a", value="y")
        assert self.client.pull()[0]["error"]["code"] == "invalid-request"

    def test_a_message_without_a_sender(self) -> None:
        """A program that copies one passes on that it has none."""
        client = connected(self.house, sender="ada")
        client.ask("publish", topic="a", value="x", sender="")
        assert self.house.get("/v1/topics/a/messages").lines[0]["key"] == ""

    def test_the_sender_of_a_connection(self) -> None:
        client = connected(self.house, sender="alice")
        client.ask("publish", topic="a", value="x")
        assert self.house.get("/v1/topics/a/messages").lines[0]["key"] == "YWxpY2U="

    def test_access_and_rates(self) -> None:
        house = WebHouse(allow_publish="a", allow_subscribe="a", rate_messages=2)
        client = connected(house)
        assert client.refused("publish", topic="b", value="x") == "not-authorized"
        assert client.refused("subscribe", topic="b") == "not-authorized"
        for _ in range(2):
            client.ask("publish", topic="a", value="x")
        assert client.refused("publish", topic="a", value="x") == "rate-limited"

    def test_confirmations_wait_for_the_history(self) -> None:
        store = Slow()
        client = connected(WebHouse(store))
        first = client.send("publish", topic="a", value="1")
        client.house.broker.topics.named("a").set_durability(Durability.ASYNC)
        client.send("ping")
        (pong,) = client.pull()
        assert pong["ok"] == {}
        store.waiting.pop(0)(True)
        (answer,) = client.pull()
        assert (answer["id"], answer["ok"]["level"]) == (first, "stored")

    def test_a_defect_is_logged(self) -> None:
        self.patch(self.house.broker.topics, "create_provisional", None)  # type: ignore[no-untyped-call]
        assert self.client.refused("subscribe", topic="new") == "internal"
        assert self.flushLoggedErrors(TypeError)  # type: ignore[no-untyped-call]


class SubscriptionTests(SynchronousTestCase):
    """Subscribing"""

    def setUp(self) -> None:
        self.house = WebHouse()
        self.house.publish("a", b"before")
        self.client = connected(self.house)

    def test_new_messages_arrive(self) -> None:
        answer = self.client.ask("subscribe", topic="a")
        assert answer == {"topic": "a", "start": 1, "epoch": self.house.store.epoch}
        self.house.publish("a", b"1", b"2")
        self.house.publish("b", b"3")
        rows = [one["message"] for one in self.client.pull()]
        assert rows == self.house.get("/v1/topics/a/messages?start=1").lines

    def test_from_the_past(self) -> None:
        for start in ({"start": 0}, {"start": "earliest"}, {"timestamp": 0},
                      {"position": f"{self.house.store.epoch}:0"}):  # fmt: skip
            client = connected(self.house)
            client.send("subscribe", topic="a", **start)
            assert client.values() == ["before"], start

    def test_a_position_of_another_history(self) -> None:
        self.client.send("subscribe", topic="a", position="other-1:9")
        answer, message = self.client.pull()
        assert answer["ok"]["gap"] == {"start": 0, "stop": 0, "reason": "replaced"}
        assert message["message"]["value"] == "before"

    def test_gaps_are_reported(self) -> None:
        house = WebHouse(MemoryStore(2, 2**20))
        for number in range(4):
            house.publish("a", str(number).encode())
        client = connected(house)
        client.send("subscribe", topic="a", start=0)
        answer, gap, *messages = client.pull()
        assert answer["ok"]["start"] == 0
        assert gap == {"gap": {"start": 0, "stop": 2, "reason": "expired"}}
        assert [one["message"]["value"] for one in messages] == ["2", "3"]

    def test_binary_messages(self) -> None:
        self.client.ask("subscribe", topic="a", binary=True, headers=True)
        self.house.publish("a", b"\x00\xff" * 40_000, headers=[{"k": b"v"}])
        self.client.pull()
        (data,) = self.client.binary
        end = 4 + int.from_bytes(data[:4], "big")
        row = json.loads(data[4:end])["message"]
        assert data[end:] == b"\x00\xff" * 40_000
        assert "value" not in row
        assert row["headers"] == [{"key": "k", "value": "v"}]

    def test_twice(self) -> None:
        self.client.ask("subscribe", topic="a")
        assert self.client.refused("subscribe", topic="a") == "already-subscribed"

    def test_unsubscribe(self) -> None:
        self.client.ask("subscribe", topic="a")
        self.client.ask("subscribe", topic="b")
        assert self.client.ask("unsubscribe", topic="a") == {"topic": "a"}
        self.house.publish("a", b"1")
        self.house.publish("b", b"2")
        assert self.client.values() == ["2"]
        self.client.ask("subscribe", topic="a")

    def test_unused_topics_are_removed(self) -> None:
        used, count = self.house.broker.memory.used, len(self.house.broker.topics)
        self.client.ask("subscribe", topic="new")
        self.client.ask("unsubscribe", topic="new")
        self.house.pass_time(1)
        assert (self.house.broker.memory.used, len(self.house.broker.topics)) == (used, count)
        for number in range(100):
            self.client.ask("subscribe", topic=f"new{number}")
        self.client.stream.lose()
        self.house.pass_time(1)
        assert len(self.house.broker.topics) == count
        assert self.house.broker.memory.used < used

    def test_too_many(self) -> None:
        client = connected(WebHouse(max_subscriptions=2))
        for topic in ("a", "b"):
            client.ask("subscribe", topic=topic)
        assert client.refused("subscribe", topic="c") == "limit-reached"
        client.ask("unsubscribe", topic="a")
        client.ask("subscribe", topic="c")

    def test_too_many_topics(self) -> None:
        topics = self.house.broker.topics
        topics.limit = len(topics) - topics.own
        used = self.house.broker.memory.used
        assert self.client.refused("subscribe", topic="new") == "limit-reached"
        assert self.house.broker.memory.used == used

    def test_a_topic_is_closed(self) -> None:
        self.client.ask("subscribe", topic="a")
        self.client.ask("subscribe", topic="b")
        self.house.lock("a", b"k")
        assert self.client.pull() == [{"revoked": {"topic": "a"}}]
        self.house.publish("b", b"1")
        assert self.client.values() == ["1"]
        assert self.client.refused("unsubscribe", topic="a") == "not-subscribed"

    def test_acknowledge(self) -> None:
        epoch = self.house.store.epoch
        self.house.publish("a", b"1", b"2")
        answer = self.client.ask("acknowledge", reader="me", offset=1)
        assert answer == {"reader": "me", "position": f"{epoch}:2"}
        (row,) = self.house.get("/v1/readers").json["items"]
        assert (row["name"], row["offset"], row["lag"]) == ("me", 2, 1)
        other = connected(self.house)
        other.send("subscribe", topic="a", reader="me")
        assert other.values() == ["2"]
        assert self.client.refused("acknowledge", reader="me", offset=0, epoch="x") == "epoch"

    def test_a_message_that_is_not_stored_has_no_offset(self) -> None:
        """With that of the next one, a client would acknowledge this one before it gets it."""
        self.house.broker.topics.create("live").set_durability(Durability.NONE)
        for topic in ("a", "live"):
            self.client.ask("subscribe", topic=topic)
        self.house.publish("live", b"1", b"2")
        self.house.publish("a", b"3")
        rows = [one["message"] for one in self.client.pull()]
        found = [(row["topic"], row["value"], row["offset"]) for row in rows]
        assert found == [("live", "1", None), ("live", "2", None), ("a", "3", 1)]
        code = self.client.refused("acknowledge", reader="me", offset=rows[0]["offset"])
        assert code == "invalid-request"
        self.client.ask("acknowledge", reader="me", offset=rows[2]["offset"])
        (row,) = self.house.get("/v1/readers").json["items"]
        assert (row["offset"], row["lag"]) == (2, 0)

    def test_acknowledging_needs_the_history_of_some_topic(self) -> None:
        self.house.broker.set_access(AccessTable([rule(True, "subscribe")]))
        self.house.publish("a", b"1")
        assert self.client.refused("acknowledge", reader="me", offset=0) == "not-authorized"
        self.house.broker.set_access(AccessTable([rule(True, "subscribe history", "a")]))
        assert self.client.ask("acknowledge", reader="me", offset=0)["reader"] == "me"

    def test_readers_belong_to_subjects(self) -> None:
        self.client.ask("acknowledge", reader="me", offset=0)
        ada = connected(self.house, token=self.house.token("history", sub="ada").decode())
        ada.send("subscribe", topic="a", reader="me")
        assert ada.values() == []

    def test_a_page_can_use_it(self) -> None:
        client = SocketClient(self.house, url=URL, origin="http://localhost")
        client.ask("connect")
        client.ask("subscribe", topic="a")
        self.house.publish("a", b"1")
        assert client.values() == ["1"]
