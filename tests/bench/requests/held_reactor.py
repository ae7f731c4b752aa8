"""The broker's side: ``twistd`` with a clock around the reactor.

``python -m tests.bench.requests.held_reactor SOCKET ARGUMENTS-OF-TWISTD`` listens on the UNIX
socket. A line ``reset`` begins a measurement, ``longest`` ends it; the answer to either is a line
of JSON with the longest tick since, and the number of ticks.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import asdict, dataclass
from time import perf_counter, thread_time
from typing import Any

from twisted.internet import epollreactor

epollreactor.install()

from twisted.internet import reactor as _reactor  # noqa: E402
from twisted.internet.protocol import Factory  # noqa: E402
from twisted.protocols.basic import LineOnlyReceiver  # noqa: E402
from twisted.scripts.twistd import run  # noqa: E402

reactor: Any = _reactor


@dataclass
class Ticks:
    """The longest tick by the clock and by the thread's processor time, in milliseconds, both
    without the garbage collector's part, and the longest time in the collector."""

    held: float = 0.0
    processor: float = 0.0
    collector: float = 0.0
    ticks: int = 0


class Meter:
    """Takes the time from the end of one poll to the beginning of the next; replaces a poller."""

    def __init__(self, poller: Any) -> None:
        self._poller = poller
        self.register, self.modify = poller.register, poller.modify
        self.unregister = poller.unregister
        self.close, self.fileno = poller.close, poller.fileno
        self.longest = Ticks()
        self._since, self._processor = perf_counter(), thread_time()
        # Seconds by the clock and of processor time in this tick.
        self._collecting = self._collecting_processor = 0.0
        self._collector_began = (0.0, 0.0)
        gc.callbacks.append(self._collected)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._collector_began = perf_counter(), thread_time()
        else:
            began, processor = self._collector_began
            self._collecting += perf_counter() - began
            self._collecting_processor += thread_time() - processor

    def poll(self, *arguments: Any) -> Any:
        """Note the tick that ends, and poll."""
        now, processor = perf_counter(), thread_time()
        longest = self.longest
        held, used = now - self._since, processor - self._processor
        longest.ticks += 1
        longest.collector = max(longest.collector, self._collecting * 1000)
        longest.held = max(longest.held, (held - self._collecting) * 1000)
        longest.processor = max(longest.processor, (used - self._collecting_processor) * 1000)
        found = self._poller.poll(*arguments)
        self._collecting = self._collecting_processor = 0.0
        self._since, self._processor = perf_counter(), thread_time()
        return found

    def reset(self) -> None:
        """Forget all ticks, this one included."""
        ticks = self.longest.ticks
        self.longest = Ticks(ticks=ticks)
        self._since, self._processor = perf_counter(), thread_time()
        self._collecting = self._collecting_processor = 0.0


class Control(LineOnlyReceiver):
    """Answers lines."""

    delimiter = b"\n"

    def lineReceived(self, line: bytes) -> None:
        """See LineOnlyReceiver."""
        if line == b"reset":
            meter.reset()
        assert self.transport is not None
        self.transport.write(json.dumps(asdict(meter.longest)).encode() + b"\n")


meter = Meter(reactor._poller)
reactor._poller = meter


def main() -> None:
    """Run twistd."""
    path = sys.argv.pop(1)
    reactor.callWhenRunning(reactor.listenUNIX, path, Factory.forProtocol(Control))
    run()


if __name__ == "__main__":
    main()
