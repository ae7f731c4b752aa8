"""Delta tables whose files other engines have written again, and columns of other programs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, Field, QueryBuilder
from deltalake.schema import PrimitiveType

from pubsub.pipeline.tables import delta
from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.location import StorageError
from pubsub.pipeline.tables.spark import TableTarget, append
from tests.tables.written_tables import BY, SCHEMA, all_files, before_commit, fill, offsets


@pytest.fixture
def table(tmp_path: Path) -> Delta:
    found = Delta(str(tmp_path / "table"), SCHEMA, BY)
    fill(found, *range(5))
    return found


@pytest.fixture
def new_york(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the process a time zone other than UTC."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def merged_types(table: Delta) -> pa.Schema:
    """Return the types in the only file of ``table``."""
    (file,) = DeltaTable(table.path).file_uris()
    return pq.read_schema(file)


def test_a_file_with_views_of_bytes(table: Delta) -> None:
    DeltaTable(table.path).update(predicate='"offset" = 3', updates={"message_id": "'new'"})
    fill(table, 5)
    assert table.compact() == 6
    assert offsets(table.path) == list(range(96))
    found = DeltaTable(table.path).to_pyarrow_table()
    assert found["message_id"].to_pylist().count("new") == 1
    assert merged_types(table).field("value").type == pa.binary()


def test_a_file_with_times_of_spark(table: Delta, new_york: None) -> None:
    times = DeltaTable(table.path).to_pyarrow_table()["timestamp"].to_pylist()
    names = [name for name in all_files(table.path) if name.endswith(".parquet")]
    for name in names[:2]:
        file = Path(table.path, name)
        pq.write_table(
            pq.ParquetFile(file).read(),
            file,
            use_deprecated_int96_timestamps=True,
            store_schema=False,
        )
        assert pq.read_schema(file).field("timestamp").type == pa.timestamp("ns")
    assert table.compact() == 5
    found = DeltaTable(table.path).to_pyarrow_table()
    assert sorted(found["timestamp"].to_pylist()) == sorted(times)
    assert merged_types(table).field("timestamp").type == pa.timestamp("us", "UTC")
    after = ds.field("timestamp") >= pa.scalar(min(times), pa.timestamp("us", "UTC"))
    assert DeltaTable(table.path).to_pyarrow_dataset().count_rows(filter=after) == 80


@pytest.mark.parametrize("merged", [False, True], ids=["written", "merged"])
def test_times_without_a_zone_are_found(tmp_path: Path, new_york: None, merged: bool) -> None:
    path = str(tmp_path / "table")
    target = TableTarget(path)
    day = datetime(2026, 3, 1)
    for batch in range(4):
        times = [day.replace(hour=2 * batch), day.replace(hour=2 * batch + 1, microsecond=1500)]
        rows = pa.table(
            {"offset": [2 * batch, 2 * batch + 1], "at": pa.array(times, pa.timestamp("us"))}
        )
        assert append(target, rows, "q", batch)
    if merged:
        assert target.table(pa.schema([])).compact() == 4
    found = DeltaTable(path)
    for hour in range(8):
        until = day.replace(hour=hour, minute=30)
        earlier = found.to_pyarrow_dataset().count_rows(filter=ds.field("at") < until)
        assert earlier == hour + 1
        query = f"SELECT * FROM found WHERE \"at\" < TIMESTAMP '{until}'"
        rows = QueryBuilder().register("found", found).execute(query).read_all()
        assert pa.table(rows).num_rows == hour + 1


def add_a_column(path: str) -> None:
    DeltaTable(path).alter.add_columns(Field("note", PrimitiveType("string")))


def delete_rows(path: str) -> None:
    DeltaTable(path).delete('"offset" < 5')


@pytest.mark.parametrize(("change", "first"), [(add_a_column, 0), (delete_rows, 5)])
def test_a_batch_is_committed_beside_a_change(
    table: Delta, change: Callable[[str], None], first: int
) -> None:
    changes = [change]
    with before_commit(lambda: changes.pop()(table.path) if changes else None):
        fill(table, 5)
    assert offsets(table.path) == list(range(first, 96))
    assert len(DeltaTable(table.path).file_uris()) == 6


def test_a_table_that_changes_all_the_time(table: Delta) -> None:
    names = iter("abc")

    def change() -> None:
        DeltaTable(table.path).alter.set_table_properties({f"note.{next(names)}": "1"}, False)

    with (
        before_commit(change),
        patch.object(delta, "_COMMIT_ATTEMPTS", 3),
        pytest.raises(StorageError, match="other writers keep changing the table"),
    ):
        fill(table, 5)
    fill(table, 5)
    assert offsets(table.path) == list(range(96))
