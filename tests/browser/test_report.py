"""The report in a browser: every chart is drawn, without errors and network requests."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Page, expect

from pubsub.commands import command
from pubsub.pipeline.jobs.metrics import SCHEMA, late_rows
from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.files import PartitionWriter

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TOPICS = [
    "orders", "cafe/7", "<script>alert(1)</script>", "<b>&\"'", "snow ☃ and 🦊", "sensors/a/b/c",
    "é" * 127, "t7", "t8", "t9", "t10",
]  # fmt: skip


def rows(windows: int, topics: list[str]) -> pa.Table:
    """Return generated metrics: a daily wave, and a topic that pauses."""
    found = []
    for at in range(windows):
        start = START + timedelta(seconds=10 * at)
        for number, topic in enumerate(topics):
            if number == 1 and windows // 3 < at < windows // 2:
                continue
            count = round(900 / (number + 1) * (1.5 + math.sin(at / 15 + number)))
            size, age = 100 * (number + 1), 40 + 20 * math.sin(at / 10)
            points = {
                f"{name}_{point}": round(value * factor)
                for name, value in (("size", size), ("age", age))
                for point, factor in (("p50", 1), ("p95", 2), ("p99", 3), ("max", 5))
            }
            found.append(
                {"window_start": start, "window_end": start + timedelta(seconds=10),
                 "topic": topic, "messages": count, "bytes": count * size, **points,
                 "senders": number + 1, "late": 0, "day": start.date()}
            )  # fmt: skip
    return pa.Table.from_pylist(found, SCHEMA)


def table(path: Path, *parts: pa.Table) -> Path:
    """Write a metrics table with these rows and return its path."""
    for number, part in enumerate(parts):
        files = PartitionWriter(str(path), ("day",))
        for batch in part.combine_chunks().to_batches():
            files.add(batch)
        Delta(str(path), SCHEMA, ("day",)).commit(files.finish(), "q", number)
    return path


class PageVisit:
    """A page in the browser, with its errors and requests."""

    def __init__(self, browser: Browser, file: Path, width: int) -> None:
        self.page: Page = browser.new_page(viewport={"width": width, "height": 900})
        self.errors: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda said: self.errors.append(said.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("dialog", lambda dialog: self.errors.append(dialog.message))
        self.page.goto(file.as_uri())

    def check(self, file: Path) -> None:
        """Open the page and check that it has no errors, console output or further requests."""
        assert self.errors == []
        asked = [url for url in self.requests if not url.startswith(("data:", "blob:"))]
        assert asked == [file.as_uri()]

    def overflow(self) -> int:
        """Return the number of pixels by which the page is wider than its window."""
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.page.evaluate(script))


def report(path: Path, *more: str) -> Path:
    """Write the page with the command and return its path."""
    to = path.parent / "report.html"
    assert command.main(["pipeline", "report", str(path), "--to", str(to), *more]) == 0
    return to


@pytest.mark.parametrize("width", [390, 1600])
def test_every_chart_is_drawn(browser: Browser, tmp_path: Path, width: int) -> None:
    late = late_rows({int(START.timestamp()) + 10 * n: 5 * n for n in range(1, 40)}, 10)
    file = report(table(tmp_path / "metrics", rows(400, TOPICS), late))
    visit = PageVisit(browser, file, width)
    visit.page.wait_for_selector("#chart-5 .main-svg")
    for number, lines in enumerate((9, 9, 3, 3, 8)):
        drawn = visit.page.locator(f"#chart-{number} .scatterlayer .trace")
        assert drawn.count() == lines, number
        box = visit.page.locator(f"#chart-{number} .scatterlayer").bounding_box()
        assert box is not None
        assert box["width"] > 0.5 * min(width, 700)
        assert box["height"] > 100
    assert visit.page.locator("#chart-5 .bars .point").count() > 10
    names = visit.page.locator(".topics td:first-child").all_inner_texts()
    assert set(names) == set(TOPICS)
    assert names[0] == "orders"
    assert visit.overflow() <= 0
    visit.page.screenshot(path=str(tmp_path / f"report-{width}.png"), full_page=True)
    visit.check(file)


def test_charts_follow_the_window(browser: Browser, tmp_path: Path) -> None:
    file = report(table(tmp_path / "metrics", rows(30, TOPICS[:2])))
    visit = PageVisit(browser, file, 1600)
    visit.page.wait_for_selector("#chart-4 .main-svg")
    visit.page.set_viewport_size({"width": 500, "height": 900})
    drawn = visit.page.locator("#chart-0 .main-svg").first
    expect(drawn).to_have_attribute("width", re.compile(r"4\d\d(\.\d+)?"))
    assert visit.overflow() <= 0
    visit.check(file)


@pytest.mark.parametrize("empty", ["no rows", "no rows in this time", "one window"])
def test_few_or_no_rows(browser: Browser, tmp_path: Path, empty: str) -> None:
    count = 0 if empty == "no rows" else 1
    more = ["--since", "2030-01-01T00:00:00Z"] if empty == "no rows in this time" else []
    path = table(tmp_path / "metrics", rows(count, TOPICS[:1]))
    file = report(path, *more)
    visit = PageVisit(browser, file, 1000)
    if empty == "one window":
        visit.page.wait_for_selector("#chart-4 .main-svg")
        assert visit.page.locator("#chart-0 .point").count() == 1
    else:
        assert "The table has no rows in this time range" in visit.page.inner_text("body")
        assert visit.page.locator("section").count() == 0
    visit.check(file)


def test_another_table_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["pipeline", "report", str(tmp_path / "none")]) == 1
    assert "not a Delta table" in capsys.readouterr().err
    assert command.main(["pipeline", "report", str(tmp_path), "--since", "yesterday"]) == 1
    assert "--since: expected a time" in capsys.readouterr().err
