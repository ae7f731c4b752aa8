"""A second SIGINT or SIGTERM: the shutdown that is in progress stops waiting for clients."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING, cast

from twisted.application.service import Service
from twisted.internet.interfaces import IReactorFromThreads

if TYPE_CHECKING:
    from pubsub.broker.service import BrokerService


class ForcedShutdown(Service):
    """Aborts the remaining connections of a stopping ``broker`` at a second signal.

    The first signal is left to the reactor's own handlers, which begin the shutdown. They would
    print a traceback at the second.
    """

    def __init__(self, broker: BrokerService, reactor: object) -> None:
        self._broker = broker
        self._reactor = cast(IReactorFromThreads, reactor)

    def stopService(self) -> None:
        """Handle the signals from now on, because the shutdown has begun."""
        super().stopService()  # type: ignore[no-untyped-call]
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._reactor.callFromThread(self._broker.abort_clients)
