"""The cost of a batch in the client library: ``python -m tests.bench.client_instructions``.

A client of cafe runs under valgrind, on asyncio's loop. Its broker is in the same process: it takes
what was published, confirms it and sends prepared deliveries, between two steps of the program. So
nothing depends on when anything arrives, and the counts are those of the same work each time. The
work of the system's kernel is not counted.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from pubsub.client import Client, MessageBatch, connect
from pubsub.protocols.cafe.codec import HandshakeAck, Ping, Pong, encode
from tests.bench.wires.cafe import CafeWire

TOPIC = "cafe/0"
PER_BATCH = 910
SIZE = 64
_SECONDS = 900
_WARM, _COUNTED = 40, 160
# The broker's timestamp is in milliseconds; this number of batches arrives in one.
_ALIKE = 16
# This number of batches is confirmed together.
_TOGETHER = 4
_SOCKET_BYTES = 4 << 20
_WIRE = CafeWire()
_PUBLICATION = _WIRE.publication(0, SIZE).size
_PING, _PONG = encode(Ping()), encode(Pong())
_STAMP = 8


class Peer:
    """The broker of one connection."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BYTES)
        self._received = 0
        self._socket = sock
        self._buffer = bytearray(_SOCKET_BYTES)
        self._answered = 0
        self._welcomed = False

    def turn(self) -> None:
        """Take what has arrived, and reply to it."""
        try:
            size = self._socket.recv_into(self._buffer)
        except (BlockingIOError, ConnectionError):
            return
        if not self._welcomed:
            self._welcomed = True
            self._socket.send(encode(HandshakeAck(0, 1)))
        elif size < _PUBLICATION and self._buffer[:size].endswith(_PING):
            self._socket.send(_PONG)
        else:
            self._received += size

    def confirm(self, published: int) -> None:
        """Reply to the pings after this number of messages, if these have arrived."""
        pings = (self._received - published * _PUBLICATION) // len(_PING)
        if pings > self._answered:
            self._socket.send(_PONG * (pings - self._answered))
            self._answered = pings

    def send(self, data: bytes) -> None:
        """Send deliveries."""
        if self._socket.send(data) != len(data):
            raise RuntimeError("the socket takes too little")


class Broker:
    """A port, and the peers of those that have connected to it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self.peers: list[Peer] = []

    def turn(self) -> None:
        """Have all peers reply."""
        with suppress(BlockingIOError):
            self.peers.append(Peer(self._listener.accept()[0]))
        for peer in self.peers:
            peer.turn()

    async def until(self, work: Awaitable[object]) -> None:
        """Reply until ``work`` is done."""
        task = asyncio.ensure_future(work)
        while not task.done():
            self.turn()
            await asyncio.sleep(0)
        await task


def deliveries(number: int) -> bytes:
    """Return the deliveries of one batch."""
    frame = _WIRE.delivery(0, SIZE)
    stamp = (1_700_000_000_000 + number // _ALIKE).to_bytes(_STAMP, "little")
    before = frame.before[:-_STAMP] + stamp
    return (before + bytes(SIZE)) * PER_BATCH


async def publish(broker: Broker, client: Client) -> None:
    """Publish batches, and confirm them."""
    payloads = [os.urandom(SIZE) for _ in range(PER_BATCH)]
    await broker.until(client.publish_many(TOPIC, payloads[:1]))
    (peer,) = broker.peers
    for number in range(_WARM + _COUNTED):
        if number == _WARM:
            os.getppid()
        await client.publish_many(TOPIC, payloads)
        peer.turn()
        if number % _TOGETHER == 0:
            peer.confirm((number + 1) * PER_BATCH + 1)
        await asyncio.sleep(0)
    os.getppid()
    closing = asyncio.ensure_future(client.flush())
    while not closing.done():
        peer.turn()
        peer.confirm((_WARM + _COUNTED) * PER_BATCH + 1)
        await asyncio.sleep(0)
    await closing


async def receive(broker: Broker, client: Client) -> None:
    """Receive batches."""
    batches = [deliveries(number) for number in range(_WARM + _COUNTED)]
    subscription = client.subscribe(TOPIC)
    await broker.until(subscription.accepted())
    (peer,) = broker.peers
    received, iterator = 0, subscription.batches()
    for number, data in enumerate(batches):
        if number == _WARM:
            os.getppid()
        peer.send(data)
        while received < (number + 1) * PER_BATCH:
            batch = await anext(iterator)
            assert isinstance(batch, MessageBatch)
            received += len(batch)
    os.getppid()


CASES: dict[str, Callable[[Broker, Client], Awaitable[None]]] = {
    "publish_many": publish,
    "batches": receive,
}


async def run(case: str) -> None:
    """Run a case between two system calls that make valgrind dump its counts."""
    broker = Broker()
    client = connect(f"cafe://127.0.0.1:{broker.port}")
    await CASES[case](broker, client)
    await broker.until(client.close())


def counted(case: str, keep: Path | None = None) -> float:
    """Return the instructions for one batch; ``keep`` is a path for valgrind's counts."""
    with TemporaryDirectory(prefix="bench-client-") as directory:
        out = keep or Path(directory, "out")
        subprocess.run(
            [
                "valgrind",
                "--tool=callgrind",
                "--dump-before=getppid",
                # Each dump has the names of its functions.
                "--compress-strings=no",
                f"--callgrind-out-file={out}",
                sys.executable,
                "-m",
                __spec__.name,
                "--run",
                case,
            ],
            env={**os.environ, "PYTHONHASHSEED": "0"},
            check=True,
            stdout=subprocess.DEVNULL,
            timeout=_SECONDS,
        )
        text = Path(f"{out}.2").read_text()
    found = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1]) / _COUNTED


def main() -> None:
    """Print the instructions of every case."""
    if sys.argv[1:2] == ["--run"]:
        asyncio.run(run(sys.argv[2]))
        return
    keep = sys.argv[1] if len(sys.argv) > 1 else None
    for case in CASES:
        count = counted(case, None if keep is None else Path(f"{keep}.{case}"))
        print(f"{case}: {count:,.0f} instructions for {PER_BATCH} messages of {SIZE} bytes")


if __name__ == "__main__":
    main()
