"""What a connection asks of its transport, and a TCP transport that sends at once.

Twisted's own ``write`` always waits for the next writable event: two epoll_ctl calls and a pass
of the reactor more for every send.
"""

from __future__ import annotations

from typing import Protocol

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


class DirectServer(tcp.Server):
    """Serves one accepted connection; set as ``Port.transport``."""

    bufferSize = READ_BYTES

    def write(self, data: bytes) -> None:
        """Send ``data``; what the kernel does not take now is buffered as by any transport."""
        if (
            self._tempDataLen
            or self.dataBuffer
            or not self.connected
            or self.disconnecting
            or self._writeDisconnected
            or self.TLS
        ):
            super().write(data)  # type: ignore[no-untyped-call]
            return
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The reactor will meet the same error and end the connection in its own time; to do
            # it here would call connectionLost from inside somebody's write.
            sent = 0
        if len(data) - sent > _COPIED:
            # As `doWrite` does when it sent only a part of what it had: nothing is copied.
            self.dataBuffer, self.offset = data, sent
            self._maybePauseProducer()  # type: ignore[no-untyped-call]
            self.startWriting()  # type: ignore[no-untyped-call]
        elif sent < len(data):
            # Bytes, not a view, which Twisted would refuse.
            FileDescriptor.write(self, data[sent:])
