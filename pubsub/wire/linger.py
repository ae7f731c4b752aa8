"""The orderly end of a TCP stream, after which the client has everything that was sent to it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from twisted.internet.interfaces import ISSLTransport, ITCPTransport

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

    from pubsub.wire.direct_transport import StreamTransport

# Seconds for which input is read and discarded once the kernel has the last bytes. If the stream
# were closed with unread input, the kernel would send a reset, which can overtake those bytes.
LINGER = 2.0


def can_linger(stream: StreamTransport) -> bool:
    """True for TCP; TLS and UNIX transports close in an orderly way themselves."""
    return ITCPTransport.providedBy(stream) and not ISSLTransport.providedBy(stream)


class Linger:
    """Closes the write half of ``stream`` at once, and the rest when the kernel has all bytes.

    The stream is aborted if that takes longer than ``seconds`` (but at least LINGER).
    """

    __slots__ = ("_clock", "_stream", "_timer")

    def __init__(self, stream: StreamTransport, clock: IReactorTime, seconds: float) -> None:
        self._stream = stream
        self._clock = clock
        stream.resumeProducing()
        cast(ITCPTransport, stream).loseWriteConnection()
        self._timer = clock.callLater(max(seconds, LINGER), stream.abortConnection)

    def sent(self) -> None:
        """The kernel has all that was written."""
        if self._timer.active():
            self._timer.cancel()
            # No abort: the kernel continues to send to a client that reads slowly.
            self._timer = self._clock.callLater(LINGER, self._stream.loseConnection)

    def stop(self) -> None:
        """The stream is closed."""
        if self._timer.active():
            self._timer.cancel()
