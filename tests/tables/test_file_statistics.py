"""The statistics of files in a Delta log: no reader skips a file that has rows for its filter."""

from __future__ import annotations

import json
import pickle
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable
from pyspark.sql.pandas.types import from_arrow_schema

from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.delta_layout import readable_dataset
from pubsub.pipeline.tables.location import Location
from pubsub.pipeline.tables.spark import TableSource, TableTarget, append
from tests.tables.written_tables import BY, SCHEMA, fill

FIRST, LAST = datetime(1, 1, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)
US = pa.timestamp("us", "UTC")
MESSAGE = "00000000-0000-8000-8000-000000000003"
PROPERTY = "delta.dataSkippingStatsColumns"


def found(path: str, wanted: ds.Expression) -> int:
    """Return the number of rows that satisfy ``wanted``, as the jobs read them."""
    return int(readable_dataset(Location.of(path), DeltaTable(path)).count_rows(filter=wanted))


@pytest.mark.parametrize(
    "times",
    [
        pa.array([FIRST, datetime(2026, 3, 1)], US),
        pa.array([datetime(2026, 3, 1), LAST], US),
        pa.array([-(10**17), 10**18], US),
        pa.array([FIRST, None], pa.timestamp("us")),
        pa.array([None, None], US),
    ],
    ids=["year 1", "year 9999", "beyond", "without a zone", "nulls"],
)
@pytest.mark.parametrize("merged", [False, True], ids=["written", "merged"])
def test_times_that_stand_for_no_time(tmp_path: Path, times: pa.Array, merged: bool) -> None:
    path = str(tmp_path / "table")
    target = TableTarget(path)
    for batch in range(4):
        append(target, pa.table({"offset": [2 * batch, 2 * batch + 1], "at": times}), "q", batch)
    if merged:
        assert target.table(pa.schema([])).compact() == 4
    at = ds.field("at")
    for number, limit in enumerate(times.drop_null()):
        assert found(path, at <= limit) == 4 * (number + 1)
        assert found(path, at >= limit) == 4 * (len(times.drop_null()) - number)
    assert found(path, at.is_null()) == 4 * times.null_count


def test_partitions_of_early_times(tmp_path: Path) -> None:
    path = str(tmp_path / "table")
    times = pa.array([FIRST, datetime(987, 6, 5, 4, 3, 2, 1)], US)
    assert append(TableTarget(path, ("at",)), pa.table({"offset": [0, 1], "at": times}), "q", 0)
    rows = DeltaTable(path).to_pyarrow_table().sort_by("offset")
    assert rows["at"].combine_chunks().cast(US) == times


@pytest.fixture
def archive(tmp_path: Path) -> str:
    path = str(tmp_path / "table")
    fill(Delta(path, SCHEMA, BY), 0, 1)
    return path


def test_rows_are_found_by_a_column_without_statistics(archive: str) -> None:
    wanted = ds.field("message_id") == MESSAGE
    assert found(archive, wanted) == 1
    # By programs that use deltalake themselves, too.
    assert DeltaTable(archive).to_pyarrow_dataset().count_rows(filter=wanted) == 1


def test_rows_of_an_earlier_table_are_found(archive: str) -> None:
    """It has no property that names the columns with statistics."""
    log = Path(archive, "_delta_log", "00000000000000000000.json")
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    for action in actions:
        if "metaData" in action:
            assert action["metaData"]["configuration"].pop(PROPERTY) == "partition,offset,timestamp"
    log.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    assert PROPERTY not in DeltaTable(archive).metadata().configuration
    assert found(archive, ds.field("message_id") == MESSAGE) == 1
    filters = [("message_id", "=", MESSAGE)]
    options = {"path": archive, "filters": pickle.dumps(filters).hex(), "version": "2"}
    source = TableSource(options)
    reader: Any = source.reader(from_arrow_schema(SCHEMA))
    rows = [batch for task in reader.partitions() for batch in reader.read(task)]
    assert [one.as_py() for batch in rows for one in batch["offset"]] == [3]


def test_files_without_such_rows_are_not_opened(archive: str) -> None:
    data = readable_dataset(Location.of(archive), DeltaTable(archive))
    for wanted, count in (
        (ds.field("offset") == 3, 1),
        (ds.field("topic") == "orders", 2),
        (ds.field("topic") == "others", 0),
    ):
        assert len(list(data.get_fragments(filter=wanted))) == count


@pytest.mark.parametrize("names", [["text"], ["a b", "text"], ["a`b", "é,f", "text"]])
def test_tables_of_others(tmp_path: Path, names: list[str]) -> None:
    path = str(tmp_path / "table")
    rows = pa.table({name: ["x"] if name == "text" else [1] for name in names})
    assert append(TableTarget(path), rows, "q", 0)
    for name in names:
        wanted = ds.field(name) == ("x" if name == "text" else 1)
        assert found(path, wanted) == 1
        assert DeltaTable(path).to_pyarrow_dataset().count_rows(filter=wanted) == 1


@pytest.mark.parametrize("kind", ["delta", "parquet"])
@pytest.mark.parametrize(
    "value",
    [1, "x", 1.5, True, b"x", date(2026, 3, 1), datetime(2026, 3, 1), Decimal("1.5"), [1]],
    ids=lambda value: type(value).__name__,
)
def test_columns_with_the_names_of_others(tmp_path: Path, kind: str, value: Any) -> None:
    """The job derive writes columns of any name and type."""
    path = str(tmp_path / "table")
    names = ("offset", "timestamp", "message_id", "topic", "key", "event")
    columns = {name: pa.array([value, None]) for name in names}
    assert append(TableTarget(path, kind=kind), pa.table(columns), "q", 0)
    rows = ds.dataset(path).to_table() if kind == "parquet" else DeltaTable(path).to_pyarrow_table()
    assert all(rows[name].to_pylist()[1] is None for name in names)
    assert {str(rows[name].to_pylist()[0]) for name in names} == {str(value)}
