"""The interface of a connection's transport, and a TCP transport that sends at once.

Twisted's own ``write`` always waits for the next writable event, which costs two epoll_ctl calls
and a pass of the reactor for every send.
"""

from __future__ import annotations

from typing import Any, Protocol

from twisted.internet import tcp
from twisted.internet.abstract import FileDescriptor

READ_BYTES = 128 * 1024
"""Bytes of one read, which costs the same for any number of messages. Twisted reads 64 KiB."""
# Unsent bytes of up to this number are copied.
_COPIED = 16 * 1024


class StreamTransport(Protocol):
    """The transport of a connection: TCP, TLS or UNIX.

    ``bufferSize`` bytes are read at a time, if the transport reads from the socket itself.
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
        # True if `write` may send to the socket directly. One flag instead of the states of
        # Twisted's transport that it follows from, as it is tested for every message and
        # subscriber. (TLS is never started on an open connection; TLS endpoints have their own
        # protocol.)
        self._direct = True

    def startWriting(self) -> None:
        """Bytes wait to be sent, or an action waits for that; later writes must not overtake."""
        self._direct = False
        super().startWriting()  # type: ignore[no-untyped-call]

    def stopWriting(self) -> None:
        """All bytes have been sent."""
        super().stopWriting()  # type: ignore[no-untyped-call]
        ending = self.disconnecting or self._writeDisconnecting or self._aborting
        self._direct = bool(self.connected) and not ending

    def write(self, data: bytes) -> None:
        """Send ``data``; buffer the bytes that the kernel does not accept."""
        if not self._direct:
            super().write(data)  # type: ignore[no-untyped-call]
            return
        try:
            sent = self.socket.send(data)
        except OSError:
            # The socket is full or has failed. The reactor meets the same error and ends the
            # connection; here that would call connectionLost within `write`.
            sent = 0
        if sent < len(data):
            self.keep(data, sent)

    def keep(self, data: bytes, sent: int) -> None:
        """Send ``data`` after its first ``sent`` bytes when the kernel accepts it."""
        if len(data) - sent > _COPIED:
            # As `doWrite` does after a partial send, so that nothing is copied.
            self.dataBuffer, self.offset = data, sent
            self._maybePauseProducer()  # type: ignore[no-untyped-call]
            self.startWriting()
        else:
            # Twisted does not accept a memoryview.
            FileDescriptor.write(self, data[sent:])
