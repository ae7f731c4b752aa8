"""Scanning, encoding and counting in plain Python; it defines how ``compiled.pyx`` behaves.

A read brings frames of one kind: a head, which tells the length of the payload and the address that
the message goes to, and the payload. ``HeadTable.scan`` turns the read into ``Columns``, a row for
each message, and ``FrameEncoder.encode`` turns columns into the frames of another wire. Neither
knows a protocol: a protocol describes its frames by ``Head`` objects. ``TextTable`` and
``encode_rows`` do the same for lines of JSON, and for frames that have them.

Consecutive messages with one head are cut by one call for up to 128 of them, and messages of one
index and size are joined by one call. Every other message costs some steps of the interpreter.
"""

from __future__ import annotations

from pubsub.kernel.interpreted.column_queue import ColumnQueue
from pubsub.kernel.interpreted.columns import Address, Columns
from pubsub.kernel.interpreted.frame_encoder import FrameEncoder, encode_groups
from pubsub.kernel.interpreted.head_table import MAX_HEADS, HeadTable, Learn
from pubsub.kernel.interpreted.rows import RowTemplate, encode_rows
from pubsub.kernel.interpreted.runs import (
    pack_plain_runs,
    run_record,
    total_plain_runs,
)
from pubsub.kernel.interpreted.tally import LinkedTally, Tally, add_to_each
from pubsub.kernel.interpreted.text_table import LearnText, TextTable

__all__ = [
    "MAX_HEADS",
    "Address",
    "ColumnQueue",
    "Columns",
    "FrameEncoder",
    "HeadTable",
    "Learn",
    "LearnText",
    "LinkedTally",
    "RowTemplate",
    "Tally",
    "TextTable",
    "add_to_each",
    "encode_groups",
    "encode_rows",
    "pack_plain_runs",
    "run_record",
    "total_plain_runs",
]
