"""Connections that store messages as fast as they can, and the check of the stored messages."""

from __future__ import annotations

import contextlib
import selectors
import time
from collections import Counter
from itertools import cycle, islice

from tests.bench import BenchError
from tests.bench.acks import Publisher, latencies_of
from tests.bench.broker import Broker
from tests.bench.generator import STALL_SECONDS, tune
from tests.bench.peers.logs import Log, Part, Reading, Used, marked
from tests.bench.plan import MIB
from tests.bench.rows import CONNECTIONS, Messages, Row, stored_window

WARM_UP_SECONDS = 0.5
RATE, ACK_SIZE_BYTES = 10_000.0, 64
# Read again: as many of the first messages.
READ_BYTES = 64 * MIB
# The most that a server puts before a message that is read.
_BETWEEN = 300


class Storing:
    """The connections of a row. Each stores its batch again and again within a window."""

    def __init__(self, broker: Broker, log: Log, row: Row) -> None:
        self._broker = broker
        self._window = stored_window(row)
        self._sizes = [len(messages) for messages in row.batches]
        self._batches = [batch_of(log, number, own) for number, own in enumerate(row.batches)]
        self._socks = [
            log.prepare(broker, number, row.topics(number)) for number in range(len(row.batches))
        ]
        self._answers = [log.answers() for _ in self._socks]
        self._waiting = [0] * len(self._socks)
        self._left = [memoryview(b"")] * len(self._socks)
        self.stored = 0
        """Messages that are acknowledged."""
        for sock in self._socks:
            tune(sock)
            sock.setblocking(False)

    def run(self, seconds: float) -> tuple[float, float]:
        """Return the messages a second, by the clock and of the server's processor time.

        The measured time begins and ends with an acknowledgment, as some servers send many of them
        together.
        """
        self._turn(WARM_UP_SECONDS)
        before = self.stored
        with Used(self._broker) as used:
            self._turn(seconds)
        count = self.stored - before
        self._drain()
        for sock in self._socks:
            sock.close()
        return count / used.seconds, count / used.cpu

    def _turn(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._sweep(True)
        stored = self.stored
        while self.stored == stored:
            self._sweep(True)
            if time.monotonic() > end + STALL_SECONDS:
                raise BenchError(f"no acknowledgment within {STALL_SECONDS:.0f} s")

    def _drain(self) -> None:
        stored, end = self.stored, time.monotonic() + STALL_SECONDS
        while any(self._waiting) or any(self._left):
            self._sweep(False)
            if self.stored > stored:
                stored, end = self.stored, time.monotonic() + STALL_SECONDS
            if time.monotonic() > end:
                raise BenchError(f"{sum(self._waiting)} messages were not acknowledged")

    def _sweep(self, more: bool) -> None:
        try:
            for index in range(len(self._socks)):
                self._pump(index, more)
        except OSError as error:
            raise BenchError(f"the server dropped a connection: {error}") from error

    def _pump(self, index: int, more: bool) -> None:
        sock, size = self._socks[index], self._sizes[index]
        if not self._left[index] and more and self._waiting[index] + size <= self._window:
            self._left[index] = memoryview(self._batches[index])
            self._waiting[index] += size
        with contextlib.suppress(BlockingIOError):
            if self._left[index]:
                self._left[index] = self._left[index][sock.send(self._left[index]) :]
        with contextlib.suppress(BlockingIOError):
            data = sock.recv(MIB)
            if not data:
                raise BenchError("the server closed a connection")
            count = self._answers[index](data)
            self._waiting[index] -= count
            self.stored += count


def batch_of(log: Log, number: int, messages: Messages) -> bytes:
    """Return the bytes that a connection sends for one batch."""
    return b"".join(
        log.message(number, topic, marked(number, place, size))
        for place, (topic, size) in enumerate(messages)
    )


def read_again(broker: Broker, log: Log, row: Row, stored: int) -> tuple[Reading, int]:
    """Compare the stored messages with those sent; return the reading and its number of messages.

    Of several connections the messages are counted, as their order is not known. Raises BenchError.
    """
    topics = row.topics(0)
    found = log.stored(broker, topics)
    if found != stored:
        raise BenchError(f"{stored} messages were acknowledged and {found} are stored")
    messages = row.batches[0]
    size = sum(size for _, size in messages) // len(messages)
    count = min(stored, READ_BYTES // size)
    counts = Counter(topic for topic, _ in islice(cycle(messages), count))
    reading = log.read(broker, counts, size)
    if len(row.batches) == 1:
        for part in reading.parts:
            check_part(part, messages, count)
    return reading, count


def check_part(part: Part, messages: Messages, count: int) -> None:
    """Raise BenchError unless the first ``count`` messages are there, those of its topics."""
    topics, data = part
    due = [
        marked(0, place, size) if topic in topics else b""
        for place, (topic, size) in enumerate(messages)
    ]
    end = 0
    for number, expected in enumerate(islice(cycle(due), count)):
        found = data.find(expected, end, end + len(expected) + _BETWEEN)
        if found < 0:
            raise BenchError(f"message {number} was lost, changed or is out of order: "
                             f"{data[end : end + 200]!r}")  # fmt: skip
        end = found + len(expected)


def acknowledgment_latencies(broker: Broker, log: Log, seconds: float) -> list[int]:
    """Return the sorted latencies at 10,000 messages a second from fifty connections, in ns.

    Raises BenchError if the server does not keep up.
    """
    selector = selectors.DefaultSelector()
    publishers = []
    with contextlib.ExitStack() as stack:
        stack.callback(selector.close)
        for number in range(CONNECTIONS):
            sock = stack.enter_context(log.prepare(broker, number, [0]))
            tune(sock)
            message = log.message(number, 0, marked(number, 0, ACK_SIZE_BYTES))
            publishers.append(Publisher(sock, message, log.answers()))
            selector.register(sock, selectors.EVENT_READ, publishers[-1])
        return sorted(latencies_of(publishers, selector, RATE, seconds))
