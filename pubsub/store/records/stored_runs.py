"""Batches as the history stores them, in columns: ``RunRecord`` at rest, ``StoredRun`` to read.

A stored run is a batch with its payloads joined, and either the one length that they share or all
lengths. It costs the same for any number of messages, so that storing adds one join to the path of
a message, and nothing for each message. Only this module and ``run_encoding.py`` make and take
apart a ``RunRecord``.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Final

from pubsub.broker.routing.batch import (
    Batch,
    Headers,
    all_headers_nbytes,
    headers_nbytes,
    messages_nbytes,
    rows_with,
)
from pubsub.broker.routing.packed_headers import PackedHeaders
from pubsub.kernel import Columns, Senders, run_record, total_plain_runs
from pubsub.store.records.topic_counts import TopicCounts, add_counts

RUN_BYTES = 320
"""Estimated bytes that a run takes beside its payloads."""
MESSAGE_BYTES = 64
"""Bytes of a page that a message takes beside its payload, so that empty messages count."""
# Runs that one call of the kernel takes.
_AT_ONCE = 1024
# Estimated bytes that a header takes in memory beside its key and value.
_HEADER_BYTES = 200

Mix = tuple[tuple[str, ...], bytes]
RunRecord = tuple[
    int, int, int, int, str, int, bytes, int, bytes | None, int, "bytes | Senders", str,
    "Sequence[Headers] | None", "Mix | None", int,
]  # fmt: skip
"""A run at rest: last offset, first offset, timestamp, bytes with overhead, topic, count, joined
payloads, size of each or MIXED, lengths if MIXED (u32 each, in this machine's byte order),
sequence, sender, protocol, headers, mix, broker run (see ``Batch``).

Where the messages are of several topics, the mix has these and the index of each message's topic,
and the topic is empty. A run without headers may have several senders (see ``Senders``).

It is a plain tuple for the garbage collector, which soon finds that a tuple of texts and numbers
cannot be part of a cycle and does not visit it again. Tens of thousands of instances of a class
would be visited again and again, which takes milliseconds each time."""

_TOPIC: Final = 4
_COUNT: Final = 5
_DATA: Final = 6
_SIZE: Final = 7
_LENGTHS: Final = 8
_SENDER: Final = 10
_PROTOCOL: Final = 11
_HEADERS: Final = 12
_MIX: Final = 13
_RUN: Final = 14
last_offset_of: Callable[[RunRecord], int] = itemgetter(0)
first_offset_of: Callable[[RunRecord], int] = itemgetter(1)
timestamp_of: Callable[[RunRecord], int] = itemgetter(2)
nbytes_of: Callable[[RunRecord], int] = itemgetter(3)
"""The bytes of the payloads, with the overhead of the run."""
topic_of: Callable[[RunRecord], str] = itemgetter(_TOPIC)
protocol_of: Callable[[RunRecord], str] = itemgetter(_PROTOCOL)
run_of: Callable[[RunRecord], int] = itemgetter(_RUN)
count_of: Callable[[RunRecord], int] = itemgetter(_COUNT)
payloads_of: Callable[[RunRecord], bytes] = itemgetter(_DATA)
"""The payloads, joined."""

REMOVED: RunRecord = (0, 0, 0, 0, "", 0, b"", 0, None, 0, b"", "", None, None, 0)
"""Takes the place of a record that has been removed."""


def record_of(batch: Batch, senders: Senders | None = None) -> RunRecord:
    """Return the record of ``batch``, which has its offset; see ``IStore.append``."""
    headers = batch.headers
    sender: bytes | Senders = batch.sender
    if senders is not None:
        sender, beside = senders, RUN_BYTES
    elif headers is None:
        beside = RUN_BYTES + len(batch.sender)
    else:
        beside = overhead_of(batch.sender, headers)
    return run_record(
        batch.columns, batch.offset, batch.timestamp, beside, batch.topics, batch.sequence, sender,
        batch.protocol, headers, batch.run,
    )  # fmt: skip


def overhead_of(sender: bytes, headers: Sequence[Headers] | None) -> int:
    """Return the estimated bytes that a run takes in memory beside its payloads and lengths."""
    nbytes = RUN_BYTES + len(sender)
    if headers is None:
        return nbytes
    if isinstance(headers, PackedHeaders):
        return nbytes + headers.held
    return nbytes + sum([headers_nbytes(own) + _HEADER_BYTES * len(own) for own in headers])


def mixed_topics_of(record: RunRecord) -> tuple[str, ...] | None:
    """Return the topics of a record that has messages of several; None for any other."""
    mix = record[_MIX]
    return None if mix is None else mix[0]


def names_of(record: RunRecord) -> tuple[str, ...]:
    """Return the topics of a record."""
    mix = record[_MIX]
    return (record[_TOPIC],) if mix is None else mix[0]


def has_one_sender(record: RunRecord) -> bool:
    """Return whether the messages have one sender."""
    return isinstance(record[_SENDER], bytes)


def is_single(record: RunRecord) -> bool:
    """Return whether the messages have one topic and one sender."""
    return record[_MIX] is None and has_one_sender(record)


def split(record: RunRecord) -> Iterable[RunRecord]:
    """Return records of one topic and one sender each, for consecutive messages."""
    return (record,) if is_single(record) else map(record_of, batches_of(record))


def batch_of(record: RunRecord, offset: int = 0) -> Batch:
    """Return the messages from ``offset`` on as the batch they were made from.

    They have one sender (see ``batches_of``).
    """
    sender, first = record[_SENDER], first_offset_of(record)
    assert isinstance(sender, bytes)
    batch = _batch_from(record, sender)
    return batch if offset <= first else batch.slice(offset - first, batch.count)


def _batch_from(record: RunRecord, sender: bytes) -> Batch:
    (
        _, first, timestamp, _, topic, count, data,
        size, lengths, sequence, _, protocol, headers, mix, run,
    ) = record  # fmt: skip
    topics = (topic,) if mix is None else mix[0]
    columns = _columns(data, count, size, lengths, mix)
    return Batch(topics, columns, timestamp, sequence, sender, protocol, headers, first, run)


def batches_of(record: RunRecord, offset: int = 0) -> Iterator[Batch]:
    """Yield the messages from ``offset`` on, as batches of one topic and one sender each."""
    sender = record[_SENDER]
    if isinstance(sender, bytes):
        parts: Iterable[Batch] = (batch_of(record, offset),)
    else:
        parts = _batch_from(record, b"").by_sender(sender)
    for part in parts:
        for _index, one in part.runs():
            if offset <= one.offset:
                yield one
            elif offset < one.offset + one.count:
                yield one.slice(offset - one.offset, one.count)


def _columns(data: bytes, count: int, size: int, lengths: bytes | None, mix: Mix | None) -> Columns:
    if mix is None and lengths is None:
        return Columns.equal(data, size, count)
    if lengths is None:
        lengths = array("I", [size]).tobytes() * count
    return Columns.unpack(data, lengths, b"" if mix is None else mix[1])


def some_of(records: Sequence[RunRecord]) -> Iterable[Sequence[RunRecord]]:
    """Return the records, some at a time: no other thread runs while the kernel is called."""
    if len(records) <= _AT_ONCE:
        return (records,) if records else ()
    return (records[at : at + _AT_ONCE] for at in range(0, len(records), _AT_ONCE))


def topics_of(records: Sequence[RunRecord]) -> TopicCounts:
    """Return the number of messages of each topic and their bytes (see ``messages_nbytes``)."""
    totals: TopicCounts = {}
    others = [one for some in some_of(records) for one in total_plain_runs(some, totals)]
    if not others:
        return totals
    # Records of the same topics, by the identity of the tuple, with senders as long, are counted
    # together.
    mixed: dict[tuple[int, int], tuple[tuple[str, ...], list[bytes], list[bytes]]] = {}
    for record in others:
        mix, sender = record[_MIX], len(record[_SENDER])
        if record[_HEADERS] is not None:
            for run in split(record):
                headers = all_headers_nbytes(run[_HEADERS] or ())
                nbytes = len(run[_DATA]) + headers + run[_COUNT] * sender
                add_counts(totals, [(run[_TOPIC], (run[_COUNT], nbytes))])
            continue
        assert mix is not None
        lengths = record[_LENGTHS]
        if lengths is None:
            lengths = array("I", [record[_SIZE]]).tobytes() * record[_COUNT]
        _, sizes, indexes = mixed.setdefault((id(mix[0]), sender), (mix[0], [], []))
        sizes.append(lengths)
        indexes.append(mix[1])
    for (_, sender), (topics, sizes, indexes) in mixed.items():
        counted = Columns.count_each(b"".join(sizes), b"".join(indexes))
        add_counts(
            totals,
            [(topics[index], (count, nbytes + count * sender)) for index, count, nbytes in counted],
        )
    return totals


@dataclass(slots=True, eq=False)
class StoredRun:
    """A run to be read, with the fields of a ``RunRecord``.

    ``nbytes`` counts the payloads and the overhead of the run. The topic is empty if there is a
    ``mix``.
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
    mix: Mix | None = None
    run: int = 0

    def record(self) -> RunRecord:
        """Return this run at rest."""
        lengths = None if self.lengths is None else self.lengths.tobytes()
        return (
            self.last, self.offset, self.timestamp, self.nbytes, self.topic, self.count, self.data,
            self.size, lengths, self.sequence, self.sender, self.protocol, self.headers, self.mix,
            self.run,
        )  # fmt: skip

    @classmethod
    def of(cls, record: RunRecord) -> StoredRun:
        """Return the run that ``record`` holds; its messages have one sender."""
        (
            last, offset, timestamp, nbytes, topic, count, data,
            size, lengths, sequence, sender, protocol, headers, mix, run,
        ) = record  # fmt: skip
        assert isinstance(sender, bytes)
        return cls(
            last, offset, timestamp, nbytes, topic, count, data, size,
            None if lengths is None else array("I", lengths), sequence, sender, protocol, headers,
            mix, run,
        )  # fmt: skip

    def split(self) -> Iterable[StoredRun]:
        """Return runs of one topic each, for consecutive messages."""
        if self.mix is None:
            return (self,)
        return map(StoredRun.of, split(self.record()))

    def only(self, wanted: Sequence[bool]) -> Iterator[StoredRun]:
        """Yield runs of one topic each, of the topics of the ``mix`` that are ``wanted``."""
        indexes = {index for index, is_wanted in enumerate(wanted) if is_wanted}
        for _index, run in self.batch().runs(indexes):
            yield StoredRun.of(record_of(run))

    def shown(self, first: Callable[[str], int]) -> Iterable[StoredRun]:
        """Return the messages from the offset on that ``first`` returns for their topic.

        Messages of several topics stay together if they follow one another.
        """
        topics = (self.topic,) if self.mix is None else self.mix[0]
        offsets = list(map(first, topics))
        if max(offsets) <= self.offset:
            return (self,)
        if any(self.offset < offset <= self.last for offset in offsets):
            return [one for one in self.split() if first(one.topic) <= one.offset]
        batch = self.batch()
        rows = rows_with(batch.columns, [offset <= self.offset for offset in offsets])
        return [StoredRun.of(record_of(batch.slice(*row).compact())) for row in rows]

    def cost(self) -> int:
        """Return how many bytes of a page the run takes."""
        return self.nbytes + MESSAGE_BYTES * self.count

    def messages_nbytes(self, low: int, high: int) -> int:
        """Return the bytes of the messages at these places; see ``batch.messages_nbytes``."""
        part = self.batch().slice(low, high)
        return messages_nbytes(part.columns, part.sender, part.headers)

    def within(self, start: int, stop: int) -> StoredRun:
        """Return the messages from the offset ``start`` to before ``stop``."""
        part = self.batch().slice(max(start - self.offset, 0), min(stop - self.offset, self.count))
        return StoredRun.of(record_of(part))

    def batch(self, offset: int = 0) -> Batch:
        """Return the messages from ``offset`` on as the batch they were made from."""
        return batch_of(self.record(), offset)
