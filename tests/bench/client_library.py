"""The client library beside the load generator: ``python -m tests.bench client``.

One process publishes and receives messages of 64 bytes over cafe, in turn by the generator and by
the library, with the same broker and the same warm-up. The library is used as its documentation
says: ``publish_many`` of a list of payloads, and ``batches``. It has its default options; so it
queues more than the window that the generator keeps in flight. Both check the heads of messages and
their sequence: the generator by their keys, the library's program by the first payload of each
batch and the number of all.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from dataclasses import dataclass

from pubsub.client import Client, MessageBatch, Notice, Subscription, connect
from tests.bench import BenchError
from tests.bench.broker import Broker, twistd_broker
from tests.bench.measure import WARM_UP_SECONDS, no_collection
from tests.bench.options import BenchOptions
from tests.bench.plan import RunPlan, Topology, make_plan
from tests.bench.throughput import measure_throughput
from tests.bench.wires import WIRES

ROUNDS = 3
_SIZE = 64
_TOPIC = "cafe/0"


@dataclass(frozen=True)
class Rates:
    """Deliveries a second of one round."""

    generator: float
    library: float

    @property
    def ratio(self) -> float:
        """The library's rate in terms of the generator's."""
        return self.library / self.generator


def measure_client(broker: Broker, plan: RunPlan, seconds: float) -> Rates:
    """Measure both, one after the other. Raises BenchError."""
    usage = measure_throughput(broker, WIRES["cafe"], plan, seconds).usage
    with no_collection():
        library = asyncio.run(_run_library(broker.address, plan, seconds))
    return Rates(usage.deliveries / usage.wall_seconds, library)


async def _run_library(address: tuple[str, int], plan: RunPlan, seconds: float) -> float:
    url = f"cafe://{address[0]}:{address[1]}"
    async with connect(url) as client, client.subscribe(_TOPIC) as messages:
        begin = time.perf_counter() + WARM_UP_SECONDS
        total = asyncio.get_running_loop().create_future()
        payloads = [os.urandom(plan.payload) for _ in range(plan.per_batch)]
        publishing = asyncio.create_task(_publish(client, payloads, begin + seconds, total))
        rate = await _receive(messages, payloads, begin, total)
        await publishing
        return rate


async def _publish(
    client: Client, payloads: list[bytes], until: float, total: asyncio.Future[int]
) -> None:
    """Publish, and set ``total`` to the number of messages before the last of them is sent."""
    batches = 1
    while time.perf_counter() < until:
        await client.publish_many(_TOPIC, payloads)
        batches += 1
    total.set_result(batches * len(payloads))
    await client.publish_many(_TOPIC, payloads)
    await client.flush()


async def _receive(
    messages: Subscription[Notice], payloads: list[bytes], begin: float, total: asyncio.Future[int]
) -> float:
    """Return the messages a second from ``begin`` until all that was published has arrived."""
    received = 0
    start: tuple[float, int] | None = None
    async for batch in messages.batches():
        if not isinstance(batch, MessageBatch):
            raise BenchError(f"the connection was not kept: {batch}")
        if batch.columns.slice(0, 1).payloads() != [payloads[received % len(payloads)]]:
            raise BenchError(f"message {received} is not the one that was published")
        received += len(batch)
        now = time.perf_counter()
        if start is None and now >= begin:
            start = now, received
        if start is not None and total.done() and received >= total.result():
            return (received - start[1]) / (now - start[0])
    raise BenchError("the subscription has ended")


def run_client(options: BenchOptions) -> list[Rates]:
    """Measure ROUNDS rounds with one broker, print them and return them."""
    wire = WIRES["cafe"]
    plan = make_plan(wire, Topology(1, 1), _SIZE, options.batch, options.window)
    print("| million deliveries/s, 64 B | generator | client library | ratio |")
    print("| --- | ---: | ---: | ---: |")
    rounds = []
    with twistd_broker(options.twistd, wire, options.broker_options, options.broker_core) as broker:
        for number in range(ROUNDS):
            rates = measure_client(broker, plan, options.seconds)
            rounds.append(rates)
            print(
                f"| round {number + 1} | {rates.generator / 1e6:.2f} | "
                f"{rates.library / 1e6:.2f} | {rates.ratio:.2f} |"
            )
    print(f"\nmedian ratio: {statistics.median(one.ratio for one in rounds):.2f}")
    return rounds
