"""Batches that a table has already: of a query that is restarted, or of a copied checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pytest

from pubsub.errors import ConfigurationError
from pubsub.pipeline.tables.batch_order import BatchTable, commit_once
from pubsub.pipeline.tables.file_names import BatchId
from pubsub.pipeline.tables.iceberg import Iceberg, IcebergTarget
from pubsub.pipeline.tables.iceberg_catalog import IcebergName
from pubsub.pipeline.tables.spark import TableTarget
from tests.tables.written_tables import BY, SCHEMA, batch


class CompactedTable(BatchTable, Protocol):
    def compact(self) -> int: ...


class Writer:
    """Writes batches of one query to a table of a kind."""

    def __init__(self, kind: str, path: Path) -> None:
        self.target: IcebergTarget | TableTarget
        self.table: CompactedTable
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

    def put(
        self, number: int, rows: pa.RecordBatch, repeatable: bool = True, query: str = "q"
    ) -> bool:
        """Write a batch as a job does."""
        writer = self.target.prepared().writer(BatchId(query, number))
        writer.add(rows)
        return commit_once(self.table, writer.finish(), query, number, repeatable)


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


def test_other_commits_since(writer: Writer) -> None:
    """The rows are those of the batch, not of a commit of another query or of a merge."""
    assert writer.put(1, batch(32, 48), query="other")
    for number in range(4):
        assert writer.put(number, batch(80 + 16 * number, 16, ["orders"]), query="third")
    writer.table.compact()
    for number, query, stored in ((1, "q", 16), (1, "other", 48), (3, "third", 16)):
        rows = batch(0, stored + 1, ["orders"])
        with pytest.raises(
            ConfigurationError, match=f"with {stored} rows, but now .* {stored + 1}"
        ):
            writer.put(number, rows, query=query)
        assert not writer.put(number, rows.slice(0, stored), query=query)
