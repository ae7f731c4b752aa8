"""What a connection asks of its transport, and a TCP transport that sends at once.

Twisted's own ``write`` always waits for the next writable event: two epoll_ctl calls and a pass
of the reactor more for every send.
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet import tcp
from twisted.internet.abstract import FileDescriptor

READ_BYTES = 128 * 1024
"""Of one read, which costs the same however many messages are in it. Twisted's are 64 KiB."""
# Bytes of a rest that may as well be copied.
_COPIED = 16 * 1024


class StreamTransport(Protocol):
    """What a connection asks of its transport, be it TCP, TLS or UNIX.

    ``bufferSize`` bytes are read at a time, where the transport reads itself.
    """

    bufferSize: int

    def write(self, data: bytes) -> None: ...

    def getPeer(self) -> object: ...

    def registerProducer(self, producer: object, streaming: bool) -> None: ...

    def unregisterProducer(self) -> None: ...

    def pauseProducing(self) -> None: ...

    def resumeProducing(self) -> None: ...

    def loseConnection(self) -> None: ...

    def abortConnection(self) -> None: ...


class DirectTransport(tcp.Server):
    """Serves one accepted connection."""

    bufferSize = READ_BYTES

    def __init__(self, *args: Any, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        # May what is written go straight to the socket? One flag instead of the states of Twisted's
        # that it follows from, as it is asked for every message and subscriber. (Nothing here
        # begins TLS on a connection that is open; TLS endpoints have a protocol of their own.)
        self._direct = True

    def startWriting(self) -> None:
        """Something waits to be sent, or to be done once all is: nothing may overtake it."""
        self._direct = False
        super().startWriting()  # type: ignore[no-untyped-call]

    def stopWriting(self) -> None:
        """Nothing waits any more."""
        super().stopWriting()  # type: ignore[no-untyped-call]
        ending = self.disconnecting or self._writeDisconnecting
        self._direct = bool(self.connected) and not ending

    def write(self, data: bytes) -> None:
        """Send ``data``; what the kernel does not take now is buffered as by any transport."""
        if not self._direct:
            super().write(data)  # type: ignore[no-untyped-call]
            return
        try:
            sent = self.socket.send(data)
        except OSError:
            # Full, or an error: that the reactor will meet again and end the connection in its
            # own time; to do it here would call connectionLost from inside somebody's write.
            sent = 0
        if sent < len(data):
            self.keep(data, sent)

    def keep(self, data: bytes, sent: int) -> None:
        """Send the rest of ``data`` when the kernel takes it."""
        if len(data) - sent > _COPIED:
            # As `doWrite` does when it sent only a part of what it had: nothing is copied.
            self.dataBuffer, self.offset = data, sent
            self._maybePauseProducer()  # type: ignore[no-untyped-call]
            self.startWriting()
        else:
            # Bytes, not a view, which Twisted would refuse.
            FileDescriptor.write(self, data[sent:])
