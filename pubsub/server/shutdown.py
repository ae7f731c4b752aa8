"""A second SIGINT or SIGTERM: the stop that is under way waits for nobody any longer."""

from __future__ import annotations

import signal
from types import FrameType
from typing import TYPE_CHECKING, cast

from twisted.application.service import Service
from twisted.internet.interfaces import IReactorFromThreads

if TYPE_CHECKING:
    from pubsub.broker.service import BrokerService


class ForcedShutdown(Service):
    """Cuts off what a stopping ``broker`` waits for when the process is told to stop once more.

    Until it stops the reactor's own handlers are left in place: they begin the stop, and would
    answer a second signal with a traceback.
    """

    def __init__(self, broker: BrokerService, reactor: object) -> None:
        self._broker = broker
        self._reactor = cast(IReactorFromThreads, reactor)

    def stopService(self) -> None:
        """The stop has begun: from now on the signals mean to be quick about it."""
        super().stopService()  # type: ignore[no-untyped-call]
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._signalled)

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._reactor.callFromThread(self._broker.hurry)
