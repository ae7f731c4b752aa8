"""The time limit of handshakes: one timer for all connections of a listener."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall, IReactorTime


# A timer that is later by more seconds shows that the process was stopped. Handshakes that are due
# then have as many seconds more.
_GRACE = 1.0


class Shaking(Protocol):
    """A connection whose handshake is not done."""

    def handshake_overdue(self) -> None:
        """Disconnect the client, which has not done its handshake in time."""


class Handshakes:
    """The connections of a listener whose handshakes are not done.

    Each has ``seconds`` from ``begin`` on; zero is no limit. A connection is remembered only until
    its handshake is done, so that an idle one does not pay for it.
    """

    def __init__(self, clock: IReactorTime, seconds: float) -> None:
        self._clock = clock
        self._seconds = seconds
        # The time at which each has begun, in this order.
        self._begun: dict[Shaking, float] = {}
        self._timer: IDelayedCall | None = None
        # The time at which the timer is due.
        self._due = 0.0

    def __len__(self) -> int:
        return len(self._begun)

    def reconfigure(self, seconds: float) -> None:
        """Give ``seconds`` to every handshake, also to those that have begun."""
        self._seconds = seconds
        if not seconds:
            self._begun.clear()
        self._stop_timer()
        self._check()

    def begin(self, connection: Shaking) -> None:
        """Begin the time of ``connection``, unless it has begun already."""
        if self._seconds and connection not in self._begun:
            self._begun[connection] = self._clock.seconds()
            if self._timer is None:
                self._wait(self._seconds)

    def done(self, connection: Shaking) -> None:
        """The handshake is done, or the connection has ended."""
        if self._begun.pop(connection, None) is not None and not self._begun:
            self._stop_timer()

    def _stop_timer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    def _wait(self, seconds: float) -> None:
        self._due = self._clock.seconds() + seconds
        self._timer = self._clock.callLater(seconds, self._passed)

    def _passed(self) -> None:
        if self._clock.seconds() - self._due > _GRACE:
            # The process was stopped meanwhile: what clients have sent since is read first.
            self._timer = self._clock.callLater(_GRACE, self._check)
        else:
            self._check()

    def _check(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        while self._begun:
            connection, begun = next(iter(self._begun.items()))
            left = begun + self._seconds - now
            if left > 0:
                self._wait(left)
                return
            del self._begun[connection]
            connection.handshake_overdue()
