"""Publishing, following and WebSockets with a real broker: curl, sockets, many of them."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedOK
from websockets.sync.client import ClientConnection, connect, unix_connect
from websockets.typing import Subprotocol

from pubsub.http_api.websocket.websocket_frames import SUBPROTOCOL
from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.clients import Cafe, publish
from tests.integration.streams import make_certificate

ADMIN = f"--admin-port=tcp:0:interface={HOST}"
FOLLOWERS = 1000


@pytest.fixture
def broker(start: Start, tmp_path: Path) -> Broker:
    """Return a broker with a history on disk."""
    return start(*listen("cafe"), ADMIN, f"--store=log:{tmp_path}/h")


def url_of(broker: Broker, topic: str = "cafe%2F7", query: str = "") -> str:
    """Return the URL of a topic's messages."""
    return f"http://{HOST}:{broker.port('http')}/v1/topics/{topic}/messages{query}"


def curl(*arguments: str) -> str:
    """Return the output of curl, which must succeed."""
    done = subprocess.run(
        ["curl", "-sS", "--max-time", "40", *arguments],
        capture_output=True, text=True, timeout=TIMEOUT, check=True,
    )  # fmt: skip
    return done.stdout


def post(broker: Broker, *bodies: bytes, topic: str = "cafe%2F7") -> None:
    """Publish messages over one connection."""
    connection = HTTPConnection(HOST, broker.port("http"), timeout=TIMEOUT)
    for body in bodies:
        connection.request("POST", f"/v1/topics/{topic}/messages", body)
        response = connection.getresponse()
        assert response.status == 200, (response.read(), broker.output)
        response.read()
    connection.close()


class Follower:
    """A connection that follows; lines are read from it."""

    def __init__(self, broker: Broker, query: str = "?follow=1") -> None:
        self.socket = socket.create_connection((HOST, broker.port("http")), TIMEOUT)
        self.socket.sendall(f"GET /v1/topics/cafe%2F7/messages{query} HTTP/1.1\r\n\r\n".encode())
        self._file = self.socket.makefile("rb")
        while self._file.readline() != b"\r\n":
            pass
        # The first chunk shows that the subscription has begun.
        assert self._chunk() == b"\n"
        self._lines = b""

    def _chunk(self) -> bytes:
        size = int(self._file.readline(), 16)
        data = self._file.read(size)
        assert self._file.read(2) == b"\r\n"
        return data

    def row(self) -> Any:
        """Return the next line; None at the end of the response."""
        while b"\n" not in self._lines:
            chunk = self._chunk()
            if not chunk:
                return None
            self._lines += chunk.lstrip(b"\n") if not self._lines else chunk
        line, _, self._lines = self._lines.partition(b"\n")
        return json.loads(line)

    def values(self, count: int) -> list[str]:
        """Return the payloads of the next messages."""
        return [self.row()["value"] for _ in range(count)]

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.socket.close()


@contextmanager
def following(broker: Broker, query: str = "?follow=1") -> Iterator[Follower]:
    """Yield a follower."""
    follower = Follower(broker, query)
    try:
        yield follower
    finally:
        follower.close()


def test_curl_publishes_and_reads(broker: Broker) -> None:
    url = url_of(broker)
    bob = Cafe.subscriber(broker, b"\x07")
    answer = json.loads(curl("-d", "hello", url))
    assert (answer["offset"], answer["messages"], answer["level"]) == (0, 1, "stored")
    assert bob.receive_texts(1) == [b"hello"]
    curl("-d", "again", "-H", "Expect: 100-continue", "-H", "Pubsub-Header-A: b", url)
    rows = [json.loads(line) for line in curl(url + "?headers=1").splitlines()]
    assert [row["value"] for row in rows] == ["hello", "again"]
    assert rows[1]["headers"] == [{"key": "a", "value": "b"}]
    problem = json.loads(curl(url + "?start=9"))
    assert (problem["status"], problem["error"]) == (416, "beyond-end")
    assert "application/problem+json" in curl("-i", url + "?start=9")
    assert "405" in curl("-X", "PUT", "-d", "x", "-i", url)
    assert "Allow: GET, HEAD, POST, OPTIONS" in curl("-X", "OPTIONS", "-i", url)
    assert "200 OK" in curl("-I", url)


def test_curl_follows(broker: Broker) -> None:
    process = subprocess.Popen(
        ["curl", "-sSN", "-H", "Accept: text/event-stream", url_of(broker, query="?follow=1")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = iter(process.stdout)
    assert next(lines) == "retry: 1000\n"
    post(broker, b"one")
    position = [next(lines) for _ in range(4)][-2]
    assert position.startswith("id: ")
    broker.signal()
    rest = list(lines)
    assert 'data: {"reason": "stopped"}\n' in rest
    assert process.wait(TIMEOUT) == 0
    process.stdout.close()


def test_messages_of_other_wires_in_their_order(broker: Broker) -> None:
    with following(broker) as follower:
        publisher = Cafe.publisher(broker, 7)
        publisher.send(b"".join(publish(7, str(n).encode()) for n in range(1000)))
        assert follower.values(1000) == [str(n) for n in range(1000)]


def test_a_thousand_followers(broker: Broker) -> None:
    with ExitStack() as stack:
        followers = [stack.enter_context(following(broker)) for _ in range(FOLLOWERS)]
        before = broker.memory()
        for number in range(10):
            post(broker, str(number).encode())
        for follower in followers:
            assert follower.values(10) == [str(n) for n in range(10)]
        assert broker.memory() - before < 64 * 2**20
        broker.signal()
        for follower in followers:
            assert follower.row() == {"end": {"reason": "stopped"}}
            assert follower.row() is None
    broker.wait()
    assert broker.totals()["delivered"] == 10 * FOLLOWERS


def test_a_slow_follower_among_fast_ones(broker: Broker) -> None:
    body = b"x" * 200_000
    with following(broker) as slow, following(broker) as fast:
        before = broker.memory()
        for _ in range(200):
            post(broker, body)
            assert len(fast.values(1)[0]) == len(body)
        assert broker.memory() - before < 60 * 2**20
        assert [len(value) for value in slow.values(200)] == [len(body)] * 200
        post(broker, b"live")
        assert slow.values(1) == ["live"]
    assert "disconnected" not in broker.output


def test_a_follower_that_closes_its_half(broker: Broker) -> None:
    with following(broker) as follower:
        post(broker, b"1")
        follower.socket.shutdown(socket.SHUT_WR)
        assert follower.values(1) == ["1"]
        assert follower.row() == {"end": {"reason": "half-closed"}}
        assert follower.row() is None


def test_followers_that_are_gone(broker: Broker) -> None:
    for _ in range(50):
        with following(broker):
            pass
    with following(broker) as last:
        post(broker, b"1")
        assert last.values(1) == ["1"]
    broker.signal()
    broker.wait()
    assert broker.totals()["dropped"] <= 50


def test_a_stop_with_followers_that_do_not_read(broker: Broker) -> None:
    with ExitStack() as stack:
        followers = [stack.enter_context(following(broker)) for _ in range(5)]
        for _ in range(40):
            post(broker, b"x" * 500_000)
        broker.signal()
        # The followers are given ``stop-timeout``.
        assert broker.wait(30) is not None
        assert len(followers) == 5


@contextmanager
def connected(broker: Broker) -> Iterator[ClientConnection]:
    """Yield a WebSocket that has connected."""
    url = f"ws://{HOST}:{broker.port('http')}/v1/ws"
    with connect(url, subprotocols=[Subprotocol(SUBPROTOCOL)]) as socket:
        socket.send('{"id": 1, "op": "connect"}')
        assert "ok" in json.loads(socket.recv(TIMEOUT))
        yield socket


def test_web_sockets(broker: Broker) -> None:
    with connected(broker) as socket, connected(broker) as other:
        socket.send('{"id": 2, "op": "subscribe", "topic": "cafe/7"}')
        assert json.loads(socket.recv(TIMEOUT))["ok"]["start"] == 0
        Cafe.publisher(broker, 7).send(publish(7, b"from cafe"))
        assert json.loads(socket.recv(TIMEOUT))["message"]["value"] == "from cafe"
        for number in range(500):
            other.send(json.dumps({"id": number, "op": "publish", "topic": "cafe/7",
                                   "value": str(number)}))  # fmt: skip
        answers = [json.loads(other.recv(TIMEOUT)) for _ in range(500)]
        assert {answer["ok"]["level"] for answer in answers} == {"stored"}
        rows = [json.loads(socket.recv(TIMEOUT))["message"] for _ in range(500)]
        assert [row["value"] for row in rows] == [str(n) for n in range(500)]
        broker.signal()
        for one in (socket, other):
            with pytest.raises(ConnectionClosedOK) as closed:
                one.recv(TIMEOUT)
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1001


def test_a_large_message_over_a_web_socket(broker: Broker) -> None:
    with connected(broker) as socket:
        value = "x" * (2**20 - 100)
        socket.send(json.dumps({"id": 2, "op": "publish", "topic": "a", "value": value}))
        assert json.loads(socket.recv(TIMEOUT))["ok"]["offset"] == 0


def test_messages_are_the_same_after_a_restart(start: Start, tmp_path: Path) -> None:
    options = (*listen("cafe"), ADMIN, f"--store=log:{tmp_path}/h")
    broker = start(*options)
    with following(broker) as follower:
        post(broker, b"1", b"2")
        seen = [follower.row() for _ in range(2)]
    broker.kill()
    broker = start(*options)
    post(broker, b"3")
    with following(broker, "?follow=1&start=0") as follower:
        rows = [follower.row() for _ in range(3)]
    assert rows[:2] == seen
    assert rows == [json.loads(line) for line in curl(url_of(broker)).splitlines()]
    history = f"http://{HOST}:{broker.port('http')}/v1/history?start=0&format=jsonl"
    assert rows == [json.loads(line) for line in curl(history).splitlines()]


def test_over_tls(start: Start, tmp_path: Path) -> None:
    key, certificate = make_certificate(tmp_path)
    endpoint = f"ssl:0:interface={HOST}:privateKey={key}:certKey={certificate}"
    broker = start(*listen("cafe"), f"--admin-port={endpoint}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    url = f"wss://{HOST}:{broker.port('http')}/v1/ws"
    with connect(url, subprotocols=[Subprotocol(SUBPROTOCOL)], ssl=context) as socket:
        socket.send('{"id": 1, "op": "connect"}')
        socket.send('{"id": 2, "op": "subscribe", "topic": "a"}')
        assert [json.loads(socket.recv(TIMEOUT))["id"] for _ in range(2)] == [1, 2]
        url = f"https://{HOST}:{broker.port('http')}/v1/topics/a/messages"
        (tmp_path / "body").write_text("x" * 500_000)
        curl("-k", "--data-binary", f"@{tmp_path}/body", url)
        assert len(json.loads(socket.recv(TIMEOUT))["message"]["value"]) == 500_000
        value = "y" * 900_000
        socket.send(json.dumps({"id": 3, "op": "publish", "topic": "b", "value": value}))
        assert json.loads(socket.recv(TIMEOUT))["ok"]["offset"] == 1
        broker.signal()
        with pytest.raises(ConnectionClosedOK):
            socket.recv(TIMEOUT)


def test_over_a_unix_socket(start: Start, tmp_path: Path) -> None:
    path = tmp_path / "socket"
    start(*listen("cafe"), f"--admin-port=unix:{path}")
    curl("--unix-socket", str(path), "-d", "x", "http://localhost/v1/topics/a/messages")
    uri = "ws://localhost/v1/ws"
    with unix_connect(str(path), uri, subprotocols=[Subprotocol(SUBPROTOCOL)]) as socket:
        socket.send('{"id": 1, "op": "connect"}')
        socket.send('{"id": 2, "op": "subscribe", "topic": "a", "start": 0}')
        found = [json.loads(socket.recv(TIMEOUT)) for _ in range(3)]
        assert found[2]["message"]["value"] == "x"
