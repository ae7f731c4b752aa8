"""Housekeeping: time limits and the memory bound, checked once a second."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger

if TYPE_CHECKING:
    from pubsub.broker.clients.client_registry import ClientRegistry
    from pubsub.broker.clients.sessions import SessionRegistry
    from pubsub.broker.figures.events import Events
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.routing.router import Router
    from pubsub.broker.slices import SlicedWork, Slices, Work
    from pubsub.broker.topic_space.topic_lifecycle import TopicLifecycle
    from pubsub.broker.wall_clock import WallClock
    from pubsub.interfaces import ConnectedClient

log = Logger()
SWEEP_SECONDS = 1.0
# Clients that are swept in one step.
_CLIENTS = 16


class Housekeeping:
    """Sweeps the subscribers, sessions, clients and events, and evicts at the memory bound.

    The largest holder of memory is evicted after ``memory_seconds`` at the bound.
    """

    def __init__(
        self,
        clock: IReactorTime,
        wall: WallClock,
        router: Router,
        sessions: SessionRegistry,
        clients: ClientRegistry,
        slices: Slices,
        topic_lifecycle: TopicLifecycle,
        memory: MemoryBudget,
        memory_seconds: float,
    ) -> None:
        self._seconds = clock.seconds
        self._wall = wall
        self._router = router
        self._sessions = sessions
        self._clients = clients
        self._slices = slices
        self._sweeping: SlicedWork | None = None
        self.events: Events | None = None
        self._topic_lifecycle = topic_lifecycle
        self._memory = memory
        self._memory_seconds = memory_seconds
        self._full_since: float | None = None
        self._sweeper = LoopingCall(self._sweep)
        self._sweeper.clock = clock

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Apply the setting ``memory-seconds``."""
        self._memory_seconds = settings["memory-seconds"]

    def start(self) -> None:
        """Sweep every second, for the first time in a second."""
        self._sweeper.start(SWEEP_SECONDS, now=False)

    def stop(self) -> None:
        """Stop sweeping; may be called before ``start``."""
        if self._sweeper.running:
            self._sweeper.stop()

    def _sweep(self) -> None:
        now = self._seconds()
        try:
            # Before anything that takes the time of a message from it.
            self._wall.now()
            self._router.sweep()
            if self._sweeping is None:
                self._sweeping = self._slices.run(self._sweep_all(now))
            if self.events is not None:
                self.events.flush()
            self._topic_lifecycle.sweep()
            self._sweep_memory(now)
        except Exception:
            # A single defect must not end housekeeping permanently.
            log.failure("housekeeping failed")

    def _sweep_all(self, now: float) -> Work:
        """Sweep the sessions and the clients, of which there may be many."""
        try:
            yield from self._sessions.expire()
            # In pages: a copy of 100,000 connections would hold the reactor up.
            clients = self._clients.after(-1)
            while some := list(islice(clients, _CLIENTS)):
                for client in some:
                    self._sweep_client(client, now)
                yield
        finally:
            self._sweeping = None

    def _sweep_client(self, client: ConnectedClient, now: float) -> None:
        # It may have ended since.
        if client in self._clients:
            try:
                client.sweep(now)
            except Exception:
                # The limits of the connections behind it are to be applied nevertheless.
                log.failure("the limits of a connection cannot be applied")

    def _sweep_memory(self, now: float) -> None:
        if not self._memory.full:
            self._full_since = None
            return
        if self._full_since is None:
            self._full_since = now
            log.warn("memory bound reached: {used} bytes in use", used=self._memory.used)
        elif now - self._full_since >= self._memory_seconds:
            largest = self._memory.largest()
            if largest is not None:
                largest.evict("memory bound")
