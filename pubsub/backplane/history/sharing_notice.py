"""Log lines that say whether the history is shared at present."""

from __future__ import annotations

from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger

log = Logger()
# Two brokers with one history end each other's sessions about twice a second.
_STEADY_SECONDS = 5.0


class SharingNotice:
    """Logs each reason once until the history is shared again, and that it is.

    It is shared again if no session has ended for some seconds after the first success.
    """

    def __init__(self, clock: IReactorTime) -> None:
        self._clock = clock
        self.reason = ""
        """The reason for which the history is not shared; empty while it is."""
        self._timer: IDelayedCall | None = None

    def warn(self, reason: str) -> None:
        """Log ``reason`` unless it is the one before."""
        if reason != self.reason:
            self.reason = reason
            log.warn("backplane: the history is not shared: {reason}", reason=reason)

    def recovered(self) -> None:
        """This broker has nothing more to send, or the stream has given back what it has sent."""
        if self.reason and self._timer is None:
            self._timer = self._clock.callLater(_STEADY_SECONDS, self._is_steady)

    def interrupted(self) -> None:
        """The session has ended."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _is_steady(self) -> None:
        self._timer, self.reason = None, ""
        log.info("backplane: the history is shared again")
