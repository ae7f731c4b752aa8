"""Text of Spark that is not UTF-8: the bytes are replaced, as other readers refuse the file."""

from __future__ import annotations

import io
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from twisted.trial.unittest import TestCase

from pubsub.pipeline.tables.valid_text import with_valid_text

BYTES = [b"ok", None, b"\xff\xfe", b"", b"a\xc3"]
TEXTS = ["ok", None, "\ufffd\ufffd", "", "a\ufffd"]


def unchecked(values: list[bytes | None]) -> Any:
    """Return text of any bytes, as Spark's cast makes it."""
    return pa.array(values, pa.binary()).view(pa.string())


def nested(text: Any, offsets: Any) -> dict[str, Any]:
    """Return columns of three rows, the second of them null, with ``text`` in them."""
    null = pa.array([False, True, False])
    keys = pa.array(["a", "b", "c", "d", "e"])
    return {
        "list": pa.ListArray.from_arrays(offsets, text),
        "map": pa.MapArray.from_arrays(offsets, keys, text),
        "struct": pa.StructArray.from_arrays([text.slice(2, 3)], ["text"], mask=null),
    }


class ValidTextTests(TestCase):
    def test_bytes_that_are_not_utf8_are_replaced(self) -> None:
        rows = pa.RecordBatch.from_pydict({"text": unchecked(BYTES), "value": BYTES})
        found = with_valid_text(rows)
        assert found.schema == rows.schema
        assert found["text"].to_pylist() == TEXTS
        assert found["value"].to_pylist() == BYTES
        assert with_valid_text(rows.slice(2, 2))["text"].to_pylist() == TEXTS[2:4]

    def test_a_file_with_the_text_can_be_read(self) -> None:
        rows = pa.RecordBatch.from_pydict({"text": unchecked(BYTES)})
        file = io.BytesIO()
        pq.write_table(pa.Table.from_batches([with_valid_text(rows)]), file)
        file.seek(0)
        assert pl.read_parquet(file)["text"].to_list() == TEXTS

    def test_text_within_other_columns(self) -> None:
        offsets = pa.array([0, None, 2, 5], pa.int32())
        rows = pa.RecordBatch.from_pydict(nested(unchecked(BYTES), offsets))
        wanted = pa.RecordBatch.from_pydict(nested(pa.array(TEXTS), offsets))
        for one, other in ((rows, wanted), (rows.slice(1), wanted.slice(1))):
            found = with_valid_text(one)
            assert found.schema == rows.schema
            assert found.to_pylist() == other.to_pylist()

    def test_valid_rows_are_not_copied(self) -> None:
        rows = pa.RecordBatch.from_pydict({"text": ["ok"], "list": [["é"]], "number": [1]})
        found = with_valid_text(rows)
        addresses = [
            [buffer and buffer.address for column in each.columns for buffer in column.buffers()]
            for each in (rows, found)
        ]
        assert addresses[0] == addresses[1]
