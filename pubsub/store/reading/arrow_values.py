"""Arrow arrays that are made without a loop over messages: fields of runs, message ids, texts."""

from __future__ import annotations

import sys
from array import array
from binascii import hexlify
from functools import cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pubsub.broker.routing.batch import message_id

ROWS = 65_536
"""The largest number of messages in a record batch."""
_ID_BYTES = 36
_TOP_BIT = pa.scalar(-(2**63), pa.int64())


def expand(ends: Any, values: Any) -> Any:
    """Repeat each of ``values`` for the messages of its run; ``ends`` are the ends of the runs."""
    rows = ends[-1].as_py() if len(ends) else 0
    kind = pa.run_end_encoded(ends.type, values.type)
    made = pa.RunEndEncodedArray.from_buffers(kind, rows, [None], 0, 0, [ends, values])
    return pc.run_end_decode(made)


def int64(value: int) -> Any:
    """Return an integer for Arrow, which takes ten times as long to find the type of one."""
    return pa.scalar(value, pa.int64())


def message_ids(run: int, sequence: Any) -> Any:
    """Return ``message_id`` of each sequence number, as text.

    Only the digits that differ are set, a column at a time: every 36th byte of the text.
    """
    rows = len(sequence)
    low, high = (f"{value.as_py():016x}" for value in pc.min_max(sequence).values())
    text = bytearray(str(message_id(run, int(low, 16))).encode()) * rows
    data = bytes(pc.bit_wise_or(sequence, _TOP_BIT).buffers()[1])[: 8 * rows]
    same = next((i for i in range(16) if low[i] != high[i]), 16)
    for place in range(same // 2, 8):
        # The bytes of a number, the most significant first, have two digits each.
        digits = hexlify(data[place if sys.byteorder == "big" else 7 - place :: 8])
        for digit in (2 * place, 2 * place + 1):
            # An id has 19 characters of the broker run, four digits, a hyphen and twelve digits.
            text[19 + digit + (digit >= 4) :: _ID_BYTES] = digits[digit % 2 :: 2]
    return pa.Array.from_buffers(
        pa.string(), rows, [None, _id_ends().buffers()[1], pa.py_buffer(text)]
    )


@cache
def counting() -> Any:
    """Return the numbers from 0 to before ROWS."""
    return pa.array(range(ROWS), pa.int64())


@cache
def _id_ends() -> Any:
    return pa.array(range(0, (ROWS + 1) * _ID_BYTES, _ID_BYTES), pa.int32())


def as_text(binary: Any) -> Any:
    """Return binary that is valid UTF-8 as text."""
    return pa.Array.from_buffers(pa.string(), len(binary), binary.buffers(), offset=binary.offset)


def wrapped(kind: Any, numbers: array[int]) -> Any:
    """Return an array as an Arrow array, without a copy."""
    return pa.Array.from_buffers(kind, len(numbers), [None, pa.py_buffer(numbers)])
