"""Divides messages into pieces that are bounded by rows and bytes, whatever their sizes.

The pieces follow from the messages and the limits alone, so that those of a second run are the
same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# The size of a row beside its bytes: the ends of its columns.
_ROW_BYTES = 16


def pieces(
    table: pa.Table, most_messages: int, most_bytes: int | None
) -> Iterator[list[pa.RecordBatch]]:
    """Divide ``table`` into pieces of up to ``most_messages`` rows and ``most_bytes``.

    A row that is larger is a piece of its own.
    """
    start = 0
    ends = None if most_bytes is None else _ends(table)
    while start < table.num_rows:
        stop = min(start + most_messages, table.num_rows)
        if ends is not None and most_bytes is not None:
            before = ends[start - 1].as_py() if start else 0
            stop = max(min(stop, _count_up_to(ends, before + most_bytes)), start + 1)
        yield table.slice(start, stop - start).to_batches()
        start = stop


def _ends(table: pa.Table) -> Any:
    """Return, for each row, the bytes up to its end."""
    total = pa.repeat(pa.scalar(_ROW_BYTES, pa.int64()), table.num_rows)
    for name in ("topic", "value", "key"):
        if name in table.column_names:
            length = pc.fill_null(pc.binary_length(table[name]), 0)
            total = pc.add(total, length.cast(pa.int64()).combine_chunks())
    if "headers" in table.column_names:
        total = pc.add(total, _header_bytes(table["headers"].combine_chunks()))
    return pc.cumulative_sum(total)


def _header_bytes(headers: Any) -> Any:
    """Return the bytes of the headers of each row."""
    entries = headers.flatten()
    parts = [pc.fill_null(pc.binary_length(entries.field(n)), 0) for n in range(2)]
    ends = pc.cumulative_sum(pc.add(*parts).cast(pa.int64()))
    ends = pa.concat_arrays([pa.array([0], pa.int64()), ends])
    counts = pc.fill_null(pc.list_value_length(headers), 0).cast(pa.int64())
    stops = pc.cumulative_sum(counts)
    starts = pc.subtract(stops, counts)
    width = pc.subtract(ends.take(stops), ends.take(starts))
    return pc.add(width, pc.multiply(counts, _ROW_BYTES))


def _count_up_to(ends: Any, limit: int) -> int:
    """Return how many of the increasing ``ends`` are within ``limit``."""
    low, high = 0, len(ends)
    while low < high:
        middle = (low + high) // 2
        if ends[middle].as_py() <= limit:
            low = middle + 1
        else:
            high = middle
    return low
