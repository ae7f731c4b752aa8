"""Makes text valid UTF-8, as Spark casts any bytes to a string and other readers refuse the file.

A single such value would make a whole Parquet file unreadable.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def with_valid_text(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the batch with U+FFFD in place of the bytes of its text that are not UTF-8.

    It is how Spark shows such text.
    """
    columns = [_valid(column) for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, schema=batch.schema)


def _valid(array: Any) -> Any:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return _replaced(array)
    return array


def _replaced(array: Any) -> Any:
    kind = array.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        texts = array.cast(pa.large_binary()).to_pylist()
        return pa.array([text and text.decode(errors="replace") for text in texts], kind)
    if pa.types.is_struct(kind):
        fields = list(map(_valid, array.flatten()))
        return pa.StructArray.from_arrays(fields, fields=list(kind), mask=array.is_null())
    if pa.types.is_map(kind):
        # The offsets and the parts of a slice are those of the whole array.
        whole = pa.concat_arrays([array])
        keys, items = _valid(whole.keys), _valid(whole.items)
        return pa.MapArray.from_arrays(whole.offsets, keys, items, kind, mask=whole.is_null())
    if pa.types.is_list(kind):
        whole = pa.concat_arrays([array])
        values = _valid(whole.values)
        return pa.ListArray.from_arrays(whole.offsets, values, kind, mask=whole.is_null())
    return array
