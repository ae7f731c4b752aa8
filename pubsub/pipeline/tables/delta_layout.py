"""The demands of a Delta table on its writers and readers, and the check of its columns.

The package ``deltalake`` adds files to a table without a look at their rows. So constraints, and
values that a writer must compute, would be ignored silently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Field
from deltalake.exceptions import DeltaError, DeltaProtocolError
from deltalake.schema import PrimitiveType
from pyarrow.dataset import FileSystemDataset

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.files import has_statistics
from pubsub.pipeline.tables.location import Location
from pubsub.pipeline.tables.partitions import LONG_TOPIC

_HINT = "choose another directory, or use the options that the table was created with"
# Delta's protocol lists them, in "Valid Feature Names in Table Features".
_KEPT_FEATURES = frozenset(
    (
        # They demand something only of a table that uses them, which is examined separately.
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "invariants",
        # They demand nothing of a writer that adds files, and replaces files by some with the same
        # rows.
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    )
)
# Earlier versions imply features. This one implies columns with numbers that the writer chooses.
_IDENTITY_VERSION = 6
_CONSTRAINT = "delta.constraints."
_MAPPING = "delta.columnMapping.mode"
_INVARIANT = "delta.invariants"
_GENERATION = "delta.generationExpression"


def check_writable(where: Location, table: DeltaTable) -> None:
    """Raise ConfigurationError if ``table`` demands of its writers more than this package does."""
    demands = [*_features(table), *_constraints(table)]
    if demands:
        raise ConfigurationError(
            f"{where}: the table has {', '.join(demands)}, which the jobs do not support; remove "
            "this from the table with the program that added it, or choose another directory"
        )


def _features(table: DeltaTable) -> Iterator[str]:
    protocol = table.protocol()
    for feature in sorted(set(protocol.writer_features or ()) - _KEPT_FEATURES):
        yield f"the writer feature {feature}"
    if protocol.min_writer_version == _IDENTITY_VERSION:
        yield "the writer version 6 (identity columns)"


def _constraints(table: DeltaTable) -> Iterator[str]:
    properties = table.metadata().configuration
    mapping = properties.get(_MAPPING, "none")
    if mapping != "none":
        yield f"column mapping ({_MAPPING} = {mapping})"
    for name in sorted(properties):
        if name.startswith(_CONSTRAINT):
            yield f"the constraint {name.removeprefix(_CONSTRAINT)}"
    for field in table.schema().fields:
        if _GENERATION in field.metadata:
            yield f"the generated column {field.name}"
        # It can be within a column of several fields.
        if f'"{_INVARIANT}"' in field.to_json():
            yield f"an invariant of the column {field.name}"


def check_layout(
    where: Location, table: DeltaTable, schema: pa.Schema, partition_by: Sequence[str]
) -> None:
    """Raise ConfigurationError unless rows of ``schema`` can be added to ``table``.

    The table may have further columns, which are null in these rows.
    """
    columns = table.metadata().partition_columns
    if columns != list(partition_by):
        raise ConfigurationError(
            f"{where}: the table is partitioned by {', '.join(columns) or 'nothing'}, "
            f"not by {', '.join(partition_by) or 'nothing'}; {_HINT}"
        )
    present = pa.schema(table.schema().to_arrow())
    for field in schema:
        index = present.get_field_index(field.name)
        if index < 0 or present.field(index).type != field.type:
            found = "no such column" if index < 0 else str(present.field(index).type)
            raise ConfigurationError(
                f"{where}: column {field.name} must be {field.type}, but the table "
                f"has {found}; {_HINT}"
            )
    for field in present:
        if not field.nullable and field.name not in schema.names:
            raise ConfigurationError(
                f"{where}: column {field.name} of the table must not be null, but the job does not "
                "write it; make it nullable, or choose another directory"
            )


def check_partitions(where: Location, schema: pa.Schema, partition_by: Sequence[str]) -> None:
    """Raise ConfigurationError if rows of ``schema`` cannot be divided by these columns.

    The package ``deltalake`` would create such a table, and its readers would find no rows.
    """
    if schema.names and set(schema.names) == set(partition_by):
        raise ConfigurationError(
            f"{where}: cannot create the table: all columns are partition columns, so that nothing "
            "is left for its files; leave one out"
        )
    for name in partition_by:
        index = schema.get_field_index(name)
        kind = pa.string() if index < 0 else schema.field(index).type
        if pa.types.is_nested(kind) or pa.types.is_null(kind):
            raise ConfigurationError(
                f"{where}: cannot create the table: column {name} is of the type {kind}, which no "
                "partition column can have; convert it to text, or use another column"
            )


def lacks_long_topics(table: DeltaTable, schema: pa.Schema) -> bool:
    """Return whether ``table`` is an archive of before the column ``long_topic``."""
    names = [field.name for field in table.schema().fields]
    return LONG_TOPIC in schema.names and "topic" in names and LONG_TOPIC not in names


def add_long_topics(table: DeltaTable) -> None:
    """Add the column ``long_topic``, unless another writer does so at the same time."""
    with suppress(DeltaError):
        table.alter.add_columns(Field(LONG_TOPIC, PrimitiveType("string"), nullable=True))


def readable_dataset(where: Location, table: DeltaTable, **options: Any) -> Any:
    """Return ``table`` as a dataset of pyarrow. Raises ConfigurationError."""
    files = pa.table(table.get_add_actions(flatten=True))
    try:
        mapping = table.metadata().configuration.get(_MAPPING, "none")
        if mapping != "none":
            raise DeltaProtocolError(f"it has column mapping ({_MAPPING} = {mapping})")
        columns = pa.schema(table.schema().to_arrow())
        pruning = pa.schema([field for field in columns if _prunes(files, field.name)])
        found = table.to_pyarrow_dataset(schema=pruning, **options)
    except DeltaProtocolError as error:
        raise ConfigurationError(
            f"{where}: the package deltalake cannot read this table: {error}; copy it to a table "
            "without this feature, or use another program"
        ) from None
    return FileSystemDataset(list(found.get_fragments()), columns, found.format, found.filesystem)


def _prunes(files: pa.Table, column: str) -> bool:
    """Return whether each file has a partition value, or a minimum and maximum, of ``column``.

    deltalake skips a file without them by every filter of this column.
    """
    if f"partition.{column}" in files.column_names:
        return True
    ends = [f"min.{column}", f"max.{column}"]
    return set(ends) <= set(files.column_names) and not any(files[end].null_count for end in ends)


def statistics_property(schema: pa.Schema, partition_by: Sequence[str]) -> dict[str, str]:
    """Return the property of a new table that names the columns that have statistics.

    Without it, readers that use deltalake find no row by another column (see ``_prunes``), and
    other engines write texts of clients into the log.
    """
    names = [
        field.name
        for field in schema
        if field.name not in partition_by and has_statistics(field.type)
    ]
    if not names:
        return {"delta.dataSkippingNumIndexedCols": "0"}
    return {"delta.dataSkippingStatsColumns": ",".join(map(_quoted, names))}


def _quoted(name: str) -> str:
    if name.isidentifier() and name.isascii():
        return name
    doubled = name.replace("`", "``")
    return f"`{doubled}`"
