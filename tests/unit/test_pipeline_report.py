"""The contents of the report page; see ``tests/browser`` for the page in a browser."""

from __future__ import annotations

import errno
import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from twisted.trial.unittest import SynchronousTestCase

from pubsub.commands import command
from pubsub.pipeline.jobs.metrics import SCHEMA, late_rows
from pubsub.pipeline.report import report
from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.files import PartitionWriter
from tests.unit.fakes import scratch

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
LENGTH = 10
_DATA = re.compile(r'<script type="application/json" id="charts">(.*?)</script>')


def row(window: int, topic: str, messages: int, **more: int) -> dict[str, Any]:
    """Return a row of the metrics: one window of ten seconds, messages of 100 bytes."""
    start = START + timedelta(seconds=LENGTH * window)
    points = {
        f"{name}_{point}": value * (number + 1)
        for name, value in (("size", 100), ("age", 20))
        for number, point in enumerate(("p50", "p95", "p99", "max"))
    }
    return {
        "window_start": start,
        "window_end": start + timedelta(seconds=LENGTH),
        "topic": topic,
        "messages": messages,
        "bytes": 100 * messages,
        **points,
        "senders": 2,
        "late": 0,
        "day": start.date(),
        **more,
    }


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), SCHEMA)


def page_of(*rows: dict[str, Any], topics: int = 8) -> str:
    """Return the page for a metrics table with these rows."""
    return report(table(*rows), "metrics", topics)


def drawn(page: str) -> list[dict[str, Any]]:
    """Return the figures in the page, as plotly receives them."""
    match = _DATA.search(page)
    return [] if match is None else list(json.loads(match[1])["charts"])


def times(page: str) -> list[float]:
    """Return the time axis of all charts, in seconds since the Unix epoch."""
    match = _DATA.search(page)
    assert match is not None
    return list(json.loads(match[1])["times"])


def series(figure: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the values of a chart's series by name."""
    return {each["name"]: each["values"] for each in figure["series"]}


def facts(page: str) -> dict[str, str]:
    return dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page))


def cells(page: str) -> list[list[str]]:
    """Return the table of topics without its head."""
    lines = re.findall(r"<tr>(.*?)</tr>", page)
    assert len(re.findall(r"<th scope=\"col\">", lines[0])) == 8
    return [re.findall(r"<td>(.*?)</td>", line) for line in lines[1:]]


class ChartTests(SynchronousTestCase):
    """The charts"""

    def test_rates_by_topic(self) -> None:
        page = page_of(row(0, "orders", 50), row(0, "users", 20), row(2, "orders", 30))
        messages, volume, age, size, senders = drawn(page)
        assert series(messages) == {"orders": [5, 0, 3], "users": [2, 0, 0]}
        assert series(volume) == {"orders": [500, 0, 300], "users": [200, 0, 0]}
        assert series(age) == {"p50": [20, None, 20], "p95": [40, None, 40], "p99": [60, None, 60]}
        assert series(size)["p99"] == [300, None, 300]
        assert series(senders) == {"orders": [2, 0, 2], "users": [2, 0, 0]}
        assert times(page) == [START.timestamp() + 10 * n for n in range(3)]
        # A stack: the first series includes those after it.
        assert [each["drawn"] for each in messages["series"]] == [[7, 0, 3], [2, 0, 0]]
        assert [chart["unit"] for chart in drawn(page)] == ["1/s", "B/s", "ms", "B", ""]

    def test_topics_beyond_the_limit_are_one_series(self) -> None:
        rows = row(0, "a", 10), row(0, "b", 30), row(0, "c", 20), row(1, "a", 40)
        first = drawn(page_of(*rows, topics=1))[0]
        assert series(first) == {"a": [1, 4], "all others": [5, 0]}

    def test_many_windows_are_drawn_together(self) -> None:
        page = page_of(*(row(window, "t", 10) for window in range(500)))
        (values,) = series(drawn(page)[0]).values()
        # Three windows a point, and two in the last point.
        assert len(values) == 167
        assert set(values[:-1]) == {1}
        assert "30 s a point" in page

    def test_late_messages_have_a_chart_of_their_own(self) -> None:
        late = late_rows({int(START.timestamp()) + LENGTH * 2: 7}, LENGTH)
        page = report(pa.concat_tables([table(row(0, "t", 1)), late]), "metrics", 8)
        last = drawn(page)[-1]
        assert series(last) == {"late": [0, 7]}
        assert last["kind"] == "bar"
        assert facts(page)["too late"] == "7"

    def test_the_number_of_colours_is_limited_to_distinguishable_ones(self) -> None:
        rows = (row(0, f"t{number}", 10 - number) for number in range(10))
        first = drawn(page_of(*rows, topics=10))[0]
        colours = [each["colour"] for each in first["series"]]
        assert len(set(colours[:8])) == 8
        assert colours[8] == colours[9]


class PageTests(SynchronousTestCase):
    """The text around the charts"""

    def test_facts(self) -> None:
        page = page_of(row(0, "orders", 1_234_567, age_p99=12_000), row(0, "users", 1))
        assert facts(page) == {
            "messages": "1,234,568",
            "bytes": "123 MB",
            "topics": "2",
            "oldest when read (p99)": "12 s",
            "too late": "0",
        }
        assert "2026-03-01 12:00:00 to 2026-03-01 12:00:10 UTC, 10 s a point" in page

    def test_topics_by_the_number_of_their_messages(self) -> None:
        page = page_of(row(0, "few", 5), row(0, "many", 2_000), row(1, "few", 6, senders=3))
        assert cells(page) == [
            ["many", "2,000", "200 kB", "100 B", "400 B", "20 ms", "60 ms", "2"],
            ["few", "11", "1.1 kB", "100 B", "400 B", "20 ms", "60 ms", "3"],
        ]

    def test_large_numbers(self) -> None:
        page = page_of(row(0, "t", 10, bytes=25 * 10**12, size_max=3 * 10**9))
        ((_, _, nbytes, _, largest, *_),) = cells(page)
        assert (nbytes, largest) == ("25 TB", "3 GB")
        page = page_of(row(0, "t", 10, bytes=999_499, size_max=999_600))
        ((_, _, nbytes, _, largest, *_),) = cells(page)
        assert (nbytes, largest) == ("999 kB", "1 MB")

    def test_minutes(self) -> None:
        wide = row(0, "t", 10, window_end=START + timedelta(minutes=5))  # type: ignore[arg-type]
        assert "5 min a point" in page_of(wide)

    def test_names_cannot_be_markup(self) -> None:
        names = "</script><b>x", "a&b", "n" * 50
        page = page_of(*(row(0, name, 3 - number) for number, name in enumerate(names)))
        assert [line[0] for line in cells(page)] == [
            "&lt;/script&gt;&lt;b&gt;x", "a&amp;b", "n" * 50
        ]  # fmt: skip
        assert "<b>" not in page
        assert list(series(drawn(page)[0])) == list(names)

    def test_it_makes_no_network_requests(self) -> None:
        page = page_of(row(0, "t", 1))
        assert "Content-Security-Policy\" content=\"default-src 'none';" in page
        assert not re.search(r'(src|href)="(?!data:)', page[: page.index("<script")])
        assert len(page) < 300_000

    def test_a_table_without_rows(self) -> None:
        page = page_of()
        assert drawn(page) == []
        assert "<section" not in page


class CommandTests(SynchronousTestCase):
    """The command, with Delta tables"""

    def setUp(self) -> None:
        self.directory = scratch(self)
        self.path = self.directory / "metrics"

    def write(self, data: pa.Table, schema: pa.Schema = SCHEMA, by: str = "day") -> None:
        """Write a Delta table with these rows."""
        parts = PartitionWriter(str(self.path), (by,))
        for batch in data.combine_chunks().to_batches():
            parts.add(batch)
        Delta(str(self.path), schema, (by,)).commit(parts.finish(), "query", 0)

    def run_command(self, *options: str) -> tuple[int, str, str]:
        """Return the exit code, standard output and standard error of the command."""
        output, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(output), redirect_stderr(errors):
            code = command.main(["pipeline", "report", str(self.path), *options])
        return code, output.getvalue(), errors.getvalue()

    def refused(self) -> str:
        """Return the error of the command."""
        code, output, errors = self.run_command()
        assert (code, output) == (1, "")
        assert errors.startswith(f"pubsub: {self.path}: ")
        return errors

    def test_the_page_replaces_the_one_before(self) -> None:
        self.write(table(*(row(window, "t", window) for window in range(6))))
        to = self.directory / "report.html"
        to.write_text("old")
        limits = "--since", "2026-03-01T12:00:20Z", "--until", "2026-03-01T12:00:40Z"
        assert self.run_command("--to", str(to), *limits) == (0, f"{to}\n", "")
        assert facts(to.read_text())["messages"] == "5"
        assert sorted(path.name for path in self.directory.iterdir()) == ["metrics", "report.html"]

    def test_a_page_that_cannot_be_written(self) -> None:
        self.write(table(*(row(window, "é🦊", window) for window in range(6))))
        to = self.directory / "report.html"
        to.write_text("old")

        def write(path: Path, text: str, encoding: str) -> None:
            path.write_bytes(text.encode(encoding)[:100])
            raise OSError(errno.ENOSPC, "No space left on device")

        with patch.object(Path, "write_text", write):
            found = self.run_command("--to", str(to))
        assert found == (1, "", f"pubsub: {to}: No space left on device\n")
        assert to.read_text() == "old"
        assert sorted(path.name for path in self.directory.iterdir()) == ["metrics", "report.html"]
        assert self.run_command("--to", str(to))[0] == 0
        assert "é🦊" in to.read_text(encoding="utf-8")

    def test_no_table(self) -> None:
        self.refused()

    def test_another_table(self) -> None:
        schema = pa.schema([("topic", pa.string()), ("messages", pa.int64())])
        other = pa.Table.from_pylist([{"topic": "t", "messages": 1}], schema)
        self.write(other, schema, "topic")
        assert "window_start, window_end, bytes, age_p99, late" in self.refused()

    def test_a_damaged_table(self) -> None:
        self.write(table(row(0, "t", 1)))
        for log in (self.path / "_delta_log").glob("*.json"):
            log.write_text("{")
        self.refused()
