"""The logs on disk in the comparison: how each is started, written and read."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from pubsub.store.reading.log_reader import read_page
from pubsub.store.reading.log_view import LogView
from tests.bench import BenchError
from tests.bench.acks import Sized
from tests.bench.broker import Broker, twistd_broker
from tests.bench.generator import HANDSHAKE_SECONDS, await_welcome, connect
from tests.bench.peers.contenders import (
    BROKER_CORE,
    Contender,
    path_of,
    server_named,
    start_server,
    version,
)
from tests.bench.plan import MIB
from tests.bench.rows import payload
from tests.bench.wires import PEER_WIRES, WIRES
from tests.bench.wires.resp import command
from tests.bench.wires.rheos import ACK_SIZE

# Occurs once in each message, and nowhere else in the data that is read.
MARK = b"~"
_PAGE_MESSAGES, _PAGE_BYTES = 10_000, 4 * MIB

Counts = Mapping[int, int]
"""Messages of each topic."""
Part = tuple[frozenset[int], bytes]
"""Topics, and data in which all of their messages are, in the order in which they are read."""


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


@dataclass(frozen=True)
class Reading:
    """The messages read, and the seconds and processor seconds of the reading."""

    parts: Sequence[Part]
    seconds: float
    cpu: float


class Log(Protocol):
    """A server that stores messages and acknowledges each. Connections are numbered."""

    def prepare(self, broker: Broker, number: int, topics: Sequence[int]) -> socket.socket:
        """Return a connection that can store messages to ``topics``."""

    def message(self, number: int, topic: int, data: bytes) -> bytes:
        """Return the bytes that a connection sends to store a message."""

    def answers(self) -> Callable[[bytes], int]:
        """Return a function that counts the acknowledgments in the data of a connection."""

    def stored(self, broker: Broker, topics: Sequence[int]) -> int:
        """Return the number of messages that are stored."""

    def read(self, broker: Broker, counts: Counts, size: int) -> Reading:
        """Read that many of the first messages, of about ``size`` bytes. Raises BenchError."""


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


def marked(number: int, place: int, size: int) -> bytes:
    """Return a payload of a connection, which ends with ``MARK``."""
    return payload(number, place, size - 1, text=True) + MARK


class RedisLog:
    """Redis with an append-only file; a topic is a stream."""

    def prepare(self, broker: Broker, number: int, topics: Sequence[int]) -> socket.socket:
        return connect(broker.address, b"")

    def message(self, number: int, topic: int, data: bytes) -> bytes:
        return command(b"XADD", _stream(topic), b"*", b"v", data)

    def answers(self) -> Callable[[bytes], int]:
        return Marked(b"$", b"-ERR")

    def stored(self, broker: Broker, topics: Sequence[int]) -> int:
        with self.prepare(broker, 0, topics) as sock:
            sock.sendall(b"".join(command(b"XLEN", _stream(topic)) for topic in topics))
            data = b""
            while data.count(b"\r\n") < len(topics):
                data += _more(sock)
        return sum(int(line[1:]) for line in data.splitlines())

    def read(self, broker: Broker, counts: Counts, size: int) -> Reading:
        with Used(broker) as used, self.prepare(broker, 0, ()) as sock:
            parts = [
                (frozenset({topic}), _redis_stream(sock, topic, count, size))
                for topic, count in counts.items()
            ]
        return Reading(parts, used.seconds, used.cpu)


def _stream(topic: int) -> bytes:
    return b"bench/%d" % topic


def _redis_stream(sock: socket.socket, topic: int, count: int, size: int) -> bytes:
    pages, start = [], b"-"
    while count:
        wanted = min(count, _PAGE_MESSAGES, 1 + _PAGE_BYTES // size)
        sock.sendall(command(b"XRANGE", _stream(topic), start, b"+", b"COUNT", b"%d" % wanted))
        pages.append(_until(sock, wanted, b"\r\n"))
        # An entry is an array of its id and its fields, and these are an array of two.
        last = pages[-1].rfind(b"*2\r\n$", 0, pages[-1].rfind(b"*2\r\n"))
        start = b"(" + pages[-1][last:].split(b"\r\n", 3)[2]
        count -= wanted
    return b"".join(pages)


class JetStreamLog:
    """A stream of JetStream; a topic is a subject of it."""

    def prepare(self, broker: Broker, number: int, topics: Sequence[int]) -> socket.socket:
        hello = b'CONNECT {"verbose":false}\r\nSUB in.%d 1\r\nPING\r\n' % number
        sock = connect(broker.address, hello)
        _until(sock, 0, b"PONG\r\n")
        stream = {"name": "bench", "subjects": ["bench.*"], "storage": "file"}
        self._ask(sock, number, b"STREAM.CREATE.bench", stream)
        return sock

    def _ask(self, sock: socket.socket, number: int, what: bytes, body: object = None) -> bytes:
        data = b"" if body is None else json.dumps(body).encode()
        sock.sendall(b"PUB $JS.API.%b in.%d %d\r\n%b\r\n" % (what, number, len(data), data))
        answer = _until(sock, 0, b"}\r\n")
        if b'"error"' in answer:
            raise BenchError(f"JetStream answered {answer[:300]!r}")
        return answer

    def message(self, number: int, topic: int, data: bytes) -> bytes:
        return b"PUB bench.%d in.%d %d\r\n%b\r\n" % (topic, number, len(data), data)

    def answers(self) -> Callable[[bytes], int]:
        return Marked(b"}", b'"error"')

    def stored(self, broker: Broker, topics: Sequence[int]) -> int:
        with self.prepare(broker, 0, topics) as sock:
            answer = self._ask(sock, 0, b"STREAM.INFO.bench")
        return int(json.loads(answer[answer.index(b"{") :])["state"]["messages"])

    def read(self, broker: Broker, counts: Counts, size: int) -> Reading:
        consumer = {"deliver_subject": "out", "ack_policy": "none", "deliver_policy": "all"}
        body = json.dumps({"stream_name": "bench", "config": consumer}).encode()
        with self.prepare(broker, 0, ()) as sock, Used(broker) as used:
            sock.sendall(
                b"SUB out 2\r\nPUB $JS.API.CONSUMER.CREATE.bench in.0 %d\r\n%b\r\n"
                % (len(body), body)
            )
            data = _until(sock, sum(counts.values()), b"")
        # The reply to the request is among the messages.
        start = data.index(b"MSG in.0 ")
        data = data[:start] + data[data.index(b"}\r\n", start) :]
        return Reading([(frozenset(counts), data)], used.seconds, used.cpu)


class OurLog:
    """This broker with its history on disk, over rheos, which acknowledges each message.

    Another process reads the directory, here this one. Its processor time is that of the reading.
    """

    def prepare(self, broker: Broker, number: int, topics: Sequence[int]) -> socket.socket:
        wire = WIRES["rheos"]
        hello = wire.publisher_hello(topics, f"stored-{time.monotonic_ns()}")
        sock = connect(broker.address, hello)
        await_welcome(sock, wire, len(topics))
        return sock

    def message(self, number: int, topic: int, data: bytes) -> bytes:
        return WIRES["rheos"].publication(topic, len(data)).before + data

    def answers(self) -> Callable[[bytes], int]:
        return Sized(ACK_SIZE)

    def stored(self, broker: Broker, topics: Sequence[int]) -> int:
        with closing(LogView(broker.directory / "history")) as view:
            catalog = view.refresh()
            return catalog.stop - catalog.first

    def read(self, broker: Broker, counts: Counts, size: int) -> Reading:
        found = []
        with closing(LogView(broker.directory / "history")) as view:
            start, cpu = time.perf_counter(), time.process_time()
            catalog = view.refresh()
            offset, stop = catalog.first, catalog.first + sum(counts.values())
            while offset < stop:
                page = read_page(catalog, offset, None, MIB)
                found += [batch.columns for batch in page.batches]
                offset = page.next_offset
            used = time.perf_counter() - start, time.process_time() - cpu
        data = b"".join(each for columns in found for each in columns.payloads())
        return Reading([(frozenset(counts), data)], *used)


def _more(sock: socket.socket) -> bytes:
    data = sock.recv(MIB)
    if not data:
        raise BenchError("the server closed a connection")
    return data


def _until(sock: socket.socket, count: int, end: bytes) -> bytes:
    """Return the data up to that many messages and an ``end`` of the data. Raises BenchError."""
    sock.settimeout(HANDSHAKE_SECONDS)
    pieces, tail = [], b""
    try:
        while count > 0 or not tail.endswith(end):
            pieces.append(_more(sock))
            count -= pieces[-1].count(MARK)
            tail = tail[-64:] + pieces[-1]
    except OSError as error:
        raise BenchError(f"messages cannot be read: {error}") from error
    return b"".join(pieces)


def _redis_conf(fsync: str) -> dict[str, str]:
    settings = f"appendonly yes\nappendfsync {fsync}\nauto-aof-rewrite-percentage 0\n"
    conf = server_named("redis-server").files["conf"]
    return {"conf": conf.replace("appendonly no\n", settings)}


def _jetstream_conf(more: str) -> dict[str, str]:
    # A push consumer gets all messages of a stream at once, and is disconnected if more than this
    # waits for it.
    conf = server_named("nats-server").files["conf"] + 'max_pending: 512MB\nwrite_deadline: "60s"\n'
    return {"conf": conf + f'jetstream {{ store_dir: "store", max_file_store: 20G, {more} }}\n'}


def log_contenders(twistd: Path) -> tuple[list[Contender], dict[str, Log]]:
    """Return those that are installed, and the log of each by its name."""
    found: list[tuple[Contender, Log]] = []
    redis, jetstream, ours = RedisLog(), JetStreamLog(), OurLog()
    variants: list[tuple[str, str, dict[str, str], Log]] = [
        ("redis-server", "everysec", _redis_conf("everysec"), redis),
        ("redis-server", "always", _redis_conf("always"), redis),
        ("nats-server", "JetStream", _jetstream_conf(""), jetstream),
        ("nats-server", "JetStream, sync always", _jetstream_conf("sync_interval: always"),
         jetstream),
    ]  # fmt: skip
    for program, what, files, log in variants:
        server = server_named(program)
        try:
            path_of(server)
        except BenchError:
            # ``contenders.peers`` has named it.
            continue
        start = partial(start_server, server, files)
        name = f"{program} {version(server)}, {what}"
        found.append((Contender(name, PEER_WIRES[server.wire], start), log))
    for name in ("async", "sync"):
        options = ["--store=log:history", f"--durability=*={name}"]
        start = partial(twistd_broker, twistd, WIRES["rheos"], options, BROKER_CORE)
        found.append((Contender(f"rheos, {name}", WIRES["rheos"], start, ours=True), ours))
    return [one for one, _ in found], {one.name: log for one, log in found}
