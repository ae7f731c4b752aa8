"""The cost of messages for two brokers at a nats-server in instructions, beside one broker alone.

    python -m tests.bench.backplane_instructions               a table
    python -m tests.bench.backplane_instructions serve ...     a broker, until its input ends

The brokers run under valgrind, one tick after the other. A publisher sends a batch to the first
one, and the next batch when the subscribers of the second one have it. The work of the
system's kernel and of nats-server is not counted.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from tests.bench import BenchError
from tests.bench.lockstep import Client
from tests.bench.metrics_instructions import Broker, serve
from tests.bench.wires.cafe import ACK_SIZE, CafeWire
from tests.integration.nats_server import NatsServer, nats_server

SERVE = "serve"
_WARM = 40
_SIZE = 64
_WIRE = CafeWire()
# Seconds for the server to have the subscriptions.
_SUBSCRIPTIONS = 60.0


class BatchLoad(NamedTuple):
    """A publisher sends ``together`` messages at a time, to ``topics`` topics in turn.

    Each of its ``subscribers`` reads all of these. There are ``pairs`` of such a publisher and its
    subscribers, with topics of their own.
    """

    subscribers: int = 1
    topics: int = 1
    together: int = 910
    repetitions: int = 160
    pairs: int = 1


LOADS: Mapping[str, BatchLoad] = {
    "1-1, 910 at a time": BatchLoad(),
    "1-10, 910 at a time": BatchLoad(subscribers=10),
    "10-pairs, 910 at a time": BatchLoad(pairs=10, repetitions=40),
    "1-1, 910 at a time, 10 topics in turn": BatchLoad(topics=10),
    "1-1, 90 at a time": BatchLoad(together=90),
    "1-1, one at a time": BatchLoad(together=1),
}


@contextmanager
def brokers_of(
    tool: Sequence[str], directory: Path, counts: Path
) -> Iterator[tuple[NatsServer, list[Broker]]]:
    """Run a server, a broker alone, and two brokers at the server.

    ``tool`` is what they run under, in which ``{out}`` stands for a path in ``counts``.
    """
    with ExitStack() as stack:
        server = stack.enter_context(nats_server(directory, "-m", "-1"))
        brokers = []
        for name in ("alone", "publishers", "subscribers"):
            out = counts / name
            options = [] if name == "alone" else [f"--backplane={server.url}"]
            broker = Broker(
                (__spec__.name, SERVE, *options), out, [part.format(out=out) for part in tool]
            )
            brokers.append(stack.enter_context(closing(broker)))
        # They start at the same time, and are not counted then.
        for broker in brokers if tool else ():
            assert broker.port
            broker.begin()
        yield server, brokers


def measure(
    load: BatchLoad, first: Broker, second: Broker, server: NatsServer | None
) -> list[float]:
    """Return the instructions of each broker for a message that is published."""
    brokers = list(dict.fromkeys((first, second)))
    messages = load.pairs * load.together * load.repetitions
    with ExitStack() as stack:
        senders, readers = _clients_of(load, first, second)
        clients = [*senders, *readers]
        for client in clients:
            stack.enter_context(closing(client))
        due = [ACK_SIZE] * len(clients)
        _until(brokers, clients, due)
        if server is not None:
            _await_subscriptions(server, second, load.pairs * load.topics)
        batches = [_batch(load, pair) for pair in range(load.pairs)]
        amount = load.together * _WIRE.delivery(1, _SIZE).size
        for number in range(_WARM + load.repetitions):
            if number == _WARM:
                for broker in brokers:
                    broker.counted()
            for sender, batch in zip(senders, batches, strict=True):
                sender.send(batch)
            due[load.pairs :] = [have + amount for have in due[load.pairs :]]
            _until(brokers, clients, due)
        counts = [broker.counted() / messages for broker in brokers]
    for broker in brokers:
        broker.tick()
        broker.tick()
    return counts


def _topics(load: BatchLoad, pair: int) -> list[int]:
    return list(range(1 + pair * load.topics, 1 + (pair + 1) * load.topics))


def _batch(load: BatchLoad, pair: int) -> bytes:
    frames = [
        _WIRE.publication(topic, _SIZE).before + bytes(_SIZE) for topic in _topics(load, pair)
    ]
    return b"".join([frames[place % load.topics] for place in range(load.together)])


def _clients_of(
    load: BatchLoad, first: Broker, second: Broker
) -> tuple[list[Client], list[Client]]:
    """Return the publishers and the subscribers of all pairs."""
    senders, readers = [], []
    for pair in range(load.pairs):
        topics = _topics(load, pair)
        senders.append(Client(first.port, _WIRE.publisher_hello(topics[:1], f"p{pair}")))
        for number in range(load.subscribers):
            hello = _WIRE.subscriber_hello(topics, f"s{pair}-{number}")
            readers.append(Client(second.port, hello))
    return senders, readers


def _until(brokers: Sequence[Broker], clients: Sequence[Client], due: Sequence[int]) -> None:
    """Run ticks until each client has received so much."""
    for client in clients:
        client.pump()
    brokers[0].tick()
    arrived = True
    while True:
        before = sum([client.received for client in clients])
        for client in clients:
            client.pump()
        if all(client.received >= amount for client, amount in zip(clients, due, strict=True)):
            return
        if not arrived:
            brokers[0].tick()
        brokers[-1].tick()
        arrived = sum([client.received for client in clients]) > before


def _await_subscriptions(server: NatsServer, broker: Broker, topics: int) -> None:
    deadline = time.monotonic() + _SUBSCRIPTIONS
    while sum(server.subscriptions("pubsub.v1.t.")) != topics:
        if time.monotonic() > deadline:
            raise BenchError("the server does not know what the subscribers want")
        broker.tick()


def results(
    tool: Sequence[str], loads: Mapping[str, BatchLoad] = LOADS, keep: str | None = None
) -> Iterator[tuple[str, list[float]]]:
    """Yield the instructions of the broker alone and of the two, for each load."""
    with (
        TemporaryDirectory(prefix="bench-backplane-") as name,
        brokers_of(tool, Path(name), Path(keep or name)) as (server, (alone, first, second)),
    ):
        for title, load in loads.items():
            yield (
                title,
                [
                    *measure(load, alone, alone, None),
                    *measure(load, first, second, server),
                ],
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.backplane_instructions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--load", choices=LOADS, action="append")
    parser.add_argument("--keep", help="a directory for valgrind's counts by function")
    options = parser.parse_args(arguments)
    tool = ["valgrind", "--tool=callgrind", "--dump-before=getppid", "--instr-atstart=no"]
    tool += ["--compress-strings=no", "--callgrind-out-file={out}"]
    print("| load | alone | of publishers | of subscribers |")
    print("| --- | ---: | ---: | ---: |")
    loads = {name: LOADS[name] for name in options.load or LOADS}
    for name, counts in results(tool, loads, options.keep):
        print(f"| {name} | " + " | ".join(f"{count:,.0f}" for count in counts) + " |", flush=True)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [SERVE]:
        serve(sys.argv[2:])
    else:
        sys.exit(main())
