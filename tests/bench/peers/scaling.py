"""The cost of a message for this broker by subscribers, topics and sizes."""

from __future__ import annotations

import argparse
import contextlib
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import lcm
from pathlib import Path
from random import Random

from tests.bench import BenchError
from tests.bench.batches import build_batches
from tests.bench.broker import Broker, twistd_broker
from tests.bench.generator import Load, connect, receive
from tests.bench.idle import raise_file_limit
from tests.bench.measure import WARM_UP_SECONDS, Accounting, Meter, no_collection
from tests.bench.peers.contenders import BROKER_CORE, Contender
from tests.bench.peers.docs import millions, table
from tests.bench.plan import KIB, MIB, Topology, make_plan
from tests.bench.publisher import Publisher
from tests.bench.report import size_label
from tests.bench.subscriber import Subscriber, receive_buffer
from tests.bench.throughput import Throughput, measure_throughput
from tests.bench.verify import Stream
from tests.bench.wires import WIRES
from tests.bench.wires.rheos import ACK_SIZE, CREATE, PUBLISH, PUBLISHER, SUBSCRIBE, request

SUBSCRIBERS = (1, 10, 100, 1000)
TOPICS = (1, 10, 100, 1_000, 10_000, 100_000)
SIZES = (16, 64, 256, KIB, 4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB)
SIZE = 64
# Requests sent before their acknowledgments are read.
_AT_ONCE = 500
# Messages that are sent together, and rounds of all topics and batches in a cycle, at least: with
# fewer, reads would have the same topics in the same order as others before.
_PER_BATCH, _ROUNDS, _BATCHES = 500, 3, 1500
# Topics with which the warm-up takes a second more, as the broker first has to learn them.
LEARNT = 4000
_READER = bytes(15) + b"\x07"
FREE = ("--durability=*=none",)


class ManyTopics(Load):
    """One rheos publisher that publishes to all topics, and one subscriber of them all.

    Each round of all topics is in turn, or ``shuffled``: in an order of its own. The messages of
    all topics together must arrive in the order of publishing.
    """

    def __init__(self, broker: Broker, topics: int, shuffled: bool) -> None:
        self._names = [f"bench/{number:06}" for number in range(topics)]
        self._shuffled = shuffled
        wire = WIRES["rheos"]
        plan = replace(make_plan(wire, Topology(1, 1), SIZE), per_batch=_PER_BATCH)
        # A cycle has a whole number of rounds, enough of them to detect misplaced messages.
        batches = max(plan.cycle, _BATCHES) if shuffled else plan.cycle
        rounds = max(_ROUNDS, -(-batches * _PER_BATCH // topics))
        cycle = lcm(rounds * topics, _PER_BATCH) // _PER_BATCH
        super().__init__(broker.address, wire, replace(plan, least_cycle=cycle))

    def _connect(self, address: tuple[str, int], publish_address: object, wire: object) -> None:
        plan, rheos = self.plan, WIRES["rheos"]
        reader = connect(address, b"")
        publisher = connect(address, b"")
        self._sockets += [reader, publisher]
        for start in range(0, len(self._names), _AT_ONCE):
            names = self._names[start : start + _AT_ONCE]
            for opcode in (CREATE, SUBSCRIBE):
                reader.sendall(b"".join(request(opcode, _READER, name) for name in names))
                _acknowledged(reader, len(names))
        for sock in (reader, publisher):
            sock.setblocking(False)
        heads = [request(PUBLISH, PUBLISHER, name, bytes(SIZE))[:-SIZE] for name in self._names]
        frame = replace(rheos.publication(0, SIZE), before=heads[0], fixed=0)
        if self._shuffled:
            chance, number = Random(0), plan.per_batch * plan.cycle
            heads = [
                one
                for _ in range(0, number, len(heads))
                for one in chance.sample(heads, len(heads))
            ]
        batches = build_batches(frame, 0, plan, heads)
        self.publishers.append(Publisher(publisher, plan, batches, frame.answer))
        stream = Stream(plan.per_batch * plan.cycle)
        self.publishers[0].streams.append(stream)
        delivery = rheos.delivery(0, SIZE)
        streams, publishers = {0: stream}, {0: self.publishers[0]}
        buffer = receive_buffer(delivery.size)
        self.subscribers.append(
            Subscriber(reader, {0: delivery}, buffer, streams, publishers, self.samples)
        )


def _acknowledged(sock: socket.socket, count: int) -> None:
    answer = receive(sock, count * ACK_SIZE)
    if len(answer) != count * ACK_SIZE or any(answer[ACK_SIZE - 1 :: ACK_SIZE]):
        raise BenchError("the broker refused a topic or a subscription")


def measure_topics(twistd: Path, topics: int, shuffled: bool, seconds: float) -> float:
    """Return deliveries per CPU second. Raises BenchError."""
    limits = [f"--max-topics={topics + 1000}", f"--rheos-max-subscriptions={topics}"]
    with twistd_broker(twistd, WIRES["rheos"], [*FREE, *limits], BROKER_CORE) as broker:
        load = ManyTopics(broker, topics, shuffled)
        with contextlib.closing(load), no_collection():
            load.run(WARM_UP_SECONDS + topics / LEARNT)
            meter = Meter(broker, load)
            load.run(seconds)
            usage = meter.stop()
            load.drain()
            accounting = Accounting.of(load)
            if not accounting.clean:
                raise BenchError(f"not all arrived: {accounting}")
    return usage.per_cpu_second


def _measure(twistd: Path, topology: Topology, size: int, seconds: float) -> Throughput:
    plan = make_plan(WIRES["cafe"], topology, size)
    with twistd_broker(twistd, WIRES["cafe"], FREE, BROKER_CORE) as broker:
        result = measure_throughput(broker, WIRES["cafe"], plan, seconds)
    if not result.accounting.clean:
        raise BenchError(f"not all arrived: {result.accounting}")
    return result


def _in_order(order: str) -> list[str]:
    return [f"{order}, million messages / CPU s", "ns a message"]


def section(contenders: Sequence[Contender], options: argparse.Namespace) -> tuple[str, list[str]]:
    """Return three tables for cafe and rheos. A failure leaves a row without figures."""
    raise_file_limit(max(SUBSCRIBERS))
    twistd, seconds = options.twistd, options.seconds
    failures: list[str] = []

    def tried(what: str, count: int, measure: Callable[[], float]) -> float:
        try:
            return measure()
        except BenchError as error:
            failures.append(f"scaling, {count:,} {what}: {error}")
            return float("nan")

    def rate(topology: Topology, size: int) -> float:
        return _measure(twistd, topology, size, seconds).usage.per_cpu_second

    subscribers, topics, sizes = [], [], []
    for count in SUBSCRIBERS:
        each = 1e9 / tried("subscribers", count, partial(rate, Topology(1, count), SIZE))
        subscribers.append([f"{count:,}", f"{each * count:,.0f}", f"{each:,.1f}"])
    for count in TOPICS:
        row = [f"{count:,}"]
        for shuffled in (False, True):
            measure = partial(measure_topics, twistd, count, shuffled, seconds)
            found = tried("topics", count, measure)
            row += [millions(found), f"{1e9 / found:,.0f}"]
        topics.append(row)
    for size in SIZES:
        each = 1e9 / tried("bytes", size, partial(rate, Topology(1, 1), size))
        sizes.append([size_label(size), f"{each:,.0f}", f"{each / size:,.2f}"])
    tables = (
        table(["subscribers (cafe, 64 B)", "ns a message", "ns a delivery"], subscribers),
        table(["topics (rheos, 64 B)", *_in_order("in turn"), *_in_order("shuffled")], topics),
        table(["size (cafe, 1 to 1)", "ns a message", "ns a byte"], sizes),
    )
    return "\n\n".join(tables), failures
