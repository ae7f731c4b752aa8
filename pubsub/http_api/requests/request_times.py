"""``RequestTimes``: when a connection's request began to arrive, or the last one was answered."""

from __future__ import annotations

from collections.abc import Callable

from pubsub.wire.read_buffer import arrival_seconds

# Seconds that a connection without a request stays open, unless there is a setting.
_KEEP_ALIVE = 60.0


class RequestTimes:
    """The times of the requests of one connection; ``seconds`` is the reactor's clock."""

    __slots__ = ("_arrived", "_is_arriving", "_is_new", "_seconds", "_since", "is_answering")

    def __init__(self, seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._since = seconds()
        self._is_arriving = False
        self._is_new = True
        # Bytes of the request that is arriving.
        self._arrived = 0
        self.is_answering = False
        """True while a request that has arrived completely is being answered."""

    def received(self, nbytes: int) -> bool:
        """Count bytes of the request that is arriving; return whether they are the first of all.

        Of later requests it is not known: bytes may have arrived with the request before.
        """
        is_first, self._is_new = self._is_new, False
        if not self._is_arriving and not self.is_answering:
            self._is_arriving = True
            self._since = self._seconds()
            self._arrived = 0
        self._arrived += nbytes
        return is_first

    def arrived(self) -> None:
        """The request has arrived completely."""
        self._is_arriving = False
        self.is_answering = True

    def answered(self) -> None:
        """The response has been sent."""
        self.is_answering = False
        self._since = self._seconds()

    def is_slow(self, now: float, seconds: float) -> bool:
        """Return whether the request that is arriving takes too long (see ``arrival_seconds``).

        Without a limit ``seconds`` is zero.
        """
        if not self._is_arriving or not seconds:
            return False
        return now - self._since > arrival_seconds(seconds, self._arrived)

    def is_idle(self, now: float, seconds: float) -> bool:
        """Return whether there has been no request for ``seconds``; zero stands for a minute."""
        return not self._is_arriving and now - self._since > (seconds or _KEEP_ALIVE)
