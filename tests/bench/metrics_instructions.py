"""The cost of the statistics in instructions, which other load of the machine does not change.

A broker runs under valgrind, once as it is and once without what is counted (``uncounted.py``), and
clients in this process have it run one tick after the other. The time that it sees advances by
STEP a tick. What the kernel of the system does is not counted, so the share of the statistics
in the time is smaller than that in the instructions.

    python -m tests.bench.metrics_instructions counted      the broker, until its input ends
"""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

if __name__ == "__main__" and sys.argv[1] == "uncounted":
    from tests.bench.uncounted import install

    install()

from pubsub.protocols.cafe.codec import Ping, Pong, encode
from tests.bench import lockstep
from tests.bench.lockstep import Client
from tests.bench.wires.cafe import ACK_SIZE, CafeWire

_SECONDS = 900
STEP = 50e-6
FORMS = ("counted", "uncounted")
# Seconds to wait for messages on their way.
_WAIT = 0.02
TICK, MARK = b"t", b"m"
# Long copies are of many bytes an instruction, not one, as valgrind would count them.
_COPIES = "glibc.cpu.x86_rep_movsb_threshold=2147483647"
# The first flushes of a tenth of a second are timed.
_WARM = 120
_WIRE = CafeWire()
_PING, _PONG = encode(Ping()), encode(Pong())
_MIXED_SIZES = tuple(16 + index * 37 % 241 for index in range(500))


class Load(NamedTuple):
    """Each publisher sends, in each repetition, one message of each of ``sizes``.

    The messages go to ``topics`` topics in turn, over all repetitions. With ``confirmed``, a PING
    follows those of a repetition, and the publisher waits for its PONG. With ``apart``, each
    publisher has topics of its own, and a subscriber of these.
    """

    publishers: int = 1
    subscribers: int = 1
    topics: int = 1
    sizes: Sequence[int] = (64,)
    repetitions: int = 320
    confirmed: bool = False
    apart: bool = False

    @property
    def deliveries(self) -> int:
        """Messages delivered in all repetitions."""
        times = 1 if self.apart else self.subscribers
        return self.publishers * times * len(self.sizes) * self.repetitions

    def topics_of(self, client: int) -> Sequence[int]:
        """Return the topics of the publisher, or the subscriber, with this number."""
        first = 1 + self.topics * client if self.apart else 1
        return range(first, first + self.topics)


LOADS: Mapping[str, Load] = {
    "1-1, one at a time": Load(),
    "50-1, one at a time": Load(publishers=50, repetitions=64),
    "50-1, one at a time, confirmed": Load(publishers=50, repetitions=64, confirmed=True),
    "1-1, three at a time, 5 topics in turn": Load(topics=5, sizes=(64, 128, 200)),
    "20-1, three at a time, 5 topics in turn": Load(
        publishers=20, topics=5, sizes=(64, 128, 200), repetitions=64
    ),
    "20 pairs, three at a time, 5 topics in turn": Load(
        publishers=20, subscribers=20, topics=5, sizes=(64, 128, 200), repetitions=64, apart=True
    ),
    "1-10, one at a time": Load(subscribers=10),
    "1-1, one at a time, 10 topics in turn": Load(topics=10),
    "1-1, mixed sizes in batches": Load(sizes=_MIXED_SIZES, repetitions=160),
    "1-1, mixed sizes in batches, 10 topics in turn": Load(
        topics=10, sizes=_MIXED_SIZES, repetitions=160
    ),
}


# The broker


def serve(options: Sequence[str] = ()) -> None:
    """Run a broker that does in each tick what ``TICK`` on standard input asks for."""
    now = [1e6]
    # As cheap as the clock itself. The broker makes it that of the reactor.
    time.monotonic = partial(now.__getitem__, 0)
    os.write(1, b"%d\n" % lockstep.start("", options))
    while command := os.read(0, 1):
        if command == TICK:
            now[0] += STEP
            lockstep.reactor.runUntilCurrent()
            lockstep.reactor.doIteration(_WAIT)
        else:
            # Valgrind writes what it has counted since the last one.
            os.getppid()
        os.write(1, command)


class Broker:
    """A broker under ``tool``, which is valgrind and writes to ``out``.

    ``command`` is a module that calls ``serve``, with its arguments.
    """

    def __init__(self, command: Sequence[str], out: Path, tool: Sequence[str]) -> None:
        self._out = out
        self._process = subprocess.Popen(
            [*tool, sys.executable, "-m", *command],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONHASHSEED": "0", "GLIBC_TUNABLES": _COPIES},
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        self._marks = 0

    @cached_property
    def port(self) -> int:
        """Its port, as soon as it has started."""
        return int(self._output.readline())

    def begin(self) -> None:
        """Have valgrind count from now on, if it was started with ``--instr-atstart=no``."""
        command = ["callgrind_control", "-i", "on", str(self._process.pid)]
        subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)

    def tick(self) -> None:
        """Have it run a tick."""
        self._say(TICK)

    def counted(self) -> int:
        """Return the instructions since the last call."""
        self._say(MARK)
        self._marks += 1
        text = Path(f"{self._out}.{self._marks}").read_text()
        found = re.search(r"^(?:summary|totals): (\d+)", text, re.MULTILINE)
        assert found is not None
        return int(found[1])

    def _say(self, command: bytes) -> None:
        self._input.write(command)
        if self._output.read(1) != command:
            raise RuntimeError("the broker has ended")

    def close(self) -> None:
        """End it."""
        self._input.close()
        self._output.close()
        self._process.wait(_SECONDS)


# The clients


def until(broker: Broker, clients: Sequence[Client], amounts: Sequence[int]) -> None:
    """Run ticks until each client has received so much."""
    for client in clients:
        client.pump()
    while any(c.received < n for c, n in zip(clients, amounts, strict=True)):
        broker.tick()
        # Messages on their way may need no further tick.
        readable, _, _ = select.select(clients, (), (), _WAIT)
        for client in readable or clients:
            client.pump()


def measure(broker: Broker, load: Load) -> float:
    """Return the instructions for a delivery."""
    senders = [
        Client(broker.port, _WIRE.publisher_hello(load.topics_of(n)[:1], f"p{n}"))
        for n in range(load.publishers)
    ]
    receivers = [
        Client(broker.port, _WIRE.subscriber_hello(load.topics_of(n), f"s{n}"))
        for n in range(load.subscribers)
    ]
    clients = senders + receivers
    due = [ACK_SIZE] * len(clients)
    until(broker, clients, due)
    place = 0
    for number in range(_WARM + load.repetitions):
        if number == _WARM:
            broker.counted()
        for n, sender in enumerate(senders):
            topics = load.topics_of(n)
            sent = [
                _WIRE.publication(topics[(place + at) % load.topics], size).before + bytes(size)
                for at, size in enumerate(load.sizes)
            ]
            sender.send(b"".join([*sent, _PING]) if load.confirmed else b"".join(sent))
        place += len(load.sizes)
        if load.confirmed:
            due[: load.publishers] = [one + len(_PONG) for one in due[: load.publishers]]
        amount = sum(_WIRE.delivery(1, size).size for size in load.sizes)
        if not load.apart:
            amount *= load.publishers
        for index in range(load.publishers, len(clients)):
            due[index] += amount
        until(broker, clients, due)
    instructions = broker.counted() / load.deliveries
    for client in clients:
        client.close()
    for _ in range(5):
        broker.tick()
    return instructions


def results(form: str, loads: Mapping[str, Load] = LOADS) -> dict[str, float]:
    """Return the instructions for a delivery of each load."""
    with TemporaryDirectory(prefix="bench-metrics-") as directory:
        out = Path(directory, "out")
        options = ["--tool=callgrind", "--dump-before=getppid", f"--callgrind-out-file={out}"]
        broker = Broker((__name__, form), out, ["valgrind", *options])
        try:
            return {name: measure(broker, load) for name, load in loads.items()}
        finally:
            broker.close()


def compare(loads: Mapping[str, Load] = LOADS) -> dict[str, tuple[float, float]]:
    """Return the instructions for a delivery with the statistics, and without."""
    with ThreadPoolExecutor(len(FORMS)) as pool:
        counted, uncounted = pool.map(partial(results, loads=loads), FORMS)
    return {name: (counted[name], uncounted[name]) for name in loads}


if __name__ == "__main__":
    serve()
