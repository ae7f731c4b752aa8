"""Traffic as applications have it: mixed sizes, several topics, several sets of subscriptions.

``python -m tests.bench.traffic --help``. A new broker for each row, the broker on one core and the
generator on another. Every byte that a subscriber receives is compared with what it must receive,
in order, except for what the broker adds (timestamps, numbers); at the end nothing may be missing.
"""

from __future__ import annotations

import argparse
import os
import shlex
import socket
import sys
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from tests.bench import BenchError
from tests.bench.broker import Broker, twistd_broker
from tests.bench.generator import Address, answer_late_frames, await_welcome, connect
from tests.bench.measure import Meter, Usage, no_collection
from tests.bench.plan import Topology, make_plan
from tests.bench.rows import Row, chosen, live_rows
from tests.bench.throughput import measure_throughput
from tests.bench.traffic_clients import ListReceiver, Receiver, Sender
from tests.bench.wires import WIRES, Wire, traits_of
from tests.bench.wires.gateways import GATEWAYS

WARM_UP_SECONDS = 0.5
# Some protocols do not confirm subscriptions.
SETTLE_SECONDS = 0.1
DRAIN_SECONDS = 20.0
WINDOW = 4


class Run:
    """The clients of a row, connected to ``broker``. A publisher has ``window`` parts in flight.

    A part is in flight until all subscribers have it and, if the protocol has acknowledgments, it
    is acknowledged.
    """

    def __init__(self, broker: Broker, wire: Wire, row: Row, window: int = WINDOW) -> None:
        self._wire = wire
        self._window = window
        self._sockets: list[socket.socket] = []
        self._stack = ExitStack()
        with self._stack:
            self.receivers = [
                self._subscribe(broker.address, row, number)
                for number in range(len(row.subscribers))
            ]
            time.sleep(SETTLE_SECONDS)
            self.senders = [
                self._publish(broker.publish_address, row, number)
                for number in range(len(row.batches))
            ]
            answer_late_frames(self._sockets, traits_of(wire))
            self._stack = self._stack.pop_all()
        self._readers = [
            [one for one in self.receivers if one.publisher == number]
            for number in range(len(self.senders))
        ]

    def _open(self, address: Address, hello: bytes, topics: int) -> socket.socket:
        sock = self._stack.enter_context(connect(address, hello, traits_of(self._wire).greeting))
        await_welcome(sock, self._wire, topics)
        sock.setblocking(False)
        self._sockets.append(sock)
        return sock

    def _subscribe(self, address: Address, row: Row, number: int) -> Receiver:
        publisher, topics = row.subscribers[number]
        client = f"bench-sub-{number}"
        sock = self._open(address, self._wire.subscriber_hello(sorted(topics), client), len(topics))
        poll_request = traits_of(self._wire).poll_request
        expected = self._wire, row.batches[publisher], topics, publisher, row.parts
        if poll_request is None:
            return Receiver(sock, *expected)
        receiver = ListReceiver(sock, *expected)
        receiver.request_with(partial(poll_request, client))
        return receiver

    def _publish(self, address: Address, row: Row, number: int) -> Sender:
        topics = row.topics(number)
        hello = self._wire.publisher_hello(topics, f"bench-pub-{number}")
        sock = self._open(address, hello, len(topics))
        return Sender(sock, self._wire, row.batches[number], number, row.parts)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    @property
    def delivered(self) -> int:
        """Messages received by all subscribers."""
        return int(sum(one.parts * one.messages for one in self.receivers))

    @property
    def acknowledged(self) -> int:
        """Messages acknowledged to all publishers."""
        return sum(one.acks.count for one in self.senders if one.acks is not None)

    def load(self, seconds: float) -> None:
        """Keep the window of each publisher full. Raises BenchError."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self._sweep(self._window)

    def drain(self) -> None:
        """Wait for all that was sent; raises BenchError if some of it does not arrive."""
        end = time.perf_counter() + DRAIN_SECONDS
        while any(self._done(number) < one.sent for number, one in enumerate(self.senders)):
            if time.perf_counter() > end:
                self._check_answers()
                raise BenchError("messages are missing")
            self._sweep(0)
        self._check_answers()

    def _check_answers(self) -> None:
        if not traits_of(self._wire).unsolicited:
            for sender in self.senders:
                sender.check_answers()

    def _done(self, number: int) -> float:
        """Return the parts of a publisher that are no longer in flight."""
        slowest = min([one.parts for one in self._readers[number]])
        return min(slowest, self.senders[number].acknowledged)

    def _sweep(self, window: int) -> None:
        try:
            for number, sender in enumerate(self.senders):
                sender.pump(sender.sent - self._done(number) < window)
            for receiver in self.receivers:
                receiver.poll(receiver.parts < self.senders[receiver.publisher].sent)
        except OSError as error:
            raise BenchError(f"the broker dropped a connection: {error}") from error


def measure(broker: Broker, wire: Wire, row: Row, seconds: float, window: int = WINDOW) -> Usage:
    """Measure one row; raises BenchError, also if a message is lost, doubled or out of order."""
    if row.lone:
        return _measure_lone(broker, wire, row, seconds)
    with no_collection(), Run(broker, wire, row, window) as run:
        run.load(WARM_UP_SECONDS)
        meter = Meter(broker, run)
        run.load(seconds)
        usage = meter.stop()
        run.drain()
    return usage


def _measure_lone(broker: Broker, wire: Wire, row: Row, seconds: float) -> Usage:
    _, size = row.batches[0][0]
    number = len({batch[0][0] for batch in row.batches})
    topology = Topology(len(row.batches), 1, number, own_topics=number > 1)
    window = row.lone * wire.publication(topology.topic(0), size).size
    plan = make_plan(wire, topology, size, 1, window)
    result = measure_throughput(broker, wire, plan, seconds, every_byte=True)
    if not result.accounting.clean:
        raise BenchError(f"not all arrived: {result.accounting}")
    return result.usage


def main() -> int:
    """Print a table; return 1 if messages were lost, duplicated or reordered."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.traffic", description=__doc__)
    add = parser.add_argument
    add("--wire", choices=sorted(WIRES), default="cafe")
    add("--twistd", type=Path, default=Path(sys.executable).with_name("twistd"))
    add("--seconds", type=float, default=5.0)
    add("--window", type=int, default=WINDOW, help="batches in flight of a publisher (default: 4)")
    add("--broker-options", type=shlex.split, default=["--store", "memory"])
    add(
        "--gateway",
        action="store_true",
        help="the messages of each topic have a sender of their own, over the same connection",
    )
    add("--rows", action="append", default=[], metavar="TEXT",
        help="only rows whose name contains this text; may be repeated")  # fmt: skip
    options = parser.parse_args()
    rows = chosen(live_rows(), options.rows)
    if not rows:
        parser.error(f"no row contains {' or '.join(options.rows)}")
    os.sched_setaffinity(0, {1})
    print("| | M deliveries per CPU second |\n| --- | ---: |")
    failed = 0
    wires = GATEWAYS if options.gateway else WIRES
    if options.wire not in wires:
        parser.error(f"the messages of a connection of {options.wire} have one sender")
    wire = wires[options.wire]
    for row in rows:
        with twistd_broker(options.twistd, wire, options.broker_options, 0) as broker:
            try:
                usage = measure(broker, wire, row, options.seconds, options.window)
                print(f"| {row.name} | {usage.per_cpu_second / 1e6:.2f} |", flush=True)
            except BenchError as error:
                failed = 1
                print(f"| {row.name} | failed: {error} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
