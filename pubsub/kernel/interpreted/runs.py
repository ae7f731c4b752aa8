"""Runs at rest: the form in which the history keeps and writes the messages of a read."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pubsub.kernel.interpreted.columns import Columns

MIXED = -1
_RUN = struct.Struct("<IIIIIiqq")


def run_record(
    columns: Columns,
    offset: int,
    timestamp: int,
    beside: int,
    topics: tuple[str, ...],
    sequence: int,
    sender: bytes,
    protocol: str,
    headers: Sequence[Any] | None,
    run: int,
) -> tuple[Any, ...]:
    """Return a run at rest (see ``pubsub.store.stored_runs``) of the messages of ``columns``.

    The other arguments are those of their batch; ``beside`` is the overhead of the run in bytes.
    """
    count, size = columns.count, columns.largest
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


def run_records(
    parts: Sequence[tuple[Columns, bytes]],
    offset: int,
    timestamp: int,
    beside: int,
    topics: tuple[str, ...],
    sequence: int,
    protocol: str,
    run: int,
) -> list[tuple[Any, ...]]:
    """Return runs at rest of the columns of ``parts``, each with its sender, one after another.

    ``offset`` and ``sequence`` are those of the first message; see ``run_record``. ``beside`` is
    the overhead of a run without its sender.
    """
    made = []
    for columns, sender in parts:
        overhead = beside + len(sender)
        made.append(
            run_record(
                columns, offset, timestamp, overhead, topics, sequence, sender, protocol, None, run
            )
        )
        offset += columns.count
        sequence += columns.count
    return made


def pack_plain_runs(
    records: Sequence[tuple[Any, ...]], at: int, base: int, names: dict[bytes, int]
) -> tuple[bytes, int]:
    """Return the rows of ``records`` from place ``at`` on, and the place where that ends.

    It ends before the first run that is of several topics, or has lengths or headers. Messages are
    numbered from the offset ``base``, and new names are added to ``names``. Raises OverflowError
    if a number does not fit its column.
    """
    rows: list[bytes] = []
    while at < len(records):
        (
            _, offset, timestamp, _, topic, count, _,
            size, lengths, sequence, sender, protocol, headers, mix, _,
        ) = records[at]  # fmt: skip
        if mix is not None or lengths is not None or headers is not None:
            break
        places = [names.setdefault(one, len(names)) for one in (topic.encode(), sender)]
        places.append(names.setdefault(protocol.encode(), len(names)))
        try:
            rows.append(_RUN.pack(offset - base, count, *places, size, timestamp, sequence))
        except struct.error as error:
            raise OverflowError(str(error)) from None
        at += 1
    return b"".join(rows), at


def total_plain_runs(
    records: Sequence[tuple[Any, ...]], totals: dict[str, tuple[int, int]]
) -> list[tuple[Any, ...]]:
    """Add the messages of ``records`` to ``totals``; return the runs left out.

    These are of several topics, or have headers. ``totals`` has the number of messages of each
    topic and their bytes with their senders.
    """
    others: list[tuple[Any, ...]] = []
    for record in records:
        topic, count, data, sender = record[4], record[5], record[6], record[10]
        if record[12] is not None or record[13] is not None:
            others.append(record)
            continue
        before = totals.get(topic, (0, 0))
        totals[topic] = (before[0] + count, before[1] + len(data) + count * len(sender))
    return others
