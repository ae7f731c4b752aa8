"""Traffic as applications have it: mixed sizes, several topics, several sets of subscriptions.

``python -m tests.bench.traffic --help``. One protocol (cafe), a new broker for each row, the broker
on one core and the generator on another. Every byte that a subscriber receives is compared with
what it must receive, in order, except for the timestamps; at the end nothing may be missing.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.bench import BenchError
from tests.bench.broker import Broker, twistd_broker
from tests.bench.wires import WIRES
from tests.bench.wires.cafe import HANDSHAKE_SUB, CafeWire, frame

WARM_UP_SECONDS = 1.0
DRAIN_SECONDS = 20.0
_RECEIVE = 1 << 20
_BATCH_MESSAGES = 1000
_WIRE = CafeWire()

Messages = list[tuple[int, int]]
"""The topic and the size of each message of a batch."""


@dataclass(frozen=True)
class Row:
    """The batch of each publisher, and for each subscriber its publisher and its topics."""

    name: str
    batches: Sequence[Messages]
    subscribers: Sequence[tuple[int, frozenset[int]]]


def rows() -> Iterator[Row]:
    """Return the rows of the table."""
    chance = random.Random(1)

    def batch(topics: int, least: int, most: int) -> Messages:
        return [(n % topics, chance.randint(least, most)) for n in range(_BATCH_MESSAGES)]

    ten, all_of_200 = frozenset(range(10)), frozenset(range(200))
    yield Row("1 to 1, 64 B", [batch(1, 64, 64)], [(0, frozenset({0}))])
    yield Row("1 to 1, 16 to 256 B", [batch(1, 16, 256)], [(0, frozenset({0}))])
    pairs = [[(n, size) for _, size in batch(1, 16, 256)] for n in range(10)]
    yield Row("10 pairs, 16 to 256 B", pairs, [(n, frozenset({n})) for n in range(10)])
    yield Row("10 topics in turn, 64 B", [batch(10, 64, 64)], [(0, ten)])
    yield Row("200 topics in turn, 16 to 256 B", [batch(200, 16, 256)], [(0, all_of_200)])
    five = frozenset(range(5))
    yield Row("50 subscribers of 5 of 10 topics, 64 B", [batch(10, 64, 64)], [(0, five)] * 50)
    sets = [frozenset(chance.sample(range(10), 5)) for _ in range(50)]
    yield Row("the same, 50 different sets", [batch(10, 64, 64)], [(0, some) for some in sets])


class Sender:
    """A publisher: sends its batch again and again within a window."""

    def __init__(self, address: tuple[str, int], messages: Messages, number: int) -> None:
        self.sent = 0
        self.batch = b"".join(
            _WIRE.publication(topic, size).before + _payload(number, place, size)
            for place, (topic, size) in enumerate(messages)
        )
        hello = _WIRE.publisher_hello(messages[0][0], f"p{number}")
        self._socket = _connect(address, hello)
        self._left = b""

    def pump(self, may_begin: bool) -> None:
        """Send the rest of a batch, or begin another."""
        if not self._left:
            if not may_begin:
                return
            self._left = self.batch
            self.sent += 1
        try:
            self._left = self._left[self._socket.send(self._left) :]
        except BlockingIOError:
            return

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class Receiver:
    """A subscriber: compares what it receives with what was sent."""

    def __init__(
        self, address: tuple[str, int], messages: Messages, topics: frozenset[int], publisher: int
    ) -> None:
        self.publisher = publisher
        expected, fixed = bytearray(), bytearray()
        self.messages = 0
        for place, (topic, size) in enumerate(messages):
            if topic in topics:
                delivery = _WIRE.delivery(topic, size)
                expected += delivery.before + _payload(publisher, place, size)
                variable = len(delivery.before) - delivery.fixed
                fixed += b"\xff" * delivery.fixed + bytes(variable) + b"\xff" * size
                self.messages += 1
        self.cycle = len(expected)
        repeats = 2 + _RECEIVE // self.cycle
        self._expected = np.frombuffer(bytes(expected) * repeats, np.uint8)
        self._fixed = np.frombuffer(bytes(fixed) * repeats, np.uint8)
        self._buffer = np.zeros(_RECEIVE, np.uint8)
        self.received = 0
        channels = bytes(sorted(topics))
        body = bytes([len(channels)]) + channels + b"\1s"
        self._socket = _connect(address, frame(HANDSHAKE_SUB, body))

    @property
    def batches(self) -> float:
        """The batches received."""
        return self.received / self.cycle

    def cycle_bytes(self) -> bytes:
        """Return what arrives for one batch, with zeros as timestamps."""
        return self._expected[: self.cycle].tobytes()

    def poll(self) -> None:
        """Receive and compare; raises BenchError."""
        try:
            count = self._socket.recv_into(self._buffer)  # type: ignore[arg-type]
        except BlockingIOError:
            return
        if not count:
            raise BenchError("the broker closed a subscriber's connection")
        start = self.received % self.cycle
        part = slice(start, start + count)
        different = (self._buffer[:count] ^ self._expected[part]) & self._fixed[part]
        if different.any():
            place = self.received + int(np.flatnonzero(different)[0])
            raise BenchError(f"a subscriber received something else at byte {place}")
        self.received += count

    def close(self) -> None:
        """End the connection."""
        self._socket.close()


class Run:
    """The clients of a row, connected to ``broker``."""

    def __init__(self, broker: Broker, row: Row, window: int) -> None:
        self._stack = ExitStack()
        self._window = window
        self.receivers = [
            Receiver(broker.address, row.batches[publisher], topics, publisher)
            for publisher, topics in row.subscribers
        ]
        self.senders = [
            Sender(broker.address, messages, number) for number, messages in enumerate(row.batches)
        ]
        for receiver in self.receivers:
            self._stack.callback(receiver.close)
        for sender in self.senders:
            self._stack.callback(sender.close)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    @property
    def delivered(self) -> float:
        """Messages received by all subscribers."""
        return sum(one.batches * one.messages for one in self.receivers)

    def load(self, seconds: float) -> None:
        """Keep the window of each publisher full."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            for number, sender in enumerate(self.senders):
                own = [one.batches for one in self.receivers if one.publisher == number]
                sender.pump(sender.sent - min(own) < self._window)
            self._poll()

    def drain(self) -> None:
        """Wait for all that was sent; raises BenchError if some of it does not arrive."""
        end = time.perf_counter() + DRAIN_SECONDS
        while any(self.senders[one.publisher].sent > one.batches for one in self.receivers):
            if time.perf_counter() > end:
                raise BenchError("messages are missing")
            for sender in self.senders:
                sender.pump(may_begin=False)
            self._poll()

    def _poll(self) -> None:
        for receiver in self.receivers:
            receiver.poll()


def _payload(publisher: int, place: int, size: int) -> bytes:
    """Return bytes that no other message of a run has at the same place of the stream."""
    return random.Random(publisher << 32 | place).randbytes(size)


def _connect(address: tuple[str, int], hello: bytes) -> socket.socket:
    made = socket.create_connection(address)
    made.sendall(hello)
    answer = b""
    while not _WIRE.welcomed(answer):
        answer += made.recv(16 - len(answer))
    made.setblocking(False)
    return made


def measure(broker: Broker, row: Row, seconds: float, window: int) -> float:
    """Return deliveries per CPU second of the broker; raises BenchError."""
    with Run(broker, row, window) as run:
        run.load(WARM_UP_SECONDS)
        before, cpu = run.delivered, broker.cpu_seconds()
        run.load(seconds)
        rate = (run.delivered - before) / (broker.cpu_seconds() - cpu)
        run.drain()
        return rate


def main() -> int:
    """Print a table; return 1 if messages were lost, duplicated or reordered."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.traffic", description=__doc__)
    add = parser.add_argument
    add("--twistd", type=Path, default=Path(sys.executable).with_name("twistd"))
    add("--seconds", type=float, default=5.0)
    add("--window", type=int, default=4, help="batches in flight of a publisher (default: 4)")
    add("--broker-options", type=shlex.split, default=["--store", "memory"])
    add("--row", default="", help="only rows whose name contains this text")
    options = parser.parse_args()
    os.sched_setaffinity(0, {1})
    print("| | M deliveries per CPU second |\n| --- | ---: |")
    failed = 0
    for row in rows():
        if options.row not in row.name:
            continue
        with twistd_broker(options.twistd, WIRES["cafe"], options.broker_options, 0) as broker:
            try:
                rate = measure(broker, row, options.seconds, options.window)
                print(f"| {row.name} | {rate / 1e6:.2f} |", flush=True)
            except BenchError as error:
                failed = 1
                print(f"| {row.name} | failed: {error} |", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
