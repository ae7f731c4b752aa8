"""Batches that a table has already: of a query that is restarted, or of a copied checkpoint."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.batch_order import BatchTable, commit_once
from pubsub.pipeline.tables.file_names import BatchId
from pubsub.pipeline.tables.iceberg import Iceberg, IcebergTarget
from pubsub.pipeline.tables.iceberg_catalog import IcebergName
from pubsub.pipeline.tables.spark import TableTarget
from tests.tables.written_tables import BY, SCHEMA, batch


class Writer:
    """Writes batches of one query to a table of a kind."""

    def __init__(self, kind: str, path: Path) -> None:
        self.target: IcebergTarget | TableTarget
        self.table: BatchTable
        if kind == "iceberg":
            options = (
                ("type", "sql"),
                ("uri", f"sqlite:///{path}/catalog.db"),
                ("warehouse", f"file://{path}"),
            )
            name = IcebergName("lake.messages", "tests", options)
            self.target = IcebergTarget(name, BY)
            iceberg = Iceberg(name, SCHEMA, BY)
            iceberg.create_if_missing()
            self.table = iceberg
        else:
            self.target = TableTarget(str(path / "table"), BY, kind)
            table = self.target.table(SCHEMA)
            table.create_if_missing()
            self.table = table

    def put(self, number: int, rows: pa.RecordBatch, repeatable: bool = True) -> bool:
        """Write a batch as a job does."""
        writer = self.target.prepared().writer(BatchId("q", number))
        writer.add(rows)
        return commit_once(self.table, writer.finish(), "q", number, repeatable)


@pytest.fixture(params=["delta", "parquet", "iceberg"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Writer:
    """Return a writer of a table with two batches."""
    found = Writer(request.param, tmp_path)
    assert found.put(0, batch(0, 16))
    assert found.put(1, batch(16, 16))
    return found


def test_the_last_batch_is_run_again(writer: Writer) -> None:
    assert not writer.put(1, batch(16, 16))
    assert writer.put(2, batch(32, 8))


def test_an_earlier_state_of_the_checkpoint(writer: Writer) -> None:
    with pytest.raises(ConfigurationError, match="has batch 1 of this query, but the checkpoint"):
        writer.put(0, batch(0, 16))


def test_another_batch_under_the_number(writer: Writer) -> None:
    with pytest.raises(ConfigurationError, match=r"batch 1 .* with 16 rows, but now .* has 48: "):
        writer.put(1, batch(16, 48))
    # Some of its messages have expired since.
    assert not writer.put(1, batch(16, 8))
    # Of a query whose rows follow from more than its messages, no conclusion is possible.
    assert not writer.put(1, batch(16, 48), repeatable=False)
