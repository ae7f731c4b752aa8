"""Traffic to many topics while subscribers come and go: ``python -m tests.bench.churn``.

One publisher of rheos sends to all topics in random order, and one subscriber has them all, as in
``tests/bench/peers/scaling.py``. Beside them, so many clients a second connect, subscribe to one of
the topics, and leave when the next one comes.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.bench import BenchError
from tests.bench.broker import twistd_broker
from tests.bench.generator import connect, receive
from tests.bench.measure import Meter, no_collection
from tests.bench.peers.scaling import FREE, LEARNT, ManyTopics
from tests.bench.wires import WIRES
from tests.bench.wires.rheos import ACK_SIZE, SUBSCRIBE, request

TOPICS, RATES = (200, 2000, 10_000), (0, 1, 10, 100)
_WARM_UP_SECONDS = 1.0


class _Visitors(threading.Thread):
    """Clients that come and go, ``rate`` of them a second, until ``stop``."""

    def __init__(self, address: tuple[str, int], topics: int, rate: int) -> None:
        super().__init__(daemon=True)
        self._address = address
        self._topics = topics
        self._pause = 1 / rate
        self._ended = threading.Event()
        self.served = 0

    def run(self) -> None:
        chance, number = Random(0), 0
        while not self._ended.wait(self._pause):
            number += 1
            name = f"bench/{chance.randrange(self._topics):06}"
            client = b"visitor" + number.to_bytes(9, "big")
            with contextlib.suppress(OSError), connect(self._address, b"") as sock:
                sock.sendall(request(SUBSCRIBE, client, name))
                self.served += receive(sock, ACK_SIZE)[-1:] == b"\0"
                self._ended.wait(self._pause)

    def stop(self) -> None:
        """End when the last client has left."""
        self._ended.set()
        self.join()


@contextlib.contextmanager
def visitors(address: tuple[str, int], topics: int, rate: int) -> Iterator[None]:
    """Have clients come and go meanwhile. Raises BenchError if none was served."""
    if not rate:
        yield
        return
    thread = _Visitors(address, topics, rate)
    thread.start()
    try:
        yield
    finally:
        thread.stop()
    if not thread.served:
        raise BenchError("no client was served")


def measure(twistd: Path, topics: int, rate: int, seconds: float) -> float:
    """Return the broker's processor time for a message, in ns. Raises BenchError."""
    options = [*FREE, f"--max-topics={topics + 1000}", f"--rheos-max-subscriptions={topics}"]
    with twistd_broker(twistd, WIRES["rheos"], options, 0) as broker:
        load = ManyTopics(broker, topics, shuffled=True)
        with contextlib.closing(load), no_collection(), visitors(broker.address, topics, rate):
            load.run(_WARM_UP_SECONDS + topics / LEARNT)
            meter = Meter(broker, load)
            load.run(seconds)
            usage = meter.stop()
            load.drain()
    return 1e9 / usage.per_cpu_second


def main() -> int:
    """Print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.churn", description=__doc__)
    parser.add_argument("--twistd", type=Path, default=Path(sys.executable).with_name("twistd"))
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--topics", type=int, nargs="+", default=TOPICS)
    options = parser.parse_args()
    print("| topics, ns a message |" + "".join(f" {rate} a second |" for rate in RATES))
    print("| ---: |" + " ---: |" * len(RATES))
    for topics in options.topics:
        found = [measure(options.twistd, topics, rate, options.seconds) for rate in RATES]
        print(f"| {topics:,} |" + "".join(f" {one:,.0f} |" for one in found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
