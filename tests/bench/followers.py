"""Followers of the HTTP API and the client library: ``python -m tests.bench.followers``.

One publisher of cafe sends 500 messages of 16 to 256 bytes at a time, to one topic or to ten in
turn; up to four such sends are in flight. WebSockets, responses of lines or events, and clients of
the library receive all topics. The broker is on one core, everything else on another. No message
may be lost or out of order: each send ends with a mark, which every subscriber must get in its
turn. Topics are not stored. The second table is of a client of the library that publishes messages
of 64 bytes one by one, without waiting for their confirmations.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random

from pubsub.client import connect
from tests.bench import BenchError
from tests.bench.broker import HOST, Broker, port_of
from tests.bench.measure import no_collection
from tests.bench.wires.cafe import PUBLISH, CafeWire, frame

TOPICS, PUBLISHED = (1, 10), ("cafe", "spot", "http")
_TOGETHER, _IN_FLIGHT = 500, 4
_WARM_UP_SECONDS, _DEADLINE = 0.5, 20.0
_MARK, _MARK_BYTES = b"-mark-%06d-", 13
_READ_BYTES = 1 << 18
_UPGRADE = (
    "GET /v1/ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: pubsub.v1.json\r\n"
    f"Sec-WebSocket-Key: {base64.b64encode(bytes(16)).decode()}\r\n\r\n"
)

Received = Callable[[], Awaitable[None]]
"""Waits for the mark of the next send."""


class _Raw:
    """A connection to the HTTP API that looks for marks only."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._data = bytearray()
        self._next = 0

    async def ask(self, data: bytes, answer: bytes) -> None:
        """Send a request; raises BenchError unless the reply has ``answer``."""
        self._writer.write(data)
        found = await self._reader.read(_READ_BYTES)
        if answer not in found:
            raise BenchError(f"{data[:40]!r} was answered {found[:200]!r}")

    async def received(self) -> None:
        """Wait for the next mark."""
        mark = _MARK % self._next
        self._next += 1
        while (found := self._data.find(mark)) < 0:
            del self._data[:-_MARK_BYTES]
            data = await self._reader.read(_READ_BYTES)
            if not data:
                raise BenchError("the broker has closed a connection")
            self._data += data
        del self._data[: found + _MARK_BYTES]


async def _raw(stack: AsyncExitStack, broker: Broker) -> _Raw:
    reader, writer = await asyncio.open_connection(HOST, port_of(broker, "http"), limit=_READ_BYTES)
    stack.callback(writer.close)
    return _Raw(reader, writer)


async def _websocket(
    stack: AsyncExitStack, broker: Broker, topics: list[str], **members: object
) -> Received:
    raw = await _raw(stack, broker)
    await raw.ask(_UPGRADE.encode(), b"101")
    await raw.ask(_masked({"op": "connect", "id": 0}), b'"ok"')
    for topic in topics:
        await raw.ask(_masked({"op": "subscribe", "id": 0, "topic": topic, **members}), b'"ok"')
    return raw.received


def _masked(request: dict[str, object]) -> bytes:
    """Return a text frame of less than 126 bytes; its mask is zero."""
    data = json.dumps(request).encode()
    return bytes((0x81, 0x80 | len(data))) + bytes(4) + data


async def _following(
    stack: AsyncExitStack, broker: Broker, topics: list[str], accept: str
) -> Received:
    raw = await _raw(stack, broker)
    first, *others = [topic.replace("/", "%2F") for topic in topics]
    query = "".join(f"&topic={topic}" for topic in others)
    head = f"GET /v1/topics/{first}/messages?follow=1{query} HTTP/1.1\r\nHost: localhost\r\n"
    await raw.ask(f"{head}Accept: {accept}\r\n\r\n".encode(), b" 200 ")
    return raw.received


async def _library(
    stack: AsyncExitStack, broker: Broker, topics: list[str], protocol: str
) -> Received:
    client = connect(f"{protocol}://{HOST}:{port_of(broker, protocol)}", client_id="reader")
    await stack.enter_async_context(client)
    messages = await stack.enter_async_context(client.subscribe(*topics))
    number = 0

    async def received() -> None:
        nonlocal number
        mark = _MARK % number
        number += 1
        async for message in messages:
            if message.payload == mark:
                return

    return received


KINDS: dict[str, Callable[[AsyncExitStack, Broker, list[str]], Awaitable[Received]]] = {
    "WebSocket, text": _websocket,
    "WebSocket, binary": partial(_websocket, binary=True),
    "lines": partial(_following, accept="*/*"),
    "events": partial(_following, accept="text/event-stream"),
    "library, cafe": partial(_library, protocol="cafe"),
    "library, spot": partial(_library, protocol="spot"),
    "library, http": partial(_library, protocol="http"),
}


class _Load:
    """Sends to ``topics`` topics, and waits for the subscribers."""

    def __init__(self, writer: asyncio.StreamWriter, topics: int, all_received: Received) -> None:
        chance = Random(0)
        sizes = [chance.randint(16, 256) for _ in range(_TOGETHER - 1)]
        bodies = [bytes((1 + at % topics,)) + b"x" * size for at, size in enumerate(sizes)]
        self._data = b"".join(frame(PUBLISH, body) for body in bodies)
        self._writer = writer
        self._all_received = all_received
        self._sent = self.received = 0

    async def run(self, seconds: float) -> None:
        """Send for so long, and wait for what is in flight. Raises BenchError."""
        until = time.monotonic() + seconds
        while time.monotonic() < until or self.received < self._sent:
            while time.monotonic() < until and self._sent - self.received < _IN_FLIGHT:
                self._writer.write(self._data + frame(PUBLISH, b"\1" + _MARK % self._sent))
                self._sent += 1
            if self.received < self._sent:
                try:
                    async with asyncio.timeout(_DEADLINE):
                        await self._all_received()
                except TimeoutError:
                    raise BenchError("messages are missing, or out of order") from None
                self.received += 1


async def measured(
    broker: Broker, kind: str, topics: int, subscribers: int, seconds: float
) -> tuple[float, float]:
    """Return the processor time of the broker, and here, for a delivery, in ns."""
    names = [f"cafe/{number + 1}" for number in range(topics)]
    async with AsyncExitStack() as stack:
        each = [await KINDS[kind](stack, broker, names) for _ in range(subscribers)]

        async def all_received() -> None:
            for received in each:
                await received()

        reader, writer = await asyncio.open_connection(HOST, port_of(broker, "cafe"))
        stack.callback(writer.close)
        writer.write(CafeWire().publisher_hello([1], "publisher"))
        await reader.read(_READ_BYTES)
        load = _Load(writer, topics, all_received)
        await load.run(_WARM_UP_SECONDS)
        before, here, count = broker.cpu_seconds(), time.process_time(), load.received
        await load.run(seconds)
        deliveries = (load.received - count) * _TOGETHER * subscribers
        used, own = broker.cpu_seconds() - before, time.process_time() - here
    return used * 1e9 / deliveries, own * 1e9 / deliveries


async def published(
    broker: Broker, protocol: str, topics: int, seconds: float
) -> tuple[float, float]:
    """Return the processor time of the broker, and here, for a published message, in ns."""
    names = [f"cafe/{number + 1}" for number in range(topics)]
    async with connect(f"{protocol}://{HOST}:{port_of(broker, protocol)}") as client:

        async def publish(until: float) -> int:
            number = 0
            while time.monotonic() < until:
                await client.publish(names[number % topics], bytes(64))
                number += 1
            await client.flush()
            return number

        await publish(time.monotonic() + _WARM_UP_SECONDS)
        before, here = broker.cpu_seconds(), time.process_time()
        count = await publish(time.monotonic() + seconds)
        used, own = broker.cpu_seconds() - before, time.process_time() - here
    return used * 1e9 / count, own * 1e9 / count


@contextmanager
def _serving(twistd: Path) -> Iterator[Broker]:
    """Run a broker. Raises BenchError."""
    command = [
        str(twistd), "-n", "--pidfile=", "pubsub", "--store=memory", "--durability=*=none",
        *[f"--listen={one}=tcp:0:interface={HOST}" for one in ("spot", "cafe")],
        f"--admin-port=tcp:0:interface={HOST}",
    ]  # fmt: skip
    ready = re.compile(rf"http on tcp {re.escape(HOST)}:(\d+)")
    with Broker(command, ready, 0, {}) as broker, no_collection():
        yield broker


def measure_publishing(
    twistd: Path, protocol: str, topics: int, seconds: float
) -> tuple[float, float]:
    """As ``published``, with a broker of its own. Raises BenchError."""
    with _serving(twistd) as broker:
        return asyncio.run(published(broker, protocol, topics, seconds))


def measure(
    twistd: Path, kind: str, topics: int, subscribers: int, seconds: float
) -> tuple[float, float]:
    """As ``measured``, with a broker of its own. Raises BenchError."""
    with _serving(twistd) as broker:
        return asyncio.run(measured(broker, kind, topics, subscribers, seconds))


def main() -> int:
    """Print two tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.followers", description=__doc__)
    parser.add_argument("--twistd", type=Path, default=Path(sys.executable).with_name("twistd"))
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--subscribers", type=int, default=1)
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    print("| ns a message | one topic: broker | subscriber | ten in turn: broker | subscriber |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for kind in KINDS:
        cells: list[float] = []
        for topics in TOPICS:
            cells += measure(options.twistd, kind, topics, options.subscribers, options.seconds)
        print(f"| {kind} |" + "".join(f" {one:,.0f} |" for one in cells), flush=True)
    print("\n| ns a message | one topic: broker | publisher | ten in turn: broker | publisher |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for protocol in PUBLISHED:
        cells = []
        for topics in TOPICS:
            cells += measure_publishing(options.twistd, protocol, topics, options.seconds)
        print(f"| {protocol} |" + "".join(f" {one:,.0f} |" for one in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
