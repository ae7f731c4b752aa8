"""The throughput of the generator alone, with helper processes instead of a broker.

A helper runs on the broker's core at the other end of a loopback connection. One discards what is
published, one sends ready deliveries, and one replies to each publish batch with its deliveries,
like an ideal broker with one publisher and one subscriber.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import cycle

from tests.bench import BenchError
from tests.bench.batches import build_batches
from tests.bench.broker import HOST
from tests.bench.generator import STALL_SECONDS, tune
from tests.bench.measure import no_collection
from tests.bench.plan import MIB, RunPlan
from tests.bench.publisher import Publisher
from tests.bench.subscriber import Subscriber, receive_buffer
from tests.bench.verify import Stream
from tests.bench.wires import Wire

STOP_SECONDS = 5.0

Helper = Callable[[socket.socket], None]


@dataclass(frozen=True)
class SelfTest:
    """Messages per second of wall-clock time."""

    plan: RunPlan
    send: float
    receive: float
    both: float
    """Sent, received and checked by one publisher and one subscriber, as in a 1-1 run."""


def run_self_test(wire: Wire, plan: RunPlan, seconds: float, core: int) -> SelfTest:
    """Run for three times `seconds`, with the helpers on `core`. Raises BenchError."""
    batches = build_batches(wire.publication(0, plan.payload), 0, plan)
    deliveries = build_batches(wire.delivery(0, plan.payload), 0, plan)
    with no_collection():
        with _helper(swallow, core) as sock:
            publisher = Publisher(sock, plan, batches)
            send = _rate(seconds, publisher.pump, lambda: publisher.published)
        with _helper(partial(flood, batches=deliveries), core) as sock:
            subscriber = _subscriber(sock, wire, Publisher(sock, plan, batches), plan)
            receive = _rate(seconds, subscriber.poll, lambda: subscriber.delivered)
            _check(subscriber)
        with _helper(partial(relay, size=len(batches[0]), batches=deliveries), core) as sock:
            both = _exchange(sock, wire, plan, batches, seconds)
    return SelfTest(plan, send, receive, both)


def _exchange(
    sock: socket.socket, wire: Wire, plan: RunPlan, batches: Sequence[memoryview], seconds: float
) -> float:
    publisher = Publisher(sock, plan, batches)
    subscriber = _subscriber(sock, wire, publisher, plan)
    publisher.streams.append(subscriber.streams[0])

    def step() -> None:
        publisher.pump()
        subscriber.poll()

    rate = _rate(seconds, step, lambda: subscriber.delivered)
    _check(subscriber)
    return rate


def _subscriber(sock: socket.socket, wire: Wire, publisher: Publisher, plan: RunPlan) -> Subscriber:
    streams = {0: Stream(plan.per_batch * plan.cycle)}
    frame = wire.delivery(0, plan.payload)
    buffer = receive_buffer(frame.size)
    return Subscriber(sock, {0: frame}, buffer, streams, {0: publisher}, array("q"))


def _check(subscriber: Subscriber) -> None:
    stream = subscriber.streams[0]
    if stream.lost or stream.duplicated or stream.out_of_order:
        raise BenchError("the generator miscounted its own messages")


def _rate(seconds: float, step: Callable[[], object], count: Callable[[], int]) -> float:
    """Exceeds `seconds` only if the machine is too busy for a single message."""
    start = time.perf_counter()
    while (now := time.perf_counter()) < start + seconds or not count():
        if now > start + seconds + STALL_SECONDS:
            raise BenchError(f"no message in {now - start:.0f} s")
        step()
    return count() / (time.perf_counter() - start)


@contextmanager
def _helper(work: Helper, core: int) -> Iterator[socket.socket]:
    """Run `work` at the other end of the non-blocking connection that is yielded."""
    with socket.create_server((HOST, 0)) as listener:
        ours = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    for sock in (ours, theirs):
        tune(sock)
    process = multiprocessing.get_context("fork").Process(
        target=_run, args=(work, core, ours, theirs), daemon=True
    )
    process.start()
    theirs.close()
    ours.setblocking(False)
    try:
        yield ours
    finally:
        ours.close()
        process.join(STOP_SECONDS)
        if process.is_alive():
            process.kill()
            process.join()


def _run(work: Helper, core: int, parents_end: socket.socket, sock: socket.socket) -> None:
    # This process inherits the parent's end. While it is open, the parent cannot disconnect.
    parents_end.close()
    os.sched_setaffinity(0, {core})
    with suppress(ConnectionError):
        work(sock)


def swallow(sock: socket.socket) -> None:
    """Read until the end of the stream."""
    buffer = bytearray(MIB)
    while sock.recv_into(buffer):
        pass


def flood(sock: socket.socket, batches: Sequence[memoryview]) -> None:
    """Send the batches repeatedly until the connection breaks."""
    for batch in cycle(batches):
        sock.sendall(batch)


def relay(sock: socket.socket, size: int, batches: Sequence[memoryview]) -> None:
    """Reply to each `size` bytes with the next of the batches."""
    buffer = bytearray(size)
    for batch in cycle(batches):
        if sock.recv_into(buffer, size, socket.MSG_WAITALL) < size:
            return
        sock.sendall(batch)
