"""Batches as the history stores them, in columns: ``RunRecord`` at rest, ``StoredRun`` to read.

A stored run is a batch with its payloads joined, and either the one length that they share or all
lengths. It costs the same for any number of messages, so that storing adds one join to the path of
a message, and nothing for each message. Only this module makes and takes apart a ``RunRecord``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter
from typing import Final, NamedTuple

from pubsub.broker.batch import Batch, Headers
from pubsub.broker.message_run import MIXED
from pubsub.store.columns import HAS_HEADERS, RUN, encode_headers, little_endian
from pubsub.wire.frame_runs import cut_run

RUN_BYTES = 320
"""Estimated bytes that a run takes beside its payloads."""
# Bytes that a message costs its reader beside the payload, so that empty messages count in a page.
_MESSAGE_BYTES = 64

RunRecord = tuple[
    int, int, int, int, str, int, bytes, int, bytes | None, int, bytes, str,
    "Sequence[Headers] | None",
]  # fmt: skip
"""A run at rest: last offset, first offset, timestamp, bytes with overhead, topic, count, joined
payloads, size of each or MIXED, lengths if MIXED (u32 each, in this machine's byte order),
sequence, sender, protocol, headers.

It is a plain tuple for the garbage collector, which soon finds that a tuple of texts and numbers
cannot be part of a cycle and does not visit it again. Tens of thousands of instances of a class
would be visited again and again, which takes milliseconds each time."""

_TOPIC: Final = 4
_COUNT: Final = 5
_DATA: Final = 6
last_offset_of: Callable[[RunRecord], int] = itemgetter(0)
first_offset_of: Callable[[RunRecord], int] = itemgetter(1)
timestamp_of: Callable[[RunRecord], int] = itemgetter(2)
nbytes_of: Callable[[RunRecord], int] = itemgetter(3)
"""The bytes of the payloads, with the overhead of the run."""
topic_of: Callable[[RunRecord], str] = itemgetter(_TOPIC)
payloads_of: Callable[[RunRecord], bytes] = itemgetter(_DATA)
"""The payloads, joined."""

REMOVED: RunRecord = (0, 0, 0, 0, "", 0, b"", 0, None, 0, b"", "", None)
"""Takes the place of a record that has been removed."""


def record_of(batch: Batch) -> RunRecord:
    """Return the record of ``batch``, which has its offset."""
    payloads, size, offset, headers = batch.payloads, batch.size, batch.offset, batch.headers
    count = len(payloads)
    nbytes = batch.nbytes + RUN_BYTES
    lengths = None
    if size == MIXED:
        lengths = array("I", map(len, payloads)).tobytes()
        nbytes += len(lengths)
    if headers is not None:
        nbytes += sum(len(key) + len(value) + 200 for h in headers for key, value in h.items())
    return (
        offset + count - 1, offset, batch.timestamp, nbytes, batch.topic, count,
        payloads[0] if count == 1 else b"".join(payloads), size, lengths, batch.sequence,
        batch.sender, batch.protocol, headers,
    )  # fmt: skip


class RunColumns(NamedTuple):
    """Runs in the columns of a block (see ``columns.py``); timestamps are 0 without a run."""

    first_timestamp: int
    last_timestamp: int
    runs: bytes
    lengths: bytes
    headers: bytes
    payloads: bytes


def encode_runs(
    records: Iterable[RunRecord], base: int, name_indexes: dict[bytes, int]
) -> RunColumns:
    """Encode ``records`` for a block that begins at the offset ``base``.

    New names are added to ``name_indexes``.
    """
    index_of = name_indexes.setdefault
    runs: list[bytes] = []
    all_lengths: list[bytes] = []
    all_headers: list[bytes] = []
    payloads: list[bytes] = []
    timestamps: list[int] = []
    for record in records:
        (
            _, offset, timestamp, _, topic, count, data,
            size, lengths, sequence, sender, protocol, headers,
        ) = record  # fmt: skip
        start = offset - base
        if headers is not None:
            count |= HAS_HEADERS
            all_headers += encode_headers(start, headers)
        if lengths is not None:
            all_lengths.append(lengths)
        runs.append(
            RUN.pack(
                start,
                count,
                index_of(topic.encode(), len(name_indexes)),
                index_of(sender, len(name_indexes)),
                index_of(protocol.encode(), len(name_indexes)),
                size,
                timestamp,
                sequence,
            )
        )
        payloads.append(data)
        timestamps.append(timestamp)
    return RunColumns(
        min(timestamps, default=0),
        max(timestamps, default=0),
        b"".join(runs),
        little_endian(array("I", b"".join(all_lengths))).tobytes() if all_lengths else b"",
        b"".join(all_headers),
        b"".join(payloads),
    )


def topics_of(records: Iterable[RunRecord]) -> dict[str, tuple[int, int]]:
    """Return the number of messages and of payload bytes of each topic."""
    totals: dict[str, tuple[int, int]] = {}
    for record in records:
        topic = record[_TOPIC]
        count, nbytes = totals.get(topic, (0, 0))
        totals[topic] = (count + record[_COUNT], nbytes + len(record[_DATA]))
    return totals


@dataclass(slots=True, eq=False)
class StoredRun:
    """A run to be read, with the fields of a ``RunRecord``.

    ``nbytes`` counts the payloads and the overhead of the run.
    """

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

    def record(self) -> RunRecord:
        """Return this run at rest."""
        lengths = None if self.lengths is None else self.lengths.tobytes()
        return (
            self.last, self.offset, self.timestamp, self.nbytes, self.topic, self.count, self.data,
            self.size, lengths, self.sequence, self.sender, self.protocol, self.headers,
        )  # fmt: skip

    @classmethod
    def of(cls, record: RunRecord) -> StoredRun:
        """Return the run that ``record`` holds."""
        (
            last, offset, timestamp, nbytes, topic, count, data,
            size, lengths, sequence, sender, protocol, headers,
        ) = record  # fmt: skip
        return cls(
            last, offset, timestamp, nbytes, topic, count, data, size,
            None if lengths is None else array("I", lengths), sequence, sender, protocol, headers,
        )  # fmt: skip

    def cost(self) -> int:
        """Return how many bytes of a page the run takes."""
        return self.nbytes + _MESSAGE_BYTES * self.count

    def within(self, start: int, stop: int) -> StoredRun:
        """Return the messages from the offset ``start`` to before ``stop``."""
        batch = self.batch()
        part = batch.part(max(start - self.offset, 0), min(stop - self.offset, self.count))
        return StoredRun.of(record_of(part))

    def batch(self, offset: int = 0) -> Batch:
        """Return the messages from ``offset`` on as the batch they were made from."""
        data = self.data
        batch = Batch(
            self.topic,
            cut_payloads(data, self.count, self.size, self.lengths),
            len(data),
            self.size,
            self.timestamp,
            self.sequence,
            self.sender,
            self.protocol,
            self.headers,
            self.offset,
        )
        return batch if offset <= self.offset else batch.part(offset - self.offset, self.count)


def cut_payloads(data: bytes, count: int, size: int, lengths: Sequence[int] | None) -> list[bytes]:
    """Cut ``data`` into ``count`` payloads of ``size`` bytes each, or of ``lengths`` if given."""
    if count == 1:
        return [data]
    if lengths is None:
        return cut_run(data, 0, b"", size) if size else [b""] * count
    ends = list(accumulate(lengths))
    starts = [0, *ends[:-1]]
    return [data[a:b] for a, b in zip(starts, ends, strict=True)]
