"""Batches at rest, and a bounded log of them in memory.

A run is a batch in columns: payloads joined, and either the one length they share or all of them.
It costs the same whatever it holds, so storing adds a join to the path of a message and nothing for
each message.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Final

from pubsub.broker.batch import Batch, Headers, Page
from pubsub.broker.message_run import MIXED
from pubsub.kernel import Columns
from pubsub.wire.frame_runs import cut_run

# What a run costs beside its payloads, an estimate for bounds in bytes.
RUN_BYTES = 320
# What a message costs its reader beside the payload, so that empty ones count for a page too.
_MESSAGE_BYTES = 64
# Runs one read looks at, so that a reader of a rare topic does not stall the others.
_SCAN = 2_000
# Topics that have ended before what was theirs is looked for.
_FORGOTTEN = 10_000
Kept = tuple[
    int, int, int, int, str, int, bytes, int, bytes | None, int, bytes, str,
    "Sequence[Headers] | None",
]  # fmt: skip
"""A run as the log keeps it: of a plain tuple of texts and numbers the garbage collector soon finds
that it cannot be part of a cycle, and looks at it no more. Tens of thousands of objects of a class
would be looked through again and again, for milliseconds at a time.

Its last message's offset, its first's, timestamp, bytes with overhead, topic, count, payloads, size
or MIXED, lengths (u32 each, of this machine's byte order) if it is that, sequence, sender,
protocol, headers."""
LAST: Final = 0
OFFSET: Final = 1
_TIMESTAMP: Final = 2
NBYTES: Final = 3
TOPIC: Final = 4
COUNT: Final = 5
DATA: Final = 6
_last = itemgetter(LAST)
_timestamp = itemgetter(_TIMESTAMP)


def keep(batch: Batch) -> Kept:
    columns, offset, headers = batch.columns, batch.offset, batch.headers
    count = columns.count
    nbytes = batch.nbytes + RUN_BYTES
    data, lengths, _ = columns.pack()
    size = columns.largest
    if columns.smallest != size:
        size = MIXED
        nbytes += len(lengths)
    if headers is not None:
        nbytes += sum(len(key) + len(value) + 200 for h in headers for key, value in h.items())
    return (
        offset + count - 1, offset, batch.timestamp, nbytes, batch.topic, count,
        data, size, lengths if size == MIXED else None, batch.sequence,
        batch.sender, batch.protocol, headers,
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class Run:
    """A run to be read. ``offset`` is its first message's, ``last`` its last message's; ``nbytes``
    are those of its payloads and what it costs beside them."""

    last: int
    offset: int
    timestamp: int
    nbytes: int
    topic: str
    count: int
    data: bytes
    size: int
    lengths: array[int] | None
    sequence: int
    sender: bytes
    protocol: str
    headers: Sequence[Headers] | None

    def kept(self) -> Kept:
        """This as the log keeps it."""
        lengths = None if self.lengths is None else self.lengths.tobytes()
        return (
            self.last, self.offset, self.timestamp, self.nbytes, self.topic, self.count, self.data,
            self.size, lengths, self.sequence, self.sender, self.protocol, self.headers,
        )  # fmt: skip

    @classmethod
    def of(cls, kept: Kept) -> Run:
        """What was kept as a run again."""
        (
            last, offset, timestamp, nbytes, topic, count, data,
            size, lengths, sequence, sender, protocol, headers,
        ) = kept  # fmt: skip
        return cls(
            last, offset, timestamp, nbytes, topic, count, data, size,
            None if lengths is None else array("I", lengths), sequence, sender, protocol, headers,
        )  # fmt: skip

    def cost(self) -> int:
        """What it takes of a page, in bytes."""
        return self.nbytes + _MESSAGE_BYTES * self.count

    def within(self, start: int, stop: int) -> Run:
        """The messages from ``start`` to before ``stop``."""
        batch = self.batch()
        part = batch.slice(max(start - self.offset, 0), min(stop - self.offset, self.count))
        return Run.of(keep(part))

    def batch(self, offset: int = 0) -> Batch:
        """The messages from ``offset`` on as the batch they were made from."""
        if self.lengths is None:
            columns = Columns.equal(self.data, self.size, self.count)
        else:
            columns = Columns.unpack(self.data, self.lengths.tobytes(), b"")
        batch = Batch(
            (self.topic,),
            columns,
            self.timestamp,
            self.sequence,
            self.sender,
            self.protocol,
            self.headers,
            self.offset,
        )
        return batch if offset <= self.offset else batch.slice(offset - self.offset, self.count)


def cut(data: bytes, count: int, size: int, lengths: Sequence[int] | None) -> list[bytes]:
    """``count`` payloads out of ``data``, of ``size`` bytes each or of ``lengths``."""
    if count == 1:
        return [data]
    if lengths is None:
        return cut_run(data, 0, b"", size) if size else [b""] * count
    ends = list(accumulate(lengths))
    starts = [0, *ends[:-1]]
    return [data[a:b] for a, b in zip(starts, ends, strict=True)]


def topics_of(runs: Iterable[Kept]) -> dict[str, tuple[int, int]]:
    """How many messages and bytes there are of each topic."""
    totals: dict[str, tuple[int, int]] = {}
    for run in runs:
        topic = run[TOPIC]
        count, nbytes = totals.get(topic, (0, 0))
        totals[topic] = (count + run[COUNT], nbytes + len(run[DATA]))
    return totals


# Stands where a run was.
_GONE: Kept = (0, 0, 0, 0, "", 0, b"", 0, None, 0, b"", "", None)


class RunLog:
    """The newest ``messages`` messages within ``nbytes`` bytes; the oldest runs go first.

    With either bound at zero nothing is kept; offsets are counted all the same, from ``offset``.
    """

    def __init__(self, messages: int, nbytes: int, offset: int = 0) -> None:
        self.max_messages = messages if nbytes else 0
        self.max_bytes = nbytes
        self._runs: list[Kept] = []
        # Runs before this index are gone; the list is cut now and then, not at every removal.
        self._head = 0
        self._bytes = 0
        self._forgotten: dict[str, int] = {}
        self.next_offset = offset

    @property
    def first_offset(self) -> int:
        """The oldest message that is still here, or the next one if there is none."""
        if self._head < len(self._runs):
            return self._runs[self._head][OFFSET]
        return self.next_offset

    @property
    def nbytes(self) -> int:
        """What is kept, with its overhead."""
        return self._bytes

    def append(self, batch: Batch) -> Kept | None:
        """Give ``batch`` its offset and keep it, as the run that is returned."""
        batch.offset = self.next_offset
        run = keep(batch) if self.max_messages else None
        # Should that have failed, no offset is missing.
        self.next_offset += batch.count
        if run is None:
            return None
        self._runs.append(run)
        self._bytes += run[NBYTES]
        if (
            self._bytes > self.max_bytes
            or self.next_offset - self._runs[self._head][OFFSET] > self.max_messages
        ):
            self._trim()
        return run

    def read(
        self, offset: int, topics: frozenset[str] | None, max_bytes: int, end: int | None = None
    ) -> Page:
        """As IStore's ``read``, up to the offset ``end`` if one is given, which ends a run."""
        runs = self._runs
        start = bisect_right(runs, offset - 1, lo=self._head, key=_last)
        last = self.next_offset if end is None else end
        found: list[Batch] = []
        room = max_bytes
        next_offset = max(offset, self.first_offset)
        for kept in runs[start : start + _SCAN]:
            if kept[OFFSET] >= last:
                return Page(found, max(next_offset, last))
            if (topics is None or kept[TOPIC] in topics) and self._shown(kept):
                run = Run.of(kept)
                found.append(run.batch(offset))
                room -= run.cost()
            next_offset = kept[LAST] + 1
            if room <= 0:
                return Page(found, next_offset)
        if start + _SCAN >= len(runs):
            # The newest messages may have been forgotten: there is nothing more up to the end.
            next_offset = max(next_offset, last)
        return Page(found, next_offset)

    def runs_from(
        self, start: int, stop: int, topics: frozenset[str] | None, max_bytes: int
    ) -> tuple[list[Run], int]:
        """The runs of a range, as many as ``read`` would give, and the offset they go up to."""
        begin = bisect_right(self._runs, start - 1, lo=self._head, key=_last)
        found: list[Run] = []
        for kept in self._runs[begin : begin + _SCAN]:
            if kept[OFFSET] >= stop:
                return found, stop
            if max_bytes <= 0:
                return found, max(start, kept[OFFSET])
            if (topics is None or kept[TOPIC] in topics) and self._shown(kept):
                found.append(Run.of(kept))
                max_bytes -= found[-1].cost()
        if begin + _SCAN < len(self._runs):
            stop = min(stop, self._runs[begin + _SCAN][OFFSET])
        return found, max(start, stop)

    def parts(self, start: int, stop: int) -> Iterator[Run]:
        """All that is within a range; runs that are not wholly are cut."""
        for kept in self._runs[bisect_right(self._runs, start - 1, lo=self._head, key=_last) :]:
            if kept[OFFSET] >= stop:
                return
            if self._shown(kept):
                run = Run.of(kept)
                yield run if start <= run.offset and run.last < stop else run.within(start, stop)

    def offset_at(self, timestamp: int) -> int:
        """The first message of this time (µs) or later, else the next one."""
        at = bisect_left(self._runs, timestamp, lo=self._head, key=_timestamp)
        return self._runs[at][OFFSET] if at < len(self._runs) else self.next_offset

    def forget(self, topic: str) -> None:
        """Show no more of ``topic`` than comes from now on. Its offsets stay unused.

        To look for it in a long history would hold everybody up, so that is put off until there
        are many such topics.
        """
        self._forgotten[topic] = self.next_offset
        if len(self._forgotten) > _FORGOTTEN:
            self._runs, self._head = [r for r in self._runs[self._head :] if self._shown(r)], 0
            self._bytes = sum(kept[NBYTES] for kept in self._runs)
            self._forgotten.clear()

    def _shown(self, kept: Kept) -> bool:
        return kept[OFFSET] >= self._forgotten.get(kept[TOPIC], 0)

    def _trim(self) -> None:
        """Let go of the oldest runs, but never of the newest."""
        runs = self._runs
        head = self._head
        while head < len(runs) - 1 and (
            self._bytes > self.max_bytes
            or self.next_offset - runs[head][OFFSET] > self.max_messages
        ):
            self._bytes -= runs[head][NBYTES]
            # Its memory is free before the list is cut.
            runs[head] = _GONE
            head += 1
        self._head = head
        if head > 1024 and head * 2 > len(runs):
            del runs[:head]
            self._head = 0
