"""The time limit of a TLS record that arrives in part."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from pubsub.errors import FrameTimeout

if TYPE_CHECKING:
    from twisted.internet.interfaces import IDelayedCall


class _TimedStream(Protocol):
    factory: Any

    @property
    def is_over(self) -> bool: ...

    @property
    def is_stalled(self) -> bool: ...

    def end(self, reason: str) -> None: ...


class RecordDeadline:
    """Ends the connection of ``stream`` if one record takes as long as a frame may take."""

    __slots__ = ("_record", "_since", "_stream", "_timer")

    def __init__(self, stream: _TimedStream) -> None:
        self._stream = stream
        # The record that has arrived in part, and since when; the timer is kept for the next ones.
        self._record = 0
        self._since = 0.0
        self._timer: IDelayedCall | None = None

    def follow(self, record: int) -> None:
        """The record of this number has arrived in part; none has for 0."""
        if record != self._record:
            self._record = record
            if record:
                self._begin()

    def restart(self) -> None:
        """The client was held, and could not send the rest of the record."""
        self._since = self._stream.factory._clock.seconds()

    def cancel(self) -> None:
        """The connection is lost."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()

    @property
    def _seconds(self) -> float:
        # An ``ssl:`` endpoint of a program has no limit (see ``tls_factory.py``).
        found: Callable[[], float] | None = getattr(self._stream.factory, "frame_seconds", None)
        return 0.0 if found is None else found()

    def _begin(self) -> None:
        self.restart()
        seconds = self._seconds
        if seconds and self._timer is None and not self._stream.is_over:
            self._timer = self._stream.factory._clock.callLater(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        clock, seconds = self._stream.factory._clock, self._seconds
        if not (self._record and seconds) or self._stream.is_over:
            return
        if self._stream.is_stalled:
            self.restart()
        left = self._since + seconds - clock.seconds()
        if left > 0:
            self._timer = clock.callLater(left, self._check)
        else:
            self._stream.end(FrameTimeout.reason)
