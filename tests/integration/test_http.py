"""HTTP with a real broker: sockets, its file, crashes."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import urllib3

from pubsub.broker.figures.events import TOPIC
from pubsub.client.history_client import HistoryClient, HistoryError, HistoryUnreachable
from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen, run
from tests.integration.clients import Cafe
from tests.integration.clients import publish as cafe_publish
from tests.integration.fast_client import Fast, create, make_secret, make_token
from tests.unit.web import stream_of
from tests.waiting import until

ADMIN = f"--admin-port=tcp:0:interface={HOST}"


def client_of(broker: Broker, token: str | None = None, **given: Any) -> HistoryClient:
    """Return a client of the broker's API."""
    return HistoryClient(f"http://{HOST}:{broker.port('http')}", token, **given)


def table(topic: str, *values: bytes) -> pa.Table:
    """Return messages to stage."""
    columns = [pa.array([topic] * len(values), pa.string()), pa.array(values, pa.binary())]
    return pa.Table.from_arrays(columns, names=["topic", "value"])


def publish(client: HistoryClient, batch: int, topic: str, *values: bytes) -> None:
    """Store one batch of the query `test`."""
    committed = client.commit("test", batch, [client.stage("test", batch, table(topic, *values))])
    assert not committed.duplicate


def values(client: HistoryClient, start: int = 0, **given: Any) -> list[Any]:
    """Return the payloads of a range and its damaged parts."""
    found: list[Any] = []
    for part in client.read(start, **given):
        found += [part] if isinstance(part, tuple) else part["value"].to_pylist()
    return found


@pytest.fixture
def durable(start: Start, tmp_path: Path) -> Broker:
    """Return a broker with a file."""
    return start(*listen("cafe"), ADMIN, f"--store=log:{tmp_path}/h")


@pytest.mark.modes
@pytest.mark.parametrize("store", ["memory", "log:h"])
def test_written_messages_are_read(start: Start, store: str) -> None:
    client = client_of(start(*listen("nsd"), ADMIN, f"--store={store}"))
    publish(client, 0, "ü/1", b"1", b"\xff", b"")
    publish(client, 1, "b", bytes(2**20), b"2")
    bounds = client.bounds(timestamp=0)
    assert (bounds.first, bounds.next, bounds.offset) == (0, 5, 0)
    assert values(client) == [b"1", b"\xff", b"", bytes(2**20), b"2"]
    assert values(client, 1, stop=5, topics=["ü/1"]) == [b"\xff", b""]
    assert values(client, 4, compression="zstd", headers=True) == [b"2"]
    assert client.topics() == {
        "ü/1": {"messages": 3, "bytes": 2},
        "b": {"messages": 2, "bytes": 2**20 + 1},
    }
    with pytest.raises(HistoryError) as raised:
        values(client, 6)
    assert (raised.value.status, raised.value.code) == (416, "beyond-end")
    assert raised.value.details["next"] == 5


def test_messages_of_other_protocols_are_read(durable: Broker) -> None:
    client = client_of(durable)
    with Cafe.publisher(durable, 7, b"alice") as cafe:
        cafe.send(cafe_publish(7, b"hello"))
        until(lambda: client.bounds().next == 1, "the message")
    (batch,) = client.read(0)
    assert isinstance(batch, pa.RecordBatch)
    (row,) = batch.to_pylist()
    assert (row["topic"], row["protocol"], row["key"]) == ("cafe/7", "cafe", b"alice")


def test_requests_without_the_client(durable: Broker) -> None:
    publish(client_of(durable), 0, "a", b"1", b"2")
    connection = http.client.HTTPConnection(HOST, durable.port("http"))
    for _ in range(2):
        connection.request("GET", "/v1/history?start=0&format=jsonl&topic=a")
        response = connection.getresponse()
        lines = [json.loads(line) for line in response.read().splitlines()]
        assert [line["value"] for line in lines] == ["1", "2"]
    connection.request("GET", "/")
    assert b"/v1/history" in connection.getresponse().read()
    connection.close()


def test_events_of_http(start: Start, tmp_path: Path) -> None:
    secret = make_secret(tmp_path / "secret")
    broker = start(*listen("nsd"), ADMIN, "--events", f"--secret-file={secret}")
    connection = http.client.HTTPConnection(HOST, broker.port("http"))

    def post(path: str, body: bytes) -> Any:
        connection.request("POST", path, body)
        return json.loads(connection.getresponse().read())

    ids = [
        post("/v1/stage?query=q&batch=0", stream_of(table(topic, b"1", b"23"))).get("part")
        for topic in ("a", TOPIC)
    ]
    commit = {"query": "q", "batch": 0, "parts": ids[:1]}
    assert post("/v1/commit", json.dumps(commit).encode())["messages"] == 2
    connection.close()
    reader = client_of(broker, make_token(secret, permission="history").decode())

    def events() -> list[dict[str, Any]]:
        return [json.loads(value) for value in values(reader, topics=[TOPIC])]

    until(lambda: events()[-1:] != [] and events()[-1]["event"] == "disconnect", "the end")
    connect, refused, disconnect = events()
    where = {key: connect[key] for key in ("protocol", "listener", "client", "session")}
    assert where["protocol"] == "http"
    assert connect == {"event": "connect", **where}
    assert refused == {
        "event": "refused", **where, "reason": "not-authorized", "topic": TOPIC, "messages": 1,
    }  # fmt: skip
    assert disconnect == {
        "event": "disconnect", **where, "reason": "left", "messages": 2, "bytes": 3,
    }  # fmt: skip
    client = client_of(broker)
    assert values(client) == [b"1", b"23"]
    assert list(client.topics()) == ["a"]
    # Readers cause no events.
    assert len(events()) == 3
    with pytest.raises(HistoryError) as raised:
        values(client, topics=[TOPIC])
    assert (raised.value.status, raised.value.code) == (403, "not-authorized")


def test_positions_survive_a_restart(start: Start, tmp_path: Path) -> None:
    options = (*listen("nsd"), ADMIN, f"--store=log:{tmp_path}/h")
    broker = start(*options)
    client = client_of(broker)
    publish(client, 0, "a", b"1", b"2")
    client.report_position("spark/1", 1)
    client.report_position("gone", 2)
    client.delete_reader("gone")
    broker.kill()
    (reader,) = client_of(start(*options)).readers()
    assert (reader.name, reader.offset, reader.lag) == ("spark/1", 1, 1)


def test_a_commit_is_remembered_after_a_crash(start: Start, tmp_path: Path) -> None:
    options = (*listen("nsd"), ADMIN, f"--store=log:{tmp_path}/h")
    broker = start(*options)
    client = client_of(broker)
    part = client.stage("q", 3, table("a", b"1", b"2"))
    committed = client.commit("q", 3, [part])
    broker.kill()
    client = client_of(start(*options))
    again = client.commit("q", 3, [part])
    assert again.duplicate
    assert (again.first, again.next, again.messages) == (committed.first, committed.next, 2)
    assert values(client) == [b"1", b"2"]


def test_a_crash_between_stage_and_commit(start: Start, tmp_path: Path) -> None:
    options = (*listen("nsd"), ADMIN, f"--store=log:{tmp_path}/h")
    broker = start(*options)
    part = client_of(broker).stage("q", 0, table("a", b"1"))
    broker.kill()
    client = client_of(start(*options))
    with pytest.raises(HistoryError) as raised:
        client.commit("q", 0, [part])
    assert raised.value.code == "unknown-part"
    assert not client.commit("q", 0, [client.stage("q", 0, table("a", b"1"))]).duplicate
    assert values(client) == [b"1"]


def test_a_crash_while_batches_are_committed(start: Start, tmp_path: Path) -> None:
    """After a crash at any point, a repeated batch publishes the missing messages, once."""
    options = (*listen("nsd"), ADMIN, f"--store=log:{tmp_path}/h")
    broker = start(*options)
    client = client_of(broker, attempts=1)
    tried = threading.Event()
    done: list[int] = []

    def work() -> None:
        for batch in range(10_000):
            rows = table("a", *[b"%d" % batch] * 500)
            try:
                client.commit("q", batch, [client.stage("q", batch, rows)])
            except HistoryUnreachable:
                return
            done.append(batch)
            if batch == 20:
                tried.set()

    thread = threading.Thread(target=work)
    thread.start()
    assert tried.wait(TIMEOUT)
    broker.kill()
    thread.join()
    client = client_of(start(*options))
    last = done[-1] + 1
    client.commit("q", last, [client.stage("q", last, table("a", *[b"%d" % last] * 500))])
    assert values(client) == [b"%d" % batch for batch in range(last + 1) for _ in range(500)]


def test_damage_is_reported(start: Start, tmp_path: Path) -> None:
    options = (*listen("nsd"), ADMIN, f"--store=log:{tmp_path}/h")
    broker = start(*options)
    client = client_of(broker)
    for batch, value in enumerate((b"first", b"second", b"third")):
        publish(client, batch, "a", value, b"x")
    broker.stop()
    (path,) = (tmp_path / "h").glob("*.log")
    data = path.read_bytes()
    path.write_bytes(data.replace(b"second", b"changed"[:6]))
    client = client_of(start(*options))
    assert values(client) == [b"first", b"x", (2, 4), b"third", b"x"]


def test_expired_messages_are_reported(start: Start, tmp_path: Path) -> None:
    keep = "--retention=*=messages:2"
    broker = start(*listen("nsd"), ADMIN, f"--store=log:{tmp_path}/h", keep)
    client = client_of(broker)
    for batch in range(4):
        publish(client, batch, "a", b"%d" % batch, b"x")
    until(lambda: client.bounds().first == 6, "retention")
    with pytest.raises(HistoryError) as raised:
        values(client)
    assert (raised.value.status, raised.value.code) == (410, "expired")
    assert raised.value.details["first"] == 6
    assert values(client, skip_expired=True) == [b"3", b"x"]


def test_tokens(start: Start, tmp_path: Path) -> None:
    secret = make_secret(tmp_path / "secret")
    broker = start(*listen("fast"), ADMIN, f"--secret-file={secret}")
    publishes, reads = (make_token(secret, permission=p) for p in ("publish", "history"))
    with Fast.to(broker, create(publishes, "locked")) as fast:
        assert fast.sync(publishes) == []
    open_client, reader = client_of(broker), client_of(broker, reads.decode())
    writer = client_of(broker, publishes.decode())
    for refused in (open_client, reader):
        with pytest.raises(HistoryError) as raised:
            refused.stage("q", 0, table("locked", b"1"))
        assert raised.value.status == 403
    writer.commit("q", 0, [writer.stage("q", 0, table("locked", b"1"))])
    assert values(reader) == values(reader, topics=["locked"]) == [b"1"]
    assert values(open_client) == values(writer) == []
    for refused in (open_client, writer):
        with pytest.raises(HistoryError) as raised:
            values(refused, topics=["locked"])
        assert raised.value.status == 403
    assert reads.decode() not in broker.output


@contextmanager
def stalled(broker: Broker, target: str) -> Iterator[socket.socket]:
    """Return a client that requests a long reply and does not read it."""
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect((HOST, broker.port("http")))
        sock.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert sock.recv(1)
        yield sock


@pytest.mark.modes
def test_a_reader_that_does_not_read_does_not_delay_others(durable: Broker) -> None:
    client = client_of(durable)
    for batch in range(12):
        publish(client, batch, "a", *[bytes(2**20)] * 4)
    before = durable.memory()
    with stalled(durable, "/v1/history?start=0"), stalled(durable, "/v1/history?start=0"):
        assert len(values(client, stop=12)) == 12
        publish(client, 12, "b", b"1")
        assert durable.memory() - before < 60 * 2**20


def test_the_broker_stops_during_a_read(durable: Broker) -> None:
    client = client_of(durable)
    for batch in range(4):
        publish(client, batch, "a", *[bytes(2**20)] * 4)
    with stalled(durable, "/v1/history?start=0") as sock:
        durable.signal(signal.SIGTERM)
        with pytest.raises(ConnectionResetError):
            list(iter(lambda: sock.recv(65536), b""))
        durable.wait()


def test_reading_resumes_after_a_broken_connection(durable: Broker) -> None:
    client = client_of(durable)
    for batch in range(12):
        publish(client, batch, "a", *[b"%d" % batch + bytes(2**20)] * 2)
    with breaking(durable.port("http"), 5 * 2**20) as (port, connections):
        pauses: list[float] = []
        through = HistoryClient(f"http://{HOST}:{port}", sleep=pauses.append)
        found = [value[:2].rstrip(b"\0") for value in values(through)]
    assert found == [b"%d" % batch for batch in range(12) for _ in range(2)]
    assert len(connections) > 3
    assert len(pauses) == len(connections) - 1


@contextmanager
def breaking(port: int, nbytes: int) -> Iterator[tuple[int, list[int]]]:
    """Yield a relay to a port that breaks each connection after this number of reply bytes."""
    connections: list[int] = []

    def carry(near: socket.socket) -> None:
        with near, socket.create_connection((HOST, port)) as far:
            request = b""
            while not request.endswith(b"}"):
                request += near.recv(65536)
            far.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            left = nbytes
            while left > 0 and (data := far.recv(min(65536, left))):
                left -= len(data)
                near.sendall(data)

    def serve() -> None:
        while True:
            try:
                near, _ = listening.accept()
            except OSError:
                return
            connections.append(1)
            carry(near)

    with socket.create_server((HOST, 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], connections
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_an_invalid_token_is_not_shown() -> None:
    with pytest.raises(
        ValueError, match=r"^the token contains a character that tokens cannot have$"
    ):
        HistoryClient(f"http://{HOST}", "se\ncret")


def test_requests_share_one_connection(durable: Broker) -> None:
    pool = urllib3.PoolManager()
    client = client_of(durable, pool=pool)
    publish(client, 0, "a", b"1")
    for _ in range(3):
        assert values(client) == [b"1"]
    connections = pool.connection_from_url(f"http://{HOST}:{durable.port('http')}")
    assert connections.num_connections == 1


def test_an_unreachable_broker_is_an_error(start: Start) -> None:
    with socket.create_server((HOST, 0)) as listening:
        port = listening.getsockname()[1]
    pauses: list[float] = []
    client = HistoryClient(f"http://{HOST}:{port}", attempts=3, sleep=pauses.append)
    with pytest.raises(HistoryUnreachable):
        client.bounds()
    with pytest.raises(HistoryUnreachable):
        list(client.read(0))
    assert pauses == [0.1, 0.2] * 2


def test_the_api_is_served_on_request(start: Start) -> None:
    assert start(*listen("nsd")).ports("http") == []
    assert len(start(*listen("nsd"), ADMIN).ports("http")) == 1
    assert start("--admin-port=none", *listen("nsd")).ports("http") == []


def test_an_invalid_port_is_a_one_line_error(tmp_path: Path) -> None:
    result = run([*listen("nsd"), "--admin-port=x"], tmp_path)
    assert (result.returncode, result.stderr.count("\n")) == (1, 1)
