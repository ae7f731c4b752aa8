"""The logs on disk in the comparison: how each is started, written and read."""

from __future__ import annotations

import json
import shutil
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pubsub.store.log_reader import read_page
from pubsub.store.log_view import LogView
from tests.bench import BenchError
from tests.bench.acks import Sized
from tests.bench.broker import Broker, twistd_broker
from tests.bench.generator import HANDSHAKE_SECONDS, connect
from tests.bench.peers.contenders import BROKER_CORE, SERVERS, Contender, start_server
from tests.bench.wires import PEER_WIRES, WIRES
from tests.bench.wires.resp import command
from tests.bench.wires.rheos import ACK_SIZE

SIZE = 64
# Occurs once in each message, and nowhere else in the data that is read.
MARK = b"~"
PAYLOAD = b"x" * (SIZE - 1) + MARK
_READ = 1 << 20


class Marked:
    """Counts acknowledgments by a byte that each contains once."""

    def __init__(self, mark: bytes, error: bytes) -> None:
        self._mark = mark
        self._error = error

    def __call__(self, data: bytes) -> int:
        """Return the number of acknowledgments in ``data``. Raises BenchError."""
        if self._error in data:
            raise BenchError(f"not stored: {data[:200]!r}")
        return data.count(self._mark)


@dataclass(frozen=True)
class Log:
    """Makes a connection of a server, stores a message, and recognizes its acknowledgment.

    Connections are numbered.
    """

    prepare: Callable[[Broker, int], socket.socket]
    message: Callable[[int], bytes]
    answers: Callable[[], Callable[[bytes], int]]
    read: Callable[[Broker, int], tuple[int, float, float]] | None
    """Read that many messages; return the number read, seconds, and CPU seconds."""


class Used:
    """The seconds of a block, by the clock and as the processor time of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.seconds = self.cpu = 0.0

    def __enter__(self) -> Used:
        self._start, self._cpu = time.perf_counter(), self._broker.cpu_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._start
        self.cpu = self._broker.cpu_seconds() - self._cpu


def _read_to(sock: socket.socket, end: bytes) -> bytes:
    data = b""
    while not data.endswith(end):
        piece = sock.recv(65536)
        if not piece:
            raise BenchError("the server closed a connection")
        data += piece
    return data


def _until(sock: socket.socket, count: int) -> bytes:
    """Read that many messages and return the last data. Raises BenchError."""
    sock.settimeout(HANDSHAKE_SECONDS)
    tail = b""
    while count > 0:
        data = sock.recv(_READ)
        if not data:
            raise BenchError("the server closed a connection")
        count -= data.count(MARK)
        tail = tail[-4096:] + data
    while not tail.endswith(b"\r\n"):
        tail += sock.recv(_READ)
    return tail


# Redis


def _redis(broker: Broker, number: int) -> socket.socket:
    return connect(broker.address, b"")


def _redis_reads(broker: Broker, expected: int) -> tuple[int, float, float]:
    found, start = 0, b"-"
    with Used(broker) as used, _redis(broker, 0) as sock:
        while found < expected:
            sock.sendall(command(b"XRANGE", b"bench", start, b"+", b"COUNT", b"10000"))
            wanted = min(10_000, expected - found)
            data = _until(sock, wanted)
            found += wanted
            last = data.rfind(b"*2\r\n$", 0, data.rfind(b"*2\r\n"))
            start = b"(" + data[last:].split(b"\r\n")[2]
    return found, used.seconds, used.cpu


# JetStream


def _nats(broker: Broker, number: int) -> socket.socket:
    hello = b'CONNECT {"verbose":false}\r\nSUB in.%d 1\r\nPING\r\n' % number
    sock = connect(broker.address, hello)
    _read_to(sock, b"PONG\r\n")
    return sock


def _jetstream(broker: Broker, number: int) -> socket.socket:
    sock = _nats(broker, number)
    stream = {"name": "bench", "subjects": ["bench"], "storage": "file"}
    body = json.dumps(stream).encode()
    request = (number, len(body), body)
    sock.sendall(b"PUB $JS.API.STREAM.CREATE.bench in.%d %d\r\n%b\r\n" % request)
    answer = _read_to(sock, b"}\r\n")
    if b'"error"' in answer:
        raise BenchError(f"JetStream answered {answer[:300]!r}")
    return sock


def _jetstream_message(number: int) -> bytes:
    return b"PUB bench in.%d %d\r\n%b\r\n" % (number, SIZE, PAYLOAD)


def _jetstream_reads(broker: Broker, expected: int) -> tuple[int, float, float]:
    with Used(broker) as used, _nats(broker, 0) as sock:
        sock.sendall(b"SUB out 2\r\n")
        config = {"deliver_subject": "out", "ack_policy": "none", "deliver_policy": "all"}
        body = json.dumps({"stream_name": "bench", "config": config}).encode()
        request = b"PUB $JS.API.CONSUMER.CREATE.bench in.0 %d\r\n%b\r\n" % (len(body), body)
        sock.sendall(request)
        _until(sock, expected)
    return expected, used.seconds, used.cpu


# This broker


def _rheos(broker: Broker, number: int) -> socket.socket:
    wire = WIRES["rheos"]
    sock = connect(broker.address, wire.publisher_hello(0, f"durable-{time.monotonic_ns()}"))
    answer = b""
    while not wire.welcomed(answer):
        answer += sock.recv(4096)
    return sock


def _our_reads(path: Path, broker: Broker, expected: int) -> tuple[int, float, float]:
    """Read from the directory, in this process, as other processes can."""
    found = 0
    with closing(LogView(path)) as view:
        start, cpu = time.perf_counter(), time.process_time()
        catalog = view.refresh()
        offset, stop = catalog.first, min(catalog.stop, expected)
        while offset < stop:
            page = read_page(catalog, offset, None, 1 << 20)
            found += sum(batch.count for batch in page.batches)
            offset = page.next_offset
        used = time.perf_counter() - start, time.process_time() - cpu
    return found, *used


def _redis_conf(fsync: str) -> dict[str, str]:
    settings = f"appendonly yes\nappendfsync {fsync}\nauto-aof-rewrite-percentage 0\n"
    conf = next(server for server in SERVERS if server.package == "redis-server").files["conf"]
    return {"conf": conf.replace("appendonly no\n", settings)}


def _jetstream_conf() -> dict[str, str]:
    conf = next(server for server in SERVERS if server.package == "nats-server").files["conf"]
    return {"conf": conf + 'jetstream { store_dir: "store", max_file_store: 20G }\n'}


def contenders(twistd: Path, directory: Path) -> list[tuple[Contender, Log]]:
    """Return this broker, storing at once and shortly after, and the others likewise."""
    packages = {server.package: server for server in SERVERS}
    xadd = command(b"XADD", b"bench", b"*", b"v", PAYLOAD)
    redis = Log(_redis, lambda _: xadd, partial(Marked, b"$", b"-ERR"), _redis_reads)
    nats = Log(_jetstream, _jetstream_message, partial(Marked, b"}", b'"error"'), _jetstream_reads)
    publish = WIRES["rheos"].publication(0, SIZE).before + PAYLOAD
    rows: list[tuple[Contender, Log]] = []
    for fsync in ("everysec", "always"):
        start = partial(start_server, packages["redis-server"], _redis_conf(fsync))
        rows.append((Contender(f"redis, appendfsync {fsync}", PEER_WIRES["resp"], start), redis))
    start = partial(start_server, packages["nats-server"], _jetstream_conf())
    rows.append((Contender("JetStream, file", PEER_WIRES["nats"], start), nats))
    for name in ("async", "sync"):
        path = directory / name
        reads = partial(_our_reads, path)
        ours = Log(_rheos, lambda _: publish, partial(Sized, ACK_SIZE), reads)
        options = [f"--store=log:{path}", f"--durability=*={name}"]
        start = partial(_afresh, path, twistd, options)
        rows.append((Contender(f"rheos, {name}", WIRES["rheos"], start, ours=True), ours))
    return rows


def _afresh(path: Path, twistd: Path, options: Sequence[str]) -> Broker:
    """Return this broker with an empty history."""
    shutil.rmtree(path, ignore_errors=True)
    return twistd_broker(twistd, WIRES["rheos"], options, BROKER_CORE)
