"""The check of an Iceberg table that exists: its format, its partitions and its columns."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids, schema_to_pyarrow
from pyiceberg.schema import assign_fresh_schema_ids
from pyiceberg.table import Table

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.iceberg_catalog import IcebergName

_FORMAT_VERSION = 2
_PARTITIONS = {"day": ("timestamp_day", "day"), "topic": ("topic", "identity")}
_HINT = "choose another table, or use the options that the table was created with"


def check_iceberg_layout(
    name: IcebergName, table: Table, schema: pa.Schema, partition_by: Sequence[str]
) -> None:
    """Raise ConfigurationError unless rows of ``schema`` can be added to ``table``.

    The table may have further columns, which are null in these rows.
    """
    if table.format_version != _FORMAT_VERSION:
        raise ConfigurationError(
            f"{name}: the table has format version {table.format_version}, but the jobs write "
            f"version {_FORMAT_VERSION}; choose another table"
        )
    parts = [(field.name, str(field.transform)) for field in table.spec().fields]
    if parts != [_PARTITIONS[column] for column in partition_by]:
        raise ConfigurationError(
            f"{name}: the table has other partitions than {', '.join(partition_by)}; {_HINT}"
        )
    _check_columns(name, schema_to_pyarrow(table.schema(), include_field_ids=False), schema)


def _check_columns(name: IcebergName, present: pa.Schema, schema: pa.Schema) -> None:
    # The types as Iceberg has them.
    wanted = schema_to_pyarrow(
        assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(schema)), include_field_ids=False
    )
    for field in wanted:
        index = present.get_field_index(field.name)
        if index < 0 or not present.field(index).equals(field):
            found = "does not exist" if index < 0 else f"is {_described(present.field(index))}"
            raise ConfigurationError(
                f"{name}: the table has other columns: {field.name} must be {_described(field)}, "
                f"but {found}; {_HINT}"
            )
    for field in present:
        if not field.nullable and field.name not in wanted.names:
            raise ConfigurationError(
                f"{name}: column {field.name} of the table is required, but the job does not write "
                "it; make it optional, or choose another table"
            )


def _described(field: pa.Field) -> str:
    return f"{field.type}{'' if field.nullable else ' and required'}"
