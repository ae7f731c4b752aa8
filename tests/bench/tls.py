"""The broker's processor time for messages over TLS and without: ``python -m tests.bench.tls``.

The client library publishes and receives in one process on one core, the broker is on another.
Messages of 16 to 256 bytes of one topic are published 300 at a time, 3600 in flight; then messages
of 64 bytes one by one, by 20 clients that have about as many in flight together. No message may be
lost. Topics are not stored.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import trustme

from pubsub.client import Client, MessageBatch, connect
from tests.bench import BenchError
from tests.bench.broker import HOST, Broker
from tests.bench.measure import no_collection

PROTOCOLS = ("cafe", "rheos", "spot")
LONE_CLIENTS = 20
_TOPIC = "cafe/1"
_TOGETHER, _IN_FLIGHT = 300, 3600
_WARM_UP_SECONDS, _DEADLINE = 1.0, 20.0


class _Traffic:
    """Clients of ``broker`` for one protocol; ``received`` counts the messages."""

    def __init__(self, broker: Broker, protocol: str, authority: Path | None) -> None:
        self._broker = broker
        scheme = protocol if authority is None else f"{protocol}+tls"
        self._url = f"{scheme}://{HOST}:{broker.port}"
        self._authority = None if authority is None else str(authority)
        self._moved = asyncio.Condition()
        self.received = 0
        self.sent = 0

    def client(self, name: str) -> Client:
        return connect(self._url, client_id=name, tls_ca=self._authority)

    @asynccontextmanager
    async def subscriber(self) -> AsyncIterator[None]:
        """Count the messages that a subscriber receives meanwhile."""
        async with self.client("reader") as client, client.subscribe(_TOPIC) as messages:

            async def read() -> None:
                async for batch in messages.batches():
                    if not isinstance(batch, MessageBatch):
                        raise BenchError(f"the connection was not kept: {batch}")
                    async with self._moved:
                        self.received += len(batch)
                        self._moved.notify_all()

            reading = asyncio.create_task(read())
            try:
                yield
                await self.reach(self.sent)
            finally:
                reading.cancel()

    async def reach(self, number: int) -> None:
        """Wait until so many messages were received. Raises BenchError."""
        if self.received >= number:
            return
        try:
            async with asyncio.timeout(_DEADLINE), self._moved:
                await self._moved.wait_for(lambda: self.received >= number)
        except TimeoutError:
            raise BenchError(f"{number - self.received} messages are missing") from None

    async def in_batches(self, until: float) -> None:
        """Publish batches until this time of the loop."""
        chance, loop = Random(0), asyncio.get_running_loop()
        lists = [[b"x" * chance.randint(16, 256) for _ in range(_TOGETHER)] for _ in range(8)]
        async with self.client("publisher") as client:
            for payloads in itertools.cycle(lists):
                if loop.time() > until:
                    return
                self.sent += _TOGETHER
                await client.publish_many(_TOPIC, payloads)
                await self.reach(self.sent - _IN_FLIGHT)

    async def one_by_one(self, until: float) -> None:
        """Publish single messages until this time of the loop."""
        loop = asyncio.get_running_loop()

        async def publish(client: Client) -> None:
            async with client:
                while loop.time() < until:
                    self.sent += 1
                    number = self.sent
                    await client.publish(_TOPIC, b"x" * 64)
                    # Whose message arrives first is not known, so this is not exact.
                    await self.reach(number - LONE_CLIENTS // 2)

        names = [f"publisher {number}" for number in range(LONE_CLIENTS)]
        await asyncio.gather(*[publish(self.client(name)) for name in names])

    async def measured(self, lone: bool, seconds: float) -> float:
        """Return the broker's processor time for a message, in seconds."""
        loop = asyncio.get_running_loop()
        async with self.subscriber():
            begin = loop.time() + _WARM_UP_SECONDS
            publish = self.one_by_one if lone else self.in_batches
            publishing = asyncio.create_task(publish(begin + seconds))
            await asyncio.sleep(_WARM_UP_SECONDS)
            used, before = self._broker.cpu_seconds(), self.received
            await asyncio.sleep(seconds)
            used, before = self._broker.cpu_seconds() - used, self.received - before
            await publishing
        return used / before


def measure(twistd: Path, protocol: str, tls: bool, lone: bool, seconds: float) -> float:
    """Return the broker's processor time for a message, in seconds. Raises BenchError."""
    with TemporaryDirectory() as directory:
        own, authority = Path(directory, "broker.pem"), Path(directory, "authority.pem")
        command = [
            str(twistd), "-n", "--pidfile=", "pubsub", "--store=memory", "--durability=*=none",
            f"--listen={protocol}=tcp:0:interface={HOST}",
        ]  # fmt: skip
        if tls:
            issuer = trustme.CA()
            issuer.cert_pem.write_to_path(str(authority))
            own.touch(mode=0o600)
            issuer.issue_cert(HOST).private_key_and_cert_chain_pem.write_to_path(str(own))
            command.append(f"--tls-cert={own}")
        ready = re.compile(rf"{protocol} on (?:tcp|tls) {re.escape(HOST)}:(\d+)")
        with Broker(command, ready, 0, {}) as broker, no_collection():
            traffic = _Traffic(broker, protocol, authority if tls else None)
            return asyncio.run(traffic.measured(lone, seconds))


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.tls", description=__doc__)
    parser.add_argument("--twistd", type=Path, default=Path(sys.executable).with_name("twistd"))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--protocols", nargs="+", choices=PROTOCOLS, default=PROTOCOLS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    print("| | batches, ns a message | over TLS | one by one, µs a message | over TLS |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for protocol in options.protocols:
        cells = [
            measure(options.twistd, protocol, tls, lone, options.seconds) * (1e6 if lone else 1e9)
            for lone, tls in itertools.product((False, True), repeat=2)
        ]
        print(f"| {protocol} |" + "".join(f" {one:,.0f} |" for one in cells), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
