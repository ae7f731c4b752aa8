"""SIGINT and SIGTERM: the first one begins the shutdown, a later one ends its wait for clients."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Protocol, cast

from twisted.application.service import Service
from twisted.logger import Logger

if TYPE_CHECKING:
    from pubsub.broker.service import BrokerService

log = Logger()
_SAME = 1.0
"""Seconds in which further signals are the same request: timeout(1) sends SIGTERM twice at once."""


class StoppableReactor(Protocol):
    """The part of a reactor that a shutdown uses."""

    def callFromThread(self, call: Callable[[], None]) -> object: ...

    def callWhenRunning(self, call: Callable[[], None]) -> object: ...

    def stop(self) -> object: ...


class ForcedShutdown(Service):
    """Aborts the remaining connections of a stopping ``broker`` at a later signal.

    The first signal is left to the reactor's own handlers, which begin the shutdown. They would
    log a traceback at the second, whether or not the services have begun to stop.
    """

    def __init__(
        self,
        broker: BrokerService,
        reactor: object,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._broker = broker
        self._reactor = cast(StoppableReactor, reactor)
        self._monotonic = monotonic
        self._begun = False
        self._first: float | None = None
        """The time of the first signal."""

    def startService(self) -> None:
        """Handle the signals once the reactor does."""
        super().startService()  # type: ignore[no-untyped-call]
        self._reactor.callWhenRunning(self._take_over)

    def _take_over(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            begin = signal.getsignal(number)
            # A signal that is ignored, as SIGINT is in the background of a shell, stays so.
            if callable(begin):
                signal.signal(number, partial(self._signalled, begin))

    def stop(self) -> None:
        """Stop the reactor, unless it stops already."""
        if not self._begun:
            self._begun = True
            self._reactor.stop()

    def stopService(self) -> None:
        """The shutdown has begun, perhaps without a signal."""
        super().stopService()  # type: ignore[no-untyped-call]
        self._begun = True

    def _signalled(
        self, begin: Callable[[int, FrameType | None], object], number: int, frame: FrameType | None
    ) -> None:
        """Handle a signal; as it may interrupt any code, the reactor's loop does the rest."""
        now = self._monotonic()
        if self._first is None:
            self._first = now
            if not self._begun:
                self._begun = True
                begin(number, frame)
                return
        name = signal.Signals(number).name
        call = self._force if now - self._first >= _SAME else self._continue
        self._reactor.callFromThread(partial(call, name))

    def _continue(self, name: str) -> None:
        log.info("{name}: the broker is stopping already; another one cuts clients off", name=name)

    def _force(self, name: str) -> None:
        log.warn("{name} again: the broker does not wait for its clients", name=name)
        self._broker.abort_clients()
