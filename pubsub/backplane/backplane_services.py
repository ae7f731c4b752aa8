"""``BackplaneServices``: the order in which the services of the backplane start and stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.application.service import MultiService, Service
from twisted.internet.defer import CancelledError, Deferred, DeferredList, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

if TYPE_CHECKING:
    from twisted.application.service import IService
    from twisted.python.failure import Failure

log = Logger()

# Seconds in which the others say goodbye.
_GOODBYE = 2.0


class BackplaneServices(MultiService):
    """Services that are started in their order. The last one has the connection to the engine.

    It is stopped when the others have stopped, as these tell the other brokers that they leave.
    """

    def __init__(self, clock: IReactorTime) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._clock = clock

    def stopService(self) -> Deferred[Any]:
        """Stop the others, and then the last one; after some seconds without waiting longer."""
        Service.stopService(self)
        others: list[IService] = list(self)
        last = others.pop()
        stopping = [maybeDeferred(one.stopService) for one in reversed(others)]
        stopped = DeferredList([one.addErrback(_failed) for one in stopping])
        stopped.addTimeout(_GOODBYE, self._clock)
        return stopped.addBoth(lambda _: maybeDeferred(last.stopService))


def _failed(failure: Failure) -> None:
    if failure.check(CancelledError) is None:
        log.failure("backplane: a service has not stopped in order", failure)
