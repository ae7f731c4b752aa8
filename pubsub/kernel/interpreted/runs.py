"""Runs at rest: the form in which the history keeps and writes the messages of a read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import mul
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pubsub.kernel.interpreted.columns import Columns
    from pubsub.kernel.layout import Senders

MIXED = -1
# Of one of several senders beside its name.
_SENDER_BYTES = 48
_RUN = struct.Struct("<IIIIIiqq")


def run_record(
    columns: Columns,
    offset: int,
    timestamp: int,
    beside: int,
    topics: tuple[str, ...],
    sequence: int,
    sender: bytes | Senders,
    protocol: str,
    headers: Sequence[Any] | None,
    run: int,
) -> tuple[Any, ...]:
    """Return the messages of ``columns`` as a run at rest.

    ``pubsub.store.records.stored_runs`` has its fields. The other arguments are those of their
    batch; ``beside`` is the overhead of the run in bytes, without that of several senders. Messages
    of several senders, which have no headers, have a tuple as their sender: the number of
    consecutive messages of each to one topic (u32 in this machine's byte order), and the senders.
    Raises ValueError if these differ in number from the messages.
    """
    count, size = columns.count, columns.largest
    if not isinstance(sender, bytes):
        _counts(sender, count)
        beside += sum([_SENDER_BYTES + len(name) for name in sender[1]])
    data, sizes, indexes = columns.pack()
    lengths, mix, topic = None, None, topics[0]
    nbytes = columns.nbytes + beside
    if columns.smallest != size:
        size, lengths = MIXED, sizes
        nbytes += len(sizes)
    if len(topics) > 1:
        topic, mix = "", (topics, indexes)
        nbytes += len(indexes)
    return (
        offset + count - 1, offset, timestamp, nbytes, topic, count, data, size, lengths,
        sequence, sender, protocol, headers, mix, run,
    )  # fmt: skip


def pack_plain_runs(
    records: Sequence[tuple[Any, ...]], at: int, base: int, names: dict[bytes, int]
) -> tuple[bytes, int]:
    """Return the rows of ``records`` from place ``at`` on, and the place where that ends.

    It ends before the first run that has headers, or several topics or lengths without several
    senders. A run of several senders has a row for each of them, or for each message if these
    differ in length. Messages are numbered from the offset ``base``, and new names are added
    to ``names``. Raises OverflowError if a number does not fit its column.
    """
    rows: list[bytes] = []
    while at < len(records):
        (
            _, offset, timestamp, _, topic, count, _,
            size, lengths, sequence, sender, protocol, headers, mix, _,
        ) = records[at]  # fmt: skip
        is_one = isinstance(sender, bytes)
        if headers is not None or (is_one and (mix is not None or lengths is not None)):
            break
        topics = _topics(topic, mix, count)
        counts, senders = ([count], (sender,)) if is_one else (_counts(sender, count), sender[1])
        sizes = None if lengths is None else iter(_words(lengths, count))
        start = first = offset - base
        for own, each in zip(counts, senders, strict=True):
            name = topics[start - first].encode()
            places = [names.setdefault(one, len(names)) for one in (name, each)]
            places.append(names.setdefault(protocol.encode(), len(names)))
            for number in [own] if sizes is None else [1] * own:
                shared = size if sizes is None else next(sizes)
                try:
                    rows.append(_RUN.pack(start, number, *places, shared, timestamp, sequence))
                except struct.error as error:
                    raise OverflowError(str(error)) from None
                start += number
                sequence += number
        at += 1
    return b"".join(rows), at


def _counts(senders: Senders, count: int) -> Sequence[int]:
    """Return how many messages each of the senders has; ``count`` together."""
    packed, names = senders
    counts = _words(packed, len(names))
    if sum(counts) != count or 0 in counts:
        raise ValueError("the messages and their senders differ in number")
    return counts


def _topics(topic: str, mix: tuple[tuple[str, ...], bytes] | None, count: int) -> Sequence[str]:
    """Return the topic of each of ``count`` messages."""
    if mix is None:
        return [topic] * count
    topics, indexes = mix
    return [topics[index] for index in _words(indexes, count)]


def _words(packed: bytes, number: int) -> Sequence[int]:
    """Return ``number`` unsigned integers of 32 bits."""
    if len(packed) != 4 * number:
        raise ValueError("the numbers have another length")
    return memoryview(packed).cast("I")


def total_plain_runs(
    records: Sequence[tuple[Any, ...]], totals: dict[str, tuple[int, int]]
) -> list[tuple[Any, ...]]:
    """Add the messages of ``records`` to ``totals``; return the runs left out.

    These have headers, or several topics and one sender. ``totals`` has the number of messages of
    each topic and their bytes with their senders.
    """
    others: list[tuple[Any, ...]] = []
    for record in records:
        topic, count, data, sender = record[4], record[5], record[6], record[10]
        is_one = isinstance(sender, bytes)
        if record[12] is not None or (record[13] is not None and is_one):
            others.append(record)
            continue
        if record[13] is not None:
            _total_each(record, totals)
            continue
        senders = (
            count * len(sender)
            if is_one
            else sum(map(mul, _counts(sender, count), map(len, sender[1])))
        )
        _add(totals, topic, count, len(data) + senders)
    return others


def _total_each(record: tuple[Any, ...], totals: dict[str, tuple[int, int]]) -> None:
    """Add the messages of a run of several topics and senders."""
    count, size, sender = record[5], record[7], record[10]
    topics = _topics("", record[13], count)
    sizes = [size] * count if record[8] is None else _words(record[8], count)
    at = 0
    for own, each in zip(_counts(sender, count), sender[1], strict=True):
        nbytes = sum(sizes[at : at + own]) + own * len(each)
        _add(totals, topics[at], own, nbytes)
        at += own


def _add(totals: dict[str, tuple[int, int]], topic: str, count: int, nbytes: int) -> None:
    before = totals.get(topic, (0, 0))
    totals[topic] = (before[0] + count, before[1] + nbytes)
