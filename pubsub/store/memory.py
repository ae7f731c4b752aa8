"""The history in memory: bounded by messages and bytes, gone with the process.

Messages are kept in blocks of columns, one block a batch: payloads joined, and either the one
length they share or an array of lengths. A block costs the same whatever it holds, so storing
adds a join to the path of a message and nothing for each message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import attrgetter

from twisted.internet.defer import Deferred, succeed
from zope.interface import implementer

from pubsub.broker.batch import MIXED, Batch, Headers, Page
from pubsub.interfaces import IStore

# What a block costs beside its payloads, an estimate for the bound in bytes.
BLOCK_BYTES = 320
# What a message costs its reader beside the payload, so that empty ones count for a page too.
_MESSAGE_BYTES = 64
# Blocks one read looks at, so that a reader of a rare topic does not stall the others.
_SCAN = 2_000
_last = attrgetter("last")


class Block:
    """A batch at rest."""

    __slots__ = (
        "_data", "_lengths", "_size", "count", "headers", "last", "nbytes", "offset", "protocol",
        "sender", "sequence", "timestamp", "topic",
    )  # fmt: skip

    def __init__(self, batch: Batch) -> None:
        payloads = batch.payloads
        self.topic = batch.topic
        self.offset = batch.offset
        self.count = len(payloads)
        self.last = batch.offset + self.count - 1
        self.timestamp = batch.timestamp
        self.sequence = batch.sequence
        self.sender = batch.sender
        self.protocol = batch.protocol
        self.headers: Sequence[Headers] | None = batch.headers
        self._data = payloads[0] if self.count == 1 else b"".join(payloads)
        self._size = batch.size
        self._lengths = array("I", map(len, payloads)) if batch.size == MIXED else None
        self.nbytes = batch.nbytes + BLOCK_BYTES
        if self._lengths is not None:
            self.nbytes += 4 * self.count
        if batch.headers is not None:
            self.nbytes += sum(
                len(key) + len(value) + 200 for h in batch.headers for key, value in h.items()
            )

    def batch(self) -> Batch:
        """The block as the batch it was made from."""
        data = self._data
        if self.count == 1:
            payloads = [data]
        elif self._lengths is None:
            size = self._size
            payloads = [data[i * size : (i + 1) * size] for i in range(self.count)]
        else:
            ends = list(accumulate(self._lengths))
            starts = [0, *ends[:-1]]
            payloads = [data[a:b] for a, b in zip(starts, ends, strict=True)]
        return Batch(
            self.topic,
            payloads,
            len(data),
            self._size,
            self.timestamp,
            self.sequence,
            self.sender,
            self.protocol,
            self.headers,
            self.offset,
        )


# Stands where a block was, so that its memory is free before the list is cut.
_GONE = Block.__new__(Block)


@implementer(IStore)
class MemoryStore:
    """At most ``messages`` messages in ``nbytes`` bytes; the oldest blocks go first.

    With either bound at zero nothing is kept; offsets are counted all the same.
    """

    def __init__(self, messages: int, nbytes: int) -> None:
        self._max_messages = messages if nbytes else 0
        self._max_bytes = nbytes
        self._blocks: list[Block] = []
        # Blocks before this index are gone; the list is cut now and then, not at every removal.
        self._head = 0
        self._bytes = 0
        self._tables: dict[str, dict[str, bytes]] = {}
        self.next_offset = 0

    @property
    def summary(self) -> str:
        """What is kept, for the log."""
        if not self._max_messages:
            return "history: none"
        return (
            f"history: in memory, the last {self._max_messages} messages within "
            f"{self._max_bytes} bytes; it ends with this process"
        )

    @property
    def first_offset(self) -> int:
        """The oldest message that is still here, or the next one if there is none."""
        if self._head < len(self._blocks):
            return self._blocks[self._head].offset
        return self.next_offset

    def append(self, batch: Batch) -> None:
        """See IStore."""
        batch.offset = self.next_offset
        self.next_offset += len(batch.payloads)
        if not self._max_messages:
            return
        block = Block(batch)
        self._blocks.append(block)
        self._bytes += block.nbytes
        if (
            self._bytes > self._max_bytes
            or self.next_offset - self._blocks[self._head].offset > self._max_messages
        ):
            self._trim()

    def read(self, offset: int, topics: frozenset[str] | None, max_bytes: int) -> Deferred[Page]:
        """See IStore. Nothing blocks here: the Deferred has fired already."""
        blocks = self._blocks
        start = bisect_right(blocks, offset - 1, lo=self._head, key=_last)
        found: list[Batch] = []
        room = max_bytes
        next_offset = max(offset, self.first_offset)
        for block in blocks[start : start + _SCAN]:
            if topics is None or block.topic in topics:
                batch = block.batch()
                found.append(batch if block.offset >= offset else _from(batch, offset))
                room -= block.nbytes + _MESSAGE_BYTES * block.count
            next_offset = block.last + 1
            if room <= 0:
                break
        return succeed(Page(found, next_offset))

    def forget(self, topic: str) -> None:
        """See IStore. The offsets of what is gone stay unused."""
        kept = [block for block in self._blocks[self._head :] if block.topic != topic]
        self._blocks, self._head = kept, 0
        self._bytes = sum(block.nbytes for block in kept)

    def put(self, table: str, key: str, value: bytes) -> None:
        """See IStore."""
        self._tables.setdefault(table, {})[key] = value

    def items(self, table: str) -> Iterable[tuple[str, bytes]]:
        """See IStore."""
        return tuple(self._tables.get(table, {}).items())

    def _trim(self) -> None:
        """Let go of the oldest blocks, but never of the newest."""
        blocks = self._blocks
        head = self._head
        while head < len(blocks) - 1 and (
            self._bytes > self._max_bytes
            or self.next_offset - blocks[head].offset > self._max_messages
        ):
            self._bytes -= blocks[head].nbytes
            blocks[head] = _GONE
            head += 1
        self._head = head
        if head > 1024 and head * 2 > len(blocks):
            del blocks[:head]
            self._head = 0


def _from(batch: Batch, offset: int) -> Batch:
    """The messages of ``batch`` from ``offset`` on."""
    return batch.part(offset - batch.offset, len(batch.payloads))
