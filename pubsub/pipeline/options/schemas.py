"""The columns of the source, for Spark and for Arrow; the two must match exactly."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pubsub.errors import ConfigurationError
from pubsub.pipeline.options.connector_options import EVENTS

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])


def _struct(**columns: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in columns.items()])


MESSAGES_SCHEMA = _struct(
    topic=StringType(),
    partition=IntegerType(),
    offset=LongType(),
    timestamp=TimestampType(),
    protocol=StringType(),
    key=BinaryType(),
    value=BinaryType(),
    message_id=StringType(),
)
HEADERS = StructField("headers", ArrayType(_HEADER))
TIMESTAMP_TYPE = "timestampType"
KAFKA_SCHEMA = _struct(
    key=BinaryType(),
    value=BinaryType(),
    topic=StringType(),
    partition=IntegerType(),
    offset=LongType(),
    timestamp=TimestampType(),
    timestampType=IntegerType(),
)
"""The columns of Kafka's source, in its order."""
EVENTS_SCHEMA = _struct(
    partition=IntegerType(),
    offset=LongType(),
    timestamp=TimestampType(),
    event=StringType(),
    protocol=StringType(),
    listener=StringType(),
    client=StringType(),
    session=StringType(),
    topic=StringType(),
    reason=StringType(),
    messages=LongType(),
    bytes=LongType(),
    frame=BinaryType(),
)


def schema_of(stream: str, headers: bool, kafka: bool = False) -> StructType:
    """Return the schema of the source, with the columns of Kafka's if ``kafka`` is set."""
    if stream == EVENTS:
        return EVENTS_SCHEMA
    messages = KAFKA_SCHEMA if kafka else MESSAGES_SCHEMA
    return StructType([*messages.fields, HEADERS]) if headers else messages


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of batches with ``schema``."""
    return to_arrow_schema(schema, timezone="UTC")


def check_source_columns(asked: StructType, offered: StructType) -> None:
    """Raise ConfigurationError unless ``asked`` has columns of ``offered``, in any order."""
    for column in asked.fields:
        if column.name not in offered.fieldNames():
            raise ConfigurationError(
                f"column {column.name} does not exist; the columns are "
                f"{_comma_list(offered.fieldNames())}"
            )
        if column.dataType != offered[column.name].dataType:
            kind = offered[column.name].dataType.simpleString()
            given = column.dataType.simpleString()
            raise ConfigurationError(f"column {column.name} must be {kind}, not {given}")


_SINK_TYPES = {"topic": StringType(), "value": BinaryType(), "key": BinaryType()}
# Columns of Kafka's source that the broker sets itself.
_ASSIGNED = frozenset({"partition", "offset", "timestamp", TIMESTAMP_TYPE})


def check_sink_columns(
    given: StructType, topic: str | None, optional: Iterable[str], kafka: bool = False
) -> None:
    """Raise ConfigurationError unless a frame with these columns can be published.

    ``optional`` are the columns that the protocol supports in addition to topic and value. With
    ``kafka`` the columns of Kafka's source that the broker sets itself are permitted.
    """
    allowed = ("topic", "value", *optional)
    for column in given.fields:
        if kafka and column.name in _ASSIGNED:
            continue
        if column.name not in allowed:
            raise ConfigurationError(
                f"column {column.name} cannot be published to this URL; "
                f"the columns can be {_comma_list(allowed)}"
            )
        wanted = HEADERS.dataType if column.name == "headers" else _SINK_TYPES[column.name]
        kinds = [wanted, StringType()] if column.name in ("value", "key") else [wanted]
        if not any(_same_type(column.dataType, kind) for kind in kinds):
            names = " or ".join(each.simpleString() for each in kinds)
            kind = column.dataType.simpleString()
            raise ConfigurationError(f"column {column.name} must be {names}, not {kind}")
    if "value" not in given.fieldNames():
        raise ConfigurationError("column value is required: the payloads to publish")
    if "topic" not in given.fieldNames() and topic is None:
        raise ConfigurationError(
            "column topic or option topic is required: the topic to publish to"
        )


def _same_type(given: DataType, wanted: DataType) -> bool:
    """Compare types and ignore whether they are nullable."""
    return given.simpleString() == wanted.simpleString()


def _comma_list(names: Iterable[str]) -> str:
    return ", ".join(names)
