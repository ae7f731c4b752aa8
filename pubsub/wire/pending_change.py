"""Changes that take several ticks: the client that requests one is not read meanwhile.

All brokers must agree upon them, or they concern very many subscriptions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.errors import Refused

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.wire.connection import Connection

log = Logger()


class PendingChange:
    """Holds ``connection`` until ``done`` fires; then the received bytes are parsed.

    ``refuse`` answers the client if the change is refused.
    """

    def __init__(
        self,
        connection: Connection,
        done: Deferred[Any],
        refuse: Callable[[Refused], object],
    ) -> None:
        self.pending = True
        self._connection = connection
        self._refuse = refuse
        self._held = False
        done.addErrback(self._refused).addErrback(self._failed).addCallback(self._ended)
        if self.pending:
            self._held = True
            connection.hold(self)

    def _refused(self, failure: Failure) -> None:
        refused = failure.value
        if not isinstance(refused, Refused):
            failure.raiseException()
        elif not self._connection.closing:
            self._refuse(refused)

    def _failed(self, failure: Failure) -> None:
        log.failure("a change that takes several ticks failed", failure)
        self._connection.abort("internal-error")

    def _ended(self, result: object) -> None:
        self.pending = False
        if self._held:
            self._connection.release(self)
            self._connection.parse_buffered()
