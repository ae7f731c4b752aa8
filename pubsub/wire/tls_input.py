"""The input of a TLS connection that OpenSSL has not been given, and bounds for its cost.

OpenSSL never returns the memory that its buffers have once grown to. So it gets the input in small
pieces, and while the client is held the rest waits here, where it is charged.

A client of TLS 1.3 can send messages of TLS itself without end, such as KeyUpdate. Each costs the
broker the derivation of keys, and an answer that the client need not read. No client needs more
than a few in a row.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import maxsize
from typing import TYPE_CHECKING

from pubsub.broker.memory_budget import INPUT

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget

FLOOD = "tls-flood"
"""The reason of connections that are ended because of too many messages of TLS itself."""
STREAM_BYTES = 64 * 1024
"""Estimated cost of TLS for a connection, for the memory budget."""
# Two records of application data with their heads: more pieces would cost more.
_PIECE = 32 * 1024 + 512
# Bytes without a whole record of application data, which has up to 16 KiB and a head. After the
# first number others are served, after the second the connection is ended.
_SILENT = 48 * 1024
_MAX_SILENT = 256 * 1024
# Records of a piece: a KeyUpdate has 27 bytes, and takes as long as some KiB of data. Others are
# served after so many, or after the second number if the last piece was ordinary.
_MOST_RECORDS, _MOST_ORDINARY = 128, 1024
# Bytes of TLS's own answers that a client may leave unread.
_MAX_ANSWERS = 64 * 1024
# A record begins with its type, its version and its length.
_HEAD, _LENGTH_AT = 5, 3
# Connections with more bytes than this, besides the estimate, can be evicted to free memory.
_HOLDER_MARK = STREAM_BYTES + 4096


class Records:
    """Finds the records in the input of a connection, which comes in pieces of any size."""

    __slots__ = ("_head", "_left", "_whole_heads")

    def __init__(self) -> None:
        # The part of a head that has arrived; and the bytes of the last record that have not.
        self._head = b""
        self._left = self._whole_heads = 0

    def add(self, data: bytes, most: int = maxsize) -> int:
        """Add input, to the end of ``most`` records that begin in it; return its length."""
        before = len(self._head)
        data, at = (self._head + data if before else data), self._left
        size, heads = len(data), 0
        while at + _HEAD <= size and heads < most:
            at += _HEAD + (data[at + _LENGTH_AT] << 8 | data[at + _LENGTH_AT + 1])
            heads += 1
        self._whole_heads += heads
        if heads == most and at < size:
            size = at
        self._head = data[at:size]
        self._left = max(at - size, 0)
        return size - before

    @property
    def begun(self) -> int:
        """The number of records whose heads have arrived."""
        return self._whole_heads

    @property
    def whole(self) -> int:
        """The number of records that have arrived in full."""
        return self._whole_heads - (self._left > 0)

    @property
    def partial(self) -> int:
        """The number of the record that has arrived in part, from 1 on; 0 if there is none."""
        if self._head:
            return self._whole_heads + 1
        return self._whole_heads if self._left else 0


class TlsInput:
    """The input of one connection that waits; ``evict`` disconnects its client."""

    __slots__ = (
        "_answers", "_at", "_data", "_evict", "_given", "_memory", "_of_handshake", "_silent",
        "_silent_in_turn", "_turn_began", "_used", "held", "records",
    )  # fmt: skip

    def __init__(self, evict: Callable[[str], None], memory: MemoryBudget | None) -> None:
        self._evict = evict
        self._memory = memory
        self._data = b""
        self._at = 0
        self._silent = self._silent_in_turn = self._answers = 0
        # The records of the pieces, and how many they were when the turn began.
        self._given = Records()
        self._turn_began = 0
        # OpenSSL keeps the bytes of a message of the handshake until it is whole: up to 128 KiB.
        self._of_handshake = 0
        # Records whose data were taken from OpenSSL; or fewer, until it has no more.
        self._used = 0
        self.held = 0
        """Bytes that are charged."""
        self.records = Records()
        self.charge()

    def evict(self, reason: str) -> None:
        """See ``MemoryHolder``."""
        self._evict(reason)

    def add(self, data: bytes) -> None:
        """Add input behind the waiting bytes."""
        self.records.add(data)
        self._data, self._at = (self._data[self._at :] + data if self._data else data), 0

    def take(self, is_shaken: bool) -> bytes:
        """Return the next piece; empty if nothing waits. ``is_shaken``: the handshake is done."""
        at = self._at
        piece = self._data[at : at + _PIECE]
        size = self._given.add(piece, _MOST_RECORDS)
        if size < len(piece):
            piece = piece[:size]
        self._at = at + len(piece)
        if self._at == len(self._data):
            self.clear()
        self._of_handshake = 0 if is_shaken else self._of_handshake + len(piece)
        self._silent += len(piece)
        self._silent_in_turn += len(piece)
        return piece

    def clear(self) -> None:
        """Discard the waiting bytes."""
        self._data, self._at = b"", 0

    # The messages of TLS itself

    def delivers(self, is_record: bool) -> bool:
        """There was application data in the last piece; return whether OpenSSL may have more.

        Asking OpenSSL instead costs an exception. ``is_record``: it was all data of a record.
        """
        self._silent = self._silent_in_turn = 0
        self._used += is_record
        return bool(self._data) or self._used != self.records.whole

    def drained(self) -> None:
        """OpenSSL has no more data. It has used records that had none, too."""
        if not self._data:
            self._used = self.records.whole

    def answered(self, nbytes: int) -> None:
        """TLS itself has answered the last piece with ``nbytes`` bytes."""
        self._answers += nbytes

    def begin_turn(self) -> None:
        """Others have been served."""
        self._turn_began = self._given.begun
        self._silent_in_turn = 0

    def takes_long(self, is_ordinary: bool) -> bool:
        """Return whether to serve others before the next piece."""
        most = _MOST_ORDINARY if is_ordinary else _MOST_RECORDS
        records = self._given.begun - self._turn_began
        return self._silent_in_turn >= _SILENT or (records >= most and bool(self._data))

    def is_ordinary(self) -> bool:
        """Return whether the last piece had application data and nothing was answered."""
        return not (self._silent or self._answers)

    def is_flood(self, unsent: int) -> bool:
        """Return whether to end the connection; ``unsent`` bytes wait in the transport below."""
        if not unsent:
            self._answers = 0
        return self._silent > _MAX_SILENT or self._answers > _MAX_ANSWERS

    # Memory

    def charge(self) -> None:
        """Charge waiting input, answers of TLS that the client has not read, and a handshake."""
        waiting = len(self._data) - self._at
        self._charge(STREAM_BYTES + waiting + self._answers + self._of_handshake)

    def end(self) -> None:
        """The connection is lost."""
        self.clear()
        self._charge(0)

    def _charge(self, nbytes: int) -> None:
        if nbytes != self.held and self._memory is not None:
            before, self.held = self.held, nbytes
            self._memory.charge(self, before, nbytes, _HOLDER_MARK, INPUT)
