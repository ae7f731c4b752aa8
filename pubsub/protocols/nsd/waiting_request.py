"""``WaitingRequest``: a request of nsd that waits for its password or its identity."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from twisted.logger import Logger

from pubsub.errors import BackplaneAway, Refused

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred
    from twisted.python.failure import Failure

    from pubsub.broker.credentials.passwords import PasswordCheck

log = Logger()


class WaitingRequest:
    """``done`` is called once, with the reason why the request is refused, or None.

    It is not called after ``cancel``, when the client has left.
    """

    __slots__ = ("_cancel", "_done")

    def __init__(self, done: Callable[[Refused | None], None]) -> None:
        self._done: Callable[[Refused | None], None] | None = done
        self._cancel: Callable[[], object] = lambda: None

    def resolve(self, refused: Refused | None) -> None:
        """The request is to be answered now."""
        done, self._done = self._done, None
        if done is not None:
            done(refused)

    def wait_for_password(self, check: PasswordCheck) -> None:
        """The check calls ``resolve``."""
        if check.pending:
            self._cancel = check.cancel

    def wait_for_identity(self, found: Deferred[None]) -> None:
        """``found`` fires when the identity is here, or fails with Refused."""
        found.addCallbacks(lambda _: self.resolve(None), self._failed)

    def _failed(self, failure: Failure) -> None:
        refused = failure.value
        if not isinstance(refused, Refused):
            log.failure("nsd: an identity cannot be looked for", failure)
            refused = BackplaneAway()
        self.resolve(refused)

    def cancel(self) -> None:
        """Wait no more."""
        self._done = None
        self._cancel()
