"""Partitions of a Delta table: the text of their values, and their directories.

The text is as Delta's protocol has it ("Partition Value Serialization"). Directories are in the
style of Hive, ``topic=orders/day=2026-03-01``: Delta's readers take the values from the log, but
some take them from these names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from typing import Any, TypeAlias
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc

from pubsub.errors import ConfigurationError

Values: TypeAlias = "tuple[str | None, ...]"
"""The values of the partition columns as text, in the order of the columns; None is null."""

LONG_TOPIC = "long_topic"
"""The column with the name of a topic that is too long for a directory; otherwise null."""
_NULL = "__HIVE_DEFAULT_PARTITION__"
# File systems take 255 bytes; the name of the column precedes.
_LONGEST = 200
# An encoded byte takes three.
_SHORT_BYTES = _LONGEST // 3
# Hive and Spark escape these in directories.
_ESCAPED = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^]")
# Characters of the beginning of a shortened text.
_START = 32


def partition_text(value: Any) -> str | None:
    """Return a value of a partition column as text; an empty text or binary stands for null.

    Raises ConfigurationError for binary values that are not UTF-8, which no text stands for.
    """
    if value is None or value in ("", b""):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return _decoded(value)
    if isinstance(value, datetime):
        utc = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
        # Not strftime, which shortens the years before 1000.
        return utc.isoformat(" ", "microseconds")
    if isinstance(value, date):
        return value.isoformat()
    return str(value)


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ConfigurationError(
            "--partition-by: a binary value is not UTF-8; use another column, such as hex(value)"
        ) from None


def hive_directory(columns: Sequence[str], values: Values) -> str:
    """Return the directory of a partition within the table.

    A value that is too long for a file system is shortened; it is whole in the log.
    """
    pairs = zip(columns, values, strict=True)
    return "/".join(
        f"{_encode_name(name)}={_encode(_shortened(value or _NULL))}" for name, value in pairs
    )


def is_hive_directory(columns: Sequence[str], directory: str) -> bool:
    """Return whether ``directory`` is of these columns in the style of Hive."""
    parts = directory.split("/") if directory else []
    return len(parts) == len(columns) and all(
        part.startswith(f"{_encode_name(name)}=") for name, part in zip(columns, parts, strict=True)
    )


def _encode(text: str) -> str:
    return quote(text, safe="")


def _encode_name(column: str) -> str:
    """Return a column's name for a directory, as it is if possible: polars does not decode it."""
    return _ESCAPED.sub(lambda match: _encode(match[0]), column)


def topic_bucket(name: str) -> str:
    """Return the value of the column ``topic`` in a table that is partitioned by it.

    It is the name itself, unless that is too long for a directory, or stands for null there: then
    it is the beginning of the name and a digest, and the column ``long_topic`` has the name.
    """
    return _with_digest(name) if name == _NULL else _shortened(name)


def _shortened(text: str) -> str:
    """Return ``text``, or its beginning and a digest if its encoding is too long."""
    return text if len(_encode(text)) <= _LONGEST else _with_digest(text)


def _with_digest(text: str) -> str:
    start = text[:_START]
    while len(_encode(start)) > _LONGEST // 2:
        start = start[:-1]
    return f"{start}~{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def with_buckets(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Replace names in the column ``topic`` by their buckets, and append the column ``long_topic``.

    It has the names that were replaced; see ``topic_bucket``.
    """
    topics = rows["topic"]
    longest = pc.max(pc.binary_length(topics)).as_py() or 0
    if longest <= _SHORT_BYTES and not pc.any(pc.equal(topics, _NULL)).as_py():
        return rows.append_column(LONG_TOPIC, pa.nulls(rows.num_rows, pa.string()))
    encoded = topics.dictionary_encode()
    names = encoded.dictionary.to_pylist()
    buckets = [topic_bucket(name) for name in names]
    full = [None if bucket == name else name for bucket, name in zip(buckets, names, strict=True)]
    index = rows.schema.get_field_index("topic")
    found = rows.set_column(index, "topic", _taken(buckets, encoded.indices))
    return found.append_column(LONG_TOPIC, _taken(full, encoded.indices))


def _taken(values: Iterable[str | None], indices: Any) -> Any:
    return pa.array(values, pa.string()).take(indices)
