"""``pubsub pipeline report``: the metrics table as a self-contained page of charts.

The report does not use Spark. The policy of the page forbids network requests.
"""

from __future__ import annotations

import argparse
import html
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pubsub.errors import ConfigurationError
from pubsub.pipeline.charts import Chart, page
from pubsub.pipeline.command_line.argument_values import time_range
from pubsub.pipeline.tables.delta import open_delta
from pubsub.pipeline.tables.delta_layout import readable_dataset
from pubsub.pipeline.tables.location import Location, storage_errors, table_location

MAX_POINTS = 240
"""Approximate number of points in a chart, however long its time range is."""
OTHER_TOPICS = "all others"
_COLUMNS = ("window_start", "window_end", "topic", "messages", "bytes", "age_p99", "late")
_PERCENTILES = ("p50", "p95", "p99")


def run(options: argparse.Namespace) -> int:
    """Write the page and return the exit code. Raises ConfigurationError."""
    since, until = time_range(options)
    text = report(load(table_location(options), since, until), options.table, options.topics)
    _write_page(Path(options.to), text)
    print(options.to)
    return 0


def _write_page(to: Path, text: str) -> None:
    """Replace the file ``to``; the one before stays if that fails. Raises OSError."""
    new = Path(f"{to}.new")
    try:
        # The encoding that the page names.
        new.write_text(text, encoding="utf-8")
        os.replace(new, to)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise OSError(error.errno, error.strerror, str(to)) from None


def load(
    where: str | Location, since: datetime | None = None, until: datetime | None = None
) -> pa.Table:
    """Return the rows of the metrics table at a path, URL or location.

    Raises ConfigurationError and StorageError.
    """
    location = Location.of(where)
    with storage_errors(location):
        return _load(location, since, until)


def _load(location: Location, since: datetime | None, until: datetime | None) -> pa.Table:
    data = readable_dataset(location, open_delta(location))
    missing = [name for name in _COLUMNS if name not in data.schema.names]
    if missing:
        raise ConfigurationError(
            f"{location}: not a table of the job metrics; it has no column {', '.join(missing)}"
        )
    condition = None
    for name, bound, compare in (
        ("window_start", since, pc.greater_equal),
        ("window_start", until, pc.less),
    ):
        if bound is not None:
            limit = compare(pc.field(name), pa.scalar(bound, pa.timestamp("us", tz="UTC")))
            condition = limit if condition is None else condition & limit
    return data.to_table(filter=condition)


@dataclass(frozen=True, slots=True)
class TimeGrid:
    """``count`` points in time from ``start`` on, ``seconds`` apart."""

    start: datetime
    seconds: float
    count: int

    @property
    def times(self) -> list[datetime]:
        """All points in time."""
        return [self.start + timedelta(seconds=self.seconds * at) for at in range(self.count)]


def make_grid(rows: pa.Table) -> TimeGrid:
    """Return the points for the windows of ``rows``, which is not empty.

    A point stands for one window, or for several where there are many.
    """
    starts = pc.min_max(rows["window_start"]).as_py()
    first, last = starts["min"], starts["max"]
    lengths = pc.subtract(rows["window_end"], rows["window_start"]).cast(pa.int64())
    window = max(pc.max(lengths).as_py(), 1000) / 1_000_000
    windows = round((last - first).total_seconds() / window) + 1
    per_point = -(-windows // MAX_POINTS)
    return TimeGrid(first, window * per_point, -(-windows // per_point))


def with_points(rows: pa.Table, grid: TimeGrid) -> pa.Table:
    """Return ``rows`` with the number of the point of each row as the column ``point``."""
    start = pa.scalar(grid.start, rows["window_start"].type)
    since = pc.subtract(rows["window_start"], start).cast(pa.int64())
    return rows.append_column("point", pc.divide(since, round(grid.seconds * 1_000_000)))


def _series(
    rows: pa.Table, grid: TimeGrid, column: str, aggregate: str, empty: float | None
) -> list[Any]:
    """Return ``column`` aggregated at each point, and ``empty`` at points without rows."""
    found = rows.group_by("point").aggregate([(column, aggregate)]).to_pylist()
    values: list[Any] = [empty] * grid.count
    for row in found:
        values[row["point"]] = row[f"{column}_{aggregate}"]
    return values


def _by_topic(
    rows: pa.Table, names: Sequence[str], grid: TimeGrid, column: str, divisor: float
) -> dict[str, list[Any]]:
    """Return a series for each topic and one for all others, with values divided by ``divisor``."""
    chosen = pa.array(names, pa.string())
    shown = {name: rows.filter(pc.equal(rows["topic"], name)) for name in names}
    others = rows.filter(pc.invert(pc.is_in(rows["topic"], chosen)))
    if others.num_rows:
        shown[OTHER_TOPICS] = others
    return {
        name: [value / divisor for value in _series(topic_rows, grid, column, "sum", 0)]
        for name, topic_rows in shown.items()
    }


def topics(rows: pa.Table) -> list[dict[str, Any]]:
    """Return a summary of each topic, in descending order of messages."""
    found = rows.group_by("topic").aggregate(
        [("messages", "sum"), ("bytes", "sum"), ("size_max", "max"), ("age_p50", "max"),
         ("age_p99", "max"), ("senders", "max")]
    )  # fmt: skip
    order = [("messages_sum", "descending"), ("topic", "ascending")]
    return list(found.sort_by(order).to_pylist())


def charts(rows: pa.Table, grid: TimeGrid, names: Sequence[str], late: pa.Table) -> list[Chart]:
    """Return the charts of ``rows``, which is not empty."""
    times, seconds = grid.times, grid.seconds
    messages = _by_topic(rows, names, grid, "messages", seconds)
    volume = _by_topic(rows, names, grid, "bytes", seconds)
    age = {point: _series(rows, grid, f"age_{point}", "max", None) for point in _PERCENTILES}
    size = {point: _series(rows, grid, f"size_{point}", "max", None) for point in _PERCENTILES}
    senders = {
        name: _series(rows.filter(pc.equal(rows["topic"], name)), grid, "senders", "max", 0)
        for name in names
    }
    drawn = [
        Chart("Messages a second, by topic", times, messages, "area", unit="1/s"),
        Chart("Bytes a second, by topic", times, volume, "area", unit="B/s"),
        Chart("Age when read, of the topic where it is highest", times, age, "line", unit="ms"),
        Chart("Size, of the topic where it is highest", times, size, "line", unit="B"),
        Chart("Senders, by topic", times, senders, "line"),
    ]
    if late.num_rows:
        counted = {"late": _series(late, grid, "late", "sum", 0)}
        drawn.append(Chart("Messages too late for their window", times, counted, "bar"))
    return drawn


def report(table: pa.Table, source: str, line_count: int) -> str:
    """Return the page for ``table``, rows of the table at ``source``.

    Charts by topic have a line for each of the ``line_count`` topics with the most messages.
    """
    title = f"Messages: {html.escape(Path(source).absolute().name)}"
    if not table.num_rows:
        return page(title, "The table has no rows in this time range.", [], [], [])
    grid = make_grid(table)
    table = with_points(table, grid)
    late = table.filter(pc.is_null(table["topic"]))
    rows = table.filter(pc.is_valid(table["topic"]))
    summary = topics(rows)
    names = [row["topic"] for row in summary[:line_count]]
    until = pc.max(table["window_end"]).as_py()
    span = f"{_time(grid.start)} to {_time(until)} UTC, {_duration(grid.seconds)} a point"
    facts = [
        ("messages", f"{sum(row['messages_sum'] for row in summary):,}"),
        ("bytes", _bytes(sum(row["bytes_sum"] for row in summary))),
        ("topics", f"{len(summary):,}"),
        ("oldest when read (p99)", _ms(pc.max(rows["age_p99"]).as_py())),
        ("too late", f"{pc.sum(late['late']).as_py() or 0:,}"),
    ]
    return page(title, span, facts, charts(rows, grid, names, late), _table(summary))


def _table(summary: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Return the rows of the table as text, the head first. It has at most a thousand topics."""
    head = ["topic", "messages", "bytes", "mean size", "largest", "age p50", "age p99", "senders"]
    body = [
        [
            row["topic"],
            f"{row['messages_sum']:,}",
            _bytes(row["bytes_sum"]),
            _bytes(row["bytes_sum"] / max(row["messages_sum"], 1)),
            _bytes(row["size_max_max"]),
            _ms(row["age_p50_max"]),
            _ms(row["age_p99_max"]),
            f"{row['senders_max']:,}",
        ]
        for row in summary[:1000]
    ]
    return [head, *body]


def _time(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def _duration(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 120 else f"{round(seconds / 60, 1):g} min"


def _bytes(count: float | None) -> str:
    if count is None:
        return "-"
    for unit in ("B", "kB", "MB", "GB"):
        # Three digits of a larger number would be 1e+03.
        if count < 999.5:
            return f"{count:.3g} {unit}" if unit != "B" else f"{round(count)} B"
        count /= 1000
    return f"{count:,.3g} TB"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.0f} s"
