"""Encryption of the stream of one connection (CURVE), some milliseconds at a time (spot §2.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pubsub.protocols.spot.zmtp import FrameLimits
from pubsub.wire.read_buffer import ReadBuffer

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.protocols.spot.curve import CurveTraffic
    from pubsub.wire.direct_transport import StreamTransport


class Encrypted(Protocol):
    """The connection, as its channel uses it."""

    listener: Listener
    limits: FrameLimits
    closing: bool

    @property
    def stream(self) -> StreamTransport:
        """The transport."""

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``."""

    def hold(self, reason: object) -> None:
        """Do not read until ``release``."""

    def release(self, reason: object) -> None:
        """Read again."""

    def parse_buffered(self) -> None:
        """Pass received bytes that are not consumed to ``consume`` again."""

    def consume_frames(self, data: bytes) -> tuple[int, int]:
        """Handle the decrypted frames in ``data``; see ``Connection.consume``."""

    def pause_output(self) -> None:
        """There is more than can be sent now."""

    def resume_output(self) -> None:
        """Everything has been sent."""


class CurveChannel:
    """Between a connection and its transport, once the handshake is done.

    The connection and its outbox write to it in place of the transport.
    """

    __slots__ = (
        "_boxes_wait", "_buffer", "_connection", "_rest", "_scheduled", "_sent", "_traffic",
        "_written", "stream_full",
    )  # fmt: skip

    def __init__(self, connection: Encrypted, traffic: CurveTraffic) -> None:
        self._connection = connection
        self._traffic = traffic
        # Written bytes that have not been encrypted yet.
        self._rest = b""
        self._scheduled = False
        # The decrypted begin of a message.
        self._buffer: ReadBuffer | None = None
        # Whole boxes wait in the read buffer of the connection for their turn.
        self._boxes_wait = False
        # Bytes of frames that were written, and bytes of boxes that were made of them.
        self._written = self._sent = 1
        self.stream_full = False
        """True while the transport has more than it can send."""

    # Output

    def write(self, data: bytes) -> None:
        """Encrypt and send whole frames (see ``Consumer``)."""
        if self._rest:
            self._rest += data
        else:
            self._rest = data
            self._encrypt()

    def _encrypt(self) -> None:
        data = self._rest
        boxes, end = self._traffic.encrypt(data, 0)
        self._rest = data[end:]
        self._written += end
        self._sent += len(boxes)
        if self._rest and not self._scheduled:
            self._scheduled = True
            self._connection.listener.clock.callLater(0, self._encrypt_more)
            self._connection.pause_output()
        self._connection.stream.write(boxes)

    def _encrypt_more(self) -> None:
        self._scheduled = False
        if self._rest and not self.stream_full and not self._connection.closing:
            self._encrypt()
            if not self._rest and not self.stream_full:
                self._connection.resume_output()

    def drained(self) -> bool:
        """The transport has sent everything; return whether there is nothing left here either."""
        self.stream_full = False
        if self._rest:
            self._encrypt_more()
        return not (self._rest or self.stream_full)

    def flush(self) -> None:
        """Send everything now: the connection is leaving."""
        while self._rest:
            boxes, end = self._traffic.encrypt(self._rest, 0)
            self._rest = self._rest[end:]
            self._connection.stream.write(boxes)

    def frame_bytes(self, nbytes: int) -> int:
        """Return about how many bytes of frames are in ``nbytes`` of boxes."""
        return nbytes * self._written // self._sent

    # Input

    def consume(self, data: bytes, at: int) -> tuple[int, int]:
        """Decrypt the complete frames in ``data`` and handle them; see ``Connection.consume``.

        Raises ZmtpError.
        """
        connection = self._connection
        if self._boxes_wait:
            return at, 0
        frames, at, need = self._traffic.decrypt(data, at, connection.limits.frame)
        self.consume_frames(frames)
        if not need and not connection.closing:
            # Others have their turn first.
            self._boxes_wait = True
            connection.hold("boxes")
            connection.listener.clock.callLater(0, self._decrypt_more)
        return at, need

    def _decrypt_more(self) -> None:
        connection = self._connection
        self._boxes_wait = False
        if not connection.closing:
            connection.release("boxes")
            connection.parse_buffered()

    def consume_frames(self, frames: bytes) -> None:
        """Handle decrypted frames behind those that wait for the rest of their message."""
        connection, buffer = self._connection, self._buffer
        if buffer is not None:
            if frames and not buffer.add(frames, None):
                return
            frames = buffer.take()
        if not frames:
            return
        done, need = connection.consume_frames(frames)
        if connection.closing or done == len(frames):
            self.close()
            return
        if buffer is None:
            memory = connection.listener.memory
            # A holder of its own, as the partial frame of the connection is charged, too.
            buffer = self._buffer = ReadBuffer(self, memory, connection)
        buffer.start(frames[done:], need, len(frames))

    @property
    def held(self) -> int:
        """See ``MemoryHolder``: the bytes of decrypted frames that are charged."""
        return 0 if self._buffer is None else self._buffer.charged

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``."""
        self._connection.evict(reason)

    def overdue(self, seconds: float) -> bool:
        """Count a second; return whether the rest of a message takes longer than it may."""
        return self._buffer is not None and self._buffer.overdue(seconds)

    def close(self) -> None:
        """Discard the begin of a message, if there is one."""
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            buffer.clear()
