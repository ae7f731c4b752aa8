"""The partial frame of a connection: its bytes, its charge to the memory budget, the size of reads.

The bytes are kept as they were received and joined once. Knows no transport and no protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.memory_budget import INPUT

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget, MemoryHolder
    from pubsub.interfaces import Holdable

# Partial frames of this many bytes and more are charged to the memory budget; smaller ones are
# part of the estimate for a connection.
_CHARGED_BYTES = 4096
# A frame may take this many seconds more for each _ARRIVAL_BYTES that have arrived.
_ARRIVAL_BYTES = 64 * 1024
# Chunks of one partial frame; more are joined, as many small ones take more memory than their
# bytes.
_MAX_CHUNKS = 256
# A read of this many bytes and more shows that the client sends as fast as it can.
_BUSY_BYTES = 32 * 1024
# Bytes of its reads then. Many messages share the cost of a read, and of the write to the log that
# it leads to. Much larger reads leave the processor's cache before they are written and sent.
LONG_READ = 256 * 1024
# The same where a credential, which is not written or sent, is most of a frame.
LONG_READ_OF_TOKENS = 512 * 1024
# Of large frames a read has this many, but not more than these bytes.
_FRAMES, LONGEST_READ = 16, 384 * 1024


def arrival_seconds(seconds: float, nbytes: int) -> float:
    """Seconds for a frame of which ``nbytes`` have arrived, if a short one may take ``seconds``."""
    return seconds + nbytes / _ARRIVAL_BYTES


class ReadBuffer:
    """The bytes of one connection's partial frame.

    It exists only while there is a partial frame, so that an idle connection does not pay for it.
    ``holder`` is charged in ``memory``. The ``source``, if there is one, is held at the bound until
    there is room for the rest of the frame. A read has ``long_read`` bytes, if many come, or as
    many more as large frames need.
    """

    __slots__ = (
        "_age", "_chunks", "_frame_bytes", "_holder", "_long_read", "_memory", "_nbytes", "_need",
        "_source", "charged",
    )  # fmt: skip

    def __init__(
        self,
        holder: MemoryHolder,
        memory: MemoryBudget,
        source: Holdable | None = None,
        long_read: int = LONG_READ,
    ) -> None:
        self._holder = holder
        self._memory = memory
        self._source = source
        self._long_read = long_read
        self._chunks: list[bytes] = []
        self._nbytes = 0
        self._need = 0
        # Sweeps since the frame began.
        self._age = 0
        # The length of the frames that reads should end with; 0 if that is not known.
        self._frame_bytes = 0
        self.charged = 0
        """Bytes that are charged to the memory budget."""

    def start(self, partial: bytes, need: int, received: int) -> int:
        """Keep ``partial``, the start of a frame that can be parsed from ``need`` bytes on.

        ``received`` is the number of bytes that it is the end of. Returns how many bytes to read
        at a time from now on, or 0 to leave that unchanged: a read that ends within a frame has
        all that follows copied.
        """
        self._chunks = [partial]
        self._nbytes = nbytes = len(partial)
        self._need = need
        if nbytes < received:
            # Another frame than before.
            self._age = 0
        if nbytes >= _CHARGED_BYTES or self.charged:
            self._charge(nbytes)
        if nbytes < need and received >= _BUSY_BYTES:
            self._frame_bytes = need
            return self._whole_frames(need - nbytes)
        return 0

    def add(self, data: bytes, delimiter: bytes | None) -> bool:
        """Add input; return whether the buffer should be parsed now."""
        chunks = self._chunks
        chunks.append(data)
        self._nbytes += len(data)
        if self._nbytes >= self._need or (delimiter is not None and delimiter in data):
            return True
        if len(chunks) > _MAX_CHUNKS:
            chunks[:] = [b"".join(chunks)]
        if self._nbytes >= _CHARGED_BYTES:
            self._charge(self._nbytes)
        return False

    def take(self) -> bytes:
        """Remove and return the bytes. They stay charged until ``start`` or ``clear``."""
        chunks, self._chunks = self._chunks, []
        return b"".join(chunks)

    def overdue(self, seconds: float) -> bool:
        """Count a second of waiting for the client; return whether the frame takes too long.

        It may take ``seconds``, and one more for each 64 KiB that have arrived of it.
        """
        self._age += 1
        return self._age > arrival_seconds(seconds, self._nbytes)

    def clear(self) -> int:
        """Discard the bytes and their charge. Returns a size of reads, as ``start`` does."""
        self._chunks = []
        if self.charged:
            self._charge(0)
        self._memory.leave(self)
        self.release(self._memory)
        return self._whole_frames(0) if self._frame_bytes else 0

    def _whole_frames(self, first: int) -> int:
        """The size of a read of ``first`` bytes and as many whole frames as fit."""
        longest = max(self._long_read, min(self._frame_bytes * _FRAMES, LONGEST_READ))
        if self._frame_bytes > longest:
            return longest
        count = (longest - first) // self._frame_bytes
        return first + count * self._frame_bytes

    def _charge(self, nbytes: int) -> None:
        if nbytes < _CHARGED_BYTES:
            nbytes = 0
        if nbytes != self.charged:
            before, self.charged = self.charged, nbytes
            self._memory.charge(self._holder, before, nbytes, 0, INPUT)
            if self._source is not None and nbytes > before and self._memory.full:
                self._memory.wait(self)

    def hold(self, _reason: object) -> None:
        """See ``Holdable``."""
        if self._source is not None:
            self._source.hold(self)

    def release(self, _reason: object) -> None:
        """See ``Holdable``."""
        if self._source is not None:
            self._source.release(self)
