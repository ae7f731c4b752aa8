"""What the broker looks after once a second, whatever comes in: time limits and memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.task import LoopingCall
from twisted.logger import Logger

if TYPE_CHECKING:
    from pubsub.broker.service import BrokerService

log = Logger()
SWEEP_SECONDS = 1.0


class Housekeeping:
    """Sweeps while the broker runs."""

    def __init__(self, broker: BrokerService) -> None:
        self._broker = broker
        self._full_since: float | None = None
        self._sweeper = LoopingCall(self._sweep)
        self._sweeper.clock = broker.clock

    def start(self) -> None:
        """The first sweep is in a second."""
        self._sweeper.start(SWEEP_SECONDS, now=False)

    def stop(self) -> None:
        """No more sweeps; may be called before ``start``."""
        if self._sweeper.running:
            self._sweeper.stop()

    def _sweep(self) -> None:
        broker = self._broker
        now = broker.seconds()
        try:
            broker.router.sweep()
            broker.sessions.expire()
            for client in tuple(broker.clients):
                client.sweep(now)
            if broker.events is not None:
                broker.events.flush()
            self._sweep_memory(now)
        except Exception:
            # A defect met once must not end the housekeeping for good.
            log.failure("sweep")

    def _sweep_memory(self, now: float) -> None:
        """At the bound for too long: the largest holder of memory goes."""
        memory = self._broker.memory
        if not memory.full:
            self._full_since = None
            return
        if self._full_since is None:
            self._full_since = now
            log.warn("at the memory bound: {used} bytes", used=memory.used)
        elif now - self._full_since >= self._broker.limits.memory_seconds:
            largest = memory.largest()
            if largest is not None:
                largest.evict("memory bound")
