"""Single messages beside a reader of the history: ``python -m tests.bench.beside_readers``.

A broker has a history of messages to 40 topics in turn, 500 in each read. One publisher of cafe
sends single messages of 64 bytes at a fixed rate to one subscriber, first alone, then while a
client reads the history over HTTP as fast as it can: one of the topics and all of them as JSON, and
all as Arrow. The broker may use both cores. A message is stored before it is delivered, so its
latency includes the write.
"""

from __future__ import annotations

import argparse
import http.client
import os
import socket
import sys
import tempfile
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.bench import BenchError
from tests.bench.broker import HOST, Broker, port_of, twistd_broker
from tests.bench.measure import Latency
from tests.bench.plan import Topology
from tests.bench.steady import measure_steady
from tests.bench.wires import WIRES
from tests.bench.wires.cafe import HANDSHAKE_PUB, PUBLISH, frame

READS = {
    "alone": "",
    "one topic, JSON": "/v1/history?start=0&format=jsonl&topic=cafe%2F7",
    "all topics, JSON": "/v1/history?start=0&format=jsonl",
    "all topics, Arrow": "/v1/history?start=0",
}
_WIRE = WIRES["cafe"]
_TOPICS = range(1, 41)
_TOGETHER = 500
_READ_BYTES = 1 << 20


def fill(broker: Broker, messages: int) -> None:
    """Publish at least as many messages of 60 bytes; return when the broker has handled them."""
    batch = b"".join(
        frame(PUBLISH, bytes([_TOPICS[number % len(_TOPICS)]]) + b"%060d" % number)
        for number in range(_TOGETHER)
    )
    with socket.create_connection(broker.address) as sock:
        sock.sendall(frame(HANDSHAKE_PUB, bytes([_TOPICS[0], 0])))
        for _ in range(-(-messages // _TOGETHER)):
            sock.sendall(batch)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(_READ_BYTES):
            pass


def read(port: int, target: str, begun: Event) -> None:
    """Read ``target`` again and again, until the process is ended."""
    while True:
        connection = http.client.HTTPConnection(HOST, port)
        connection.request("GET", target)
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise BenchError(f"GET {target}: {response.status} {response.reason}")
        while response.read(_READ_BYTES):
            begun.set()


def measure(broker: Broker, target: str, rate: float, seconds: float) -> Latency:
    """Return the latency beside a reader of ``target``; alone if it is empty."""
    reader = None
    if target:
        context = get_context("spawn")
        begun = context.Event()
        reader = context.Process(target=read, args=(port_of(broker, "http"), target, begun))
        reader.start()
        if not begun.wait(30):
            raise BenchError("the reader got nothing")
    try:
        run = measure_steady(broker, _WIRE, Topology(1, 1), 64, rate, seconds)
    finally:
        if reader is not None:
            reader.kill()
            reader.join()
    if run.latency is None or not run.accounting.clean:
        raise BenchError(f"messages were lost, duplicated or out of order: {run.accounting}")
    return run.latency


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.beside_readers", description=__doc__
    )
    parser.add_argument("--messages", type=int, default=5_000_000, help="in the history")
    parser.add_argument("--rate", type=float, default=1000.0, help="messages a second")
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument(
        "--twistd", type=Path, default=Path(sys.executable).with_name("twistd"), metavar="PATH"
    )
    parser.add_argument("--broker-options", default="", metavar="OPTIONS")
    options = parser.parse_args()
    print("| beside a reader of | p50 ms | p99 ms | p99.9 ms |")
    print("| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory(prefix="bench-beside-") as directory:
        given = [
            f"--store=log:{directory}/history",
            f"--admin-port=tcp:0:interface={HOST}",
            *options.broker_options.split(),
        ]
        with twistd_broker(options.twistd, _WIRE, given, 0) as broker:
            broker.spread(os.sched_getaffinity(0))
            fill(broker, options.messages)
            for name, target in READS.items():
                latency = measure(broker, target, options.rate, options.seconds)
                figures = latency.p50, latency.p99, latency.p999
                print(f"| {name} | {' | '.join(f'{us / 1000:.2f}' for us in figures)} |")


if __name__ == "__main__":
    main()
