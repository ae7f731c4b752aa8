"""Tables as other programs read them: deltalake's engine, polars and DuckDB."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import duckdb
import duckdb_extension_delta
import polars
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from pyarrow.dataset import dataset
from pyarrow.parquet import filters_to_expression

from pubsub.errors import ConfigurationError
from pubsub.pipeline.jobs import archive
from pubsub.pipeline.jobs.replay import ReplaySettings
from pubsub.pipeline.tables.delta_layout import readable_dataset
from pubsub.pipeline.tables.file_names import BatchId, readable_directory
from pubsub.pipeline.tables.files import PartitionWriter
from pubsub.pipeline.tables.location import Location
from pubsub.pipeline.tables.migrate import migrate
from pubsub.pipeline.tables.partitions import (
    LONG_TOPIC,
    hive_directory,
    partition_text,
    topic_bucket,
)
from pubsub.pipeline.tables.spark import TableTarget, append

Rows = list[dict[str, Any]]
BY = ("topic", "day")
TOPICS = [
    "orders", "a/b/../c", "..", ".", "/etc/passwd", 'q\'uo"te', "snow ☃ and 🦊", "a=b&c%20d",
    "a%2Fb", "_hidden", ".h", "a+b", "x\ny", "null", "None", "__HIVE_DEFAULT_PARTITION__x", "~t",
]  # fmt: skip
# The last one stands for null in names of directories.
LONG = ["x" * 300, "é" * 150, "x" * 299 + "y", "/" * 100, "__HIVE_DEFAULT_PARTITION__"]


def with_deltalake(path: str, columns: list[str]) -> Rows:
    """Read with deltalake's own engine."""
    chosen = ", ".join(f'"{name}"' for name in columns)
    found = QueryBuilder().register("t", DeltaTable(path)).execute(f"SELECT {chosen} FROM t")
    rows: Rows = pa.table(found).to_pylist()
    return rows


def with_polars(path: str, columns: list[str]) -> Rows:
    """Read with polars."""
    return polars.read_delta(path).select(columns).to_dicts()


def with_duckdb(path: str, columns: list[str]) -> Rows:
    """Read with DuckDB and its extension, which the package brings along."""
    package = Path(duckdb_extension_delta.__file__).parent
    (extension,) = package.glob("extensions/*/delta.duckdb_extension")
    chosen = ", ".join(f'"{name}"' for name in columns)
    with duckdb.connect(config={"allow_unsigned_extensions": "true"}) as connection:
        connection.execute("SET TimeZone = 'UTC'")
        connection.execute(f"LOAD '{extension}'")
        found = connection.execute(f"SELECT {chosen} FROM delta_scan('{path}')")
        rows: Rows = found.to_arrow_table().to_pylist()
    return rows


READERS: list[Callable[[str, list[str]], Rows]] = [with_deltalake, with_polars, with_duckdb]


def messages(topics: list[str]) -> pa.RecordBatch:
    """Return messages with their offset as payload."""
    count = len(topics)
    return pa.RecordBatch.from_pydict(
        {
            "topic": topics,
            "partition": pa.array([0] * count, pa.int32()),
            "offset": pa.array(range(count), pa.int64()),
            "timestamp": pa.array(
                [datetime(2026, 3, 1 + n % 2, 12, tzinfo=UTC) for n in range(count)],
                pa.timestamp("us", "UTC"),
            ),
            "protocol": ["cafe"] * count,
            "key": pa.array([None] * count, pa.binary()),
            "value": [b"%d" % n for n in range(count)],
            "message_id": [f"id-{n}" for n in range(count)],
        }
    )


def archived(path: Path, topics: list[str]) -> str:
    """Archive a message of each of these topics and return the table's path."""
    append(TableTarget(str(path), BY), pa.table(archive.rows(messages(topics), True)), "q", 0)
    return str(path)


def by_offset(rows: Rows) -> Rows:
    """Return the rows in the order of their offsets."""
    return sorted(rows, key=lambda row: row["offset"])


@pytest.mark.parametrize("reader", READERS)
def test_topics_and_days(reader: Callable[[str, list[str]], Rows], tmp_path: Path) -> None:
    path = archived(tmp_path / "t", TOPICS)
    found = by_offset(reader(path, ["topic", "day", "offset", "value"]))
    assert found == [
        {"topic": topic, "day": date(2026, 3, 1 + n % 2), "offset": n, "value": b"%d" % n}
        for n, topic in enumerate(TOPICS)
    ]


@pytest.mark.parametrize("reader", READERS)
def test_topics_too_long_for_a_directory(
    reader: Callable[[str, list[str]], Rows], tmp_path: Path
) -> None:
    path = archived(tmp_path / "t", ["orders", *LONG])
    found = by_offset(reader(path, ["topic", LONG_TOPIC, "offset"]))
    assert found[0] == {"topic": "orders", LONG_TOPIC: None, "offset": 0}
    assert [row[LONG_TOPIC] for row in found[1:]] == LONG
    assert [row["topic"] for row in found[1:]] == [topic_bucket(topic) for topic in LONG]
    assert len({row["topic"] for row in found}) == len(found)


# polars reads values of partitions from the directories, and binary ones not at all.
TYPES: list[tuple[pa.DataType, list[Any], list[Callable[[str, list[str]], Rows]]]] = [
    (pa.string(), ["a", "", None, "None", "x/y"], READERS),
    (pa.int64(), [5, -7, None, 0], READERS),
    (pa.date32(), [date(2026, 3, 1), None, date(1969, 12, 31)], READERS),
    (pa.bool_(), [True, False, None], READERS),
    (pa.float64(), [1.5, -0.25, None], READERS),
    (pa.timestamp("us", "UTC"), [datetime(2026, 3, 1, 12, 0, 0, 123, UTC), None], READERS),
    (pa.binary(), ["é\x00".encode(), b"text", b"", None], [with_deltalake]),
]


def cases() -> Iterator[Any]:
    """Yield each type with each reader that reads it."""
    for kind, values, readers in TYPES:
        for reader in readers:
            yield pytest.param(kind, values, reader, id=f"{kind}-{reader.__name__}")


@pytest.mark.parametrize(("kind", "values", "reader"), list(cases()))
def test_partitions_of_every_type(
    kind: pa.DataType,
    values: list[Any],
    reader: Callable[[str, list[str]], Rows],
    tmp_path: Path,
) -> None:
    """An empty text or binary is null there, as Delta's protocol has it."""
    rows = pa.table({"p": pa.array(values, kind), "offset": range(len(values))})
    path = str(tmp_path / "t")
    append(TableTarget(path, ("p",)), rows, "q", 0)
    found = by_offset(reader(path, ["p", "offset"]))
    assert [row["p"] for row in found] == [None if v in ("", b"") else v for v in values]


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("name", ["order day", "größe", "a+b", "日"])
def test_names_of_partition_columns(
    name: str, reader: Callable[[str, list[str]], Rows], tmp_path: Path
) -> None:
    path = str(tmp_path / "t")
    rows = pa.table({name: ["x/y", "é", None], "offset": range(3)})
    append(TableTarget(path, (name,)), rows, "q", 0)
    assert [row[name] for row in by_offset(reader(path, [name, "offset"]))] == ["x/y", "é", None]


@pytest.mark.parametrize("reader", READERS)
def test_a_short_topic_that_stands_for_null(
    reader: Callable[[str, list[str]], Rows], tmp_path: Path
) -> None:
    path = archived(tmp_path / "t", ["orders", LONG[-1]])
    found = by_offset(reader(path, ["topic", LONG_TOPIC, "offset"]))
    assert found[1][LONG_TOPIC] == LONG[-1]
    assert found[1]["topic"] == topic_bucket(LONG[-1])


def test_a_binary_value_that_no_text_stands_for(tmp_path: Path) -> None:
    rows = pa.table({"p": pa.array([b"\xff"]), "offset": [0]})
    with pytest.raises(ConfigurationError, match="not UTF-8"):
        append(TableTarget(str(tmp_path / "t"), ("p",)), rows, "q", 0)


@pytest.mark.parametrize(
    ("column", "by", "error"),
    [
        (pa.array([{"x": 1}]), ("p",), "column p is of the type struct"),
        (pa.array([[1]]), ("p",), "column p is of the type list"),
        (pa.nulls(1), ("p",), "column p is of the type null"),
        (pa.array([1]), ("offset", "p"), "all columns are partition columns"),
    ],
)
def test_columns_that_cannot_divide_a_table(
    column: pa.Array, by: tuple[str, ...], error: str, tmp_path: Path
) -> None:
    rows = pa.table({"p": column, "offset": [0]})
    with pytest.raises(ConfigurationError, match=error):
        append(TableTarget(str(tmp_path / "t"), by), rows, "q", 0)
    assert not (tmp_path / "t").exists()


def test_times_of_partitions_are_in_utc() -> None:
    east = timezone(timedelta(hours=2))
    assert partition_text(datetime(2026, 3, 1, 1, tzinfo=east)) == "2026-02-28 23:00:00.000000"
    assert partition_text(datetime(26, 3, 1, 1)) == "0026-03-01 01:00:00.000000"


def test_a_partition_without_a_value_has_a_directory_of_its_own(tmp_path: Path) -> None:
    assert hive_directory(("a", "b/c"), (None, "x y")) == (
        "a=__HIVE_DEFAULT_PARTITION__/b%2Fc=x%20y"
    )


def old_archive(path: Path, topics: list[str]) -> str:
    """Write an archive as earlier versions did: other directories, and no column long_topic."""
    target = TableTarget(str(path), BY)
    rows = archive.rows(messages(topics), False)
    table = target.table(rows.schema)
    table.create_if_missing()
    writer = PartitionWriter(str(path), BY, batch=BatchId("q", 0), directory_of=readable_directory)
    writer.add(rows)
    table.commit(writer.finish(), "q", 0)
    return str(path)


def test_an_older_table_is_migrated(tmp_path: Path) -> None:
    names = ["orders", "a/b", LONG[0]]
    path = old_archive(tmp_path / "t", names)
    assert by_offset(with_deltalake(path, ["topic", "offset"]))[1]["topic"] == "a/b"
    before = DeltaTable(path).version()
    assert migrate(path) == 3
    for reader in READERS:
        found = by_offset(reader(path, ["topic", LONG_TOPIC, "day", "offset", "value"]))
        assert [row[LONG_TOPIC] or row["topic"] for row in found] == names
        assert [row["value"] for row in found] == [b"0", b"1", b"2"]
    assert migrate(path) == 0
    # Readers of the version before find their files.
    assert DeltaTable(path, before).to_pyarrow_table().num_rows == 3


def test_an_older_archive_goes_on(tmp_path: Path) -> None:
    path = old_archive(tmp_path / "t", ["orders", "a/b"])
    rows = pa.table(archive.rows(messages([LONG[0], "a/b"]), True))
    assert append(TableTarget(path, BY), rows, "q", 1)
    found = with_deltalake(path, ["topic", LONG_TOPIC])
    assert sorted(row[LONG_TOPIC] or row["topic"] for row in found) == sorted(
        ["orders", "a/b", LONG[0], "a/b"]
    )
    for number in range(2, 8):
        append(TableTarget(path, BY), rows, "q", number)
    table = TableTarget(path, BY).table(rows.schema)
    assert table.compact() > 0
    assert len(with_deltalake(path, ["topic"])) == 16
    assert os.path.isdir(os.path.join(path, "topic=a%2Fb", "day=2026-03-02"))


def test_a_pattern_finds_the_committed_files_of_plain_parquet(tmp_path: Path) -> None:
    path = str(tmp_path / "t")
    target = TableTarget(path, BY, "parquet")
    rows = archive.rows(messages(TOPICS), False)
    assert append(target, pa.table(rows), "q", 0)
    # A batch whose commit did not take place.
    staged = target.writer(BatchId("q", 1))
    staged.add(rows)
    assert len(staged.finish()) == len(TOPICS)
    pattern = f"{path}/*/*/*.parquet"
    count = duckdb.sql(f"SELECT count(*) FROM read_parquet('{pattern}')").fetchall()
    assert count == [(len(TOPICS),)]
    assert sorted(polars.read_parquet(pattern)["topic"]) == sorted(TOPICS)
    assert sorted(dataset(path).to_table()["topic"].to_pylist()) == sorted(TOPICS)


def replayed(path: str, topic: str) -> list[int]:
    """Return the offsets of the rows that a replay of ``topic`` selects."""
    settings = ReplaySettings(path, 0, (topic,), "", None, None, 1)
    chosen = filters_to_expression(settings.filters())
    found = readable_dataset(Location.of(path), DeltaTable(path)).to_table(filter=chosen)
    offsets: list[int] = found["offset"].to_pylist()
    return offsets


def test_a_replay_finds_topics_with_long_names(tmp_path: Path) -> None:
    names = ["orders", *LONG[:3]]
    by_day = str(tmp_path / "by-day")
    append(TableTarget(by_day, ("day",)), pa.table(archive.rows(messages(names), False)), "q", 0)
    for path in (archived(tmp_path / "t", names), old_archive(tmp_path / "old", names), by_day):
        assert [replayed(path, name) for name in names] == [[0], [1], [2], [3]]
