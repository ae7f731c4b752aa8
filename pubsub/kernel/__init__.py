"""The kernel: scanning, encoding and counting of messages, compiled where the package was built so.

``PUBSUB_KERNEL=interpreted`` selects plain Python in any case.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pubsub.kernel.layout import Head, LengthField, RowField, Senders, TextHead

if TYPE_CHECKING or os.environ.get("PUBSUB_KERNEL") == "interpreted":
    from pubsub.kernel.interpreted import (
        ColumnQueue,
        Columns,
        FrameEncoder,
        HeadTable,
        LinkedTally,
        Tally,
        TextTable,
        add_to_each,
        encode_groups,
        encode_rows,
        pack_plain_runs,
        run_record,
        total_plain_runs,
    )
else:
    try:
        from pubsub.kernel.compiled import (
            ColumnQueue,
            Columns,
            FrameEncoder,
            HeadTable,
            LinkedTally,
            Tally,
            TextTable,
            add_to_each,
            encode_groups,
            encode_rows,
            pack_plain_runs,
            run_record,
            total_plain_runs,
        )
    except ImportError:
        from pubsub.kernel.interpreted import (
            ColumnQueue,
            Columns,
            FrameEncoder,
            HeadTable,
            LinkedTally,
            Tally,
            TextTable,
            add_to_each,
            encode_groups,
            encode_rows,
            pack_plain_runs,
            run_record,
            total_plain_runs,
        )

COMPILED = Columns.__module__ == "pubsub.kernel.compiled"
"""True if the compiled kernel is in use."""

__all__ = [
    "COMPILED",
    "ColumnQueue",
    "Columns",
    "FrameEncoder",
    "Head",
    "HeadTable",
    "LengthField",
    "LinkedTally",
    "RowField",
    "Senders",
    "Tally",
    "TextHead",
    "TextTable",
    "add_to_each",
    "encode_groups",
    "encode_rows",
    "pack_plain_runs",
    "run_record",
    "total_plain_runs",
]
