"""Batches of rows for the sink."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

from pubsub.pipeline.options.schemas import HEADERS

_TYPES: dict[str, DataType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int": IntegerType(),
    "headers": HEADERS.dataType,
}


def struct(columns: str) -> StructType:
    """Return a schema from names and types; Spark's own parser would need Java."""
    pairs = (column.split() for column in columns.split(","))
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


def frame(**columns: list[Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict(columns)
