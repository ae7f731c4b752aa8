"""Iceberg tables of which another engine has deleted rows by delete files.

The data files still have the rows, which must not come back.
"""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from twisted.trial.unittest import TestCase

from pubsub.pipeline.tables import iceberg
from pubsub.pipeline.tables.file_names import BatchId
from pubsub.pipeline.tables.files import write_file
from pubsub.pipeline.tables.iceberg import Iceberg, IcebergTarget
from pubsub.pipeline.tables.iceberg_catalog import IcebergName
from tests.tables.written_tables import BY, SCHEMA, batch, scratch

# Iceberg's specification has the ids, in "Position Delete Files".
_PLACES = pa.schema(
    [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
)


def delete_first_row(table: Table) -> None:
    """Delete the first row of a data file as Spark does, where rows are merged on read."""
    (task, *_) = sorted(table.scan().plan_files(), key=lambda task: task.file.file_path)
    path = f"{table.location()}/data/deletes.parquet"
    rows = pa.Table.from_pylist([{"file_path": task.file.file_path, "pos": 0}], _PLACES)
    pq.write_table(rows, path.removeprefix("file://"))
    deletes = DataFile.from_args(
        _table_format_version=2,
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=task.file.partition,
        record_count=1,
        file_size_in_bytes=1,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    deletes.spec_id = table.spec().spec_id
    with (
        patch.object(ManifestWriterV2, "content", lambda _: ManifestContent.DELETES),
        table.transaction() as transaction,
        transaction.update_snapshot().fast_append() as append,
    ):
        append.append_data_file(deletes)


class DeletedRowTests(TestCase):
    def setUp(self) -> None:
        root = scratch(self)
        os.mkdir(root)
        options = (
            ("type", "sql"),
            ("uri", f"sqlite:///{root}/catalog.db"),
            ("warehouse", f"file://{root}/warehouse"),
        )
        name = IcebergName("lake.messages", "tests", options)
        self.table = Iceberg(name, SCHEMA, BY)
        self.table.create_if_missing()
        for number in range(4):
            writer = IcebergTarget(name, BY).prepared().writer(BatchId("q", number))
            writer.add(batch(16 * number, 16, ["orders"]))
            assert self.table.commit(writer.finish(), "q", number)

    def rows(self) -> int:
        return int(self.table.open().scan().to_arrow().num_rows)

    def test_they_do_not_come_back(self) -> None:
        delete_first_row(self.table.open())
        assert self.rows() == 63
        assert self.table.compact() == 0
        assert self.rows() == 63

    def test_rows_that_are_deleted_during_a_merge(self) -> None:
        def written(*arguments: Any) -> Any:
            delete_first_row(self.table.open())
            return write_file(*arguments)

        with patch.object(iceberg, "write_file", written):
            assert self.table.compact() == 0
        assert self.rows() == 63
