"""The report in a browser: every chart is drawn, without errors and network requests."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from pubsub.commands import command
from pubsub.pipeline.jobs.metrics import SCHEMA, late_rows
from pubsub.pipeline.tables.delta import Delta
from pubsub.pipeline.tables.files import PartitionWriter
from tests.browser.dashboard_tab import SCREENSHOTS

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

    def __init__(self, browser: Browser, file: Path, width: int, scheme: str = "light") -> None:
        self.page: Page = browser.new_page(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
        )
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


def chart(tab: PageVisit, number: int) -> Locator:
    """Return a chart once it is drawn, which it is when it comes into view."""
    section = tab.page.locator(f"[data-chart='{number}']")
    section.scroll_into_view_if_needed()
    section.locator("canvas").wait_for(timeout=10_000)
    return section


def painted(section: Locator) -> set[str]:
    """Return the colours of more than a few pixels of a chart."""
    script = """(canvas) => {
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const seen = {};
        for (let at = 0; at < data.length; at += 4)
            if (data[at + 3] > 200) {
                const colour = data.slice(at, at + 3).join();
                seen[colour] = (seen[colour] ?? 0) + 1;
            }
        return Object.keys(seen).filter((colour) => seen[colour] > 40);
    }"""
    return set(section.locator("canvas").evaluate(script))


def extent(section: Locator, entry: int) -> tuple[float, float]:
    """Return the first and the last place of a series in a chart, as parts of its width."""
    script = """(canvas, wanted) => {
        const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
        const found = [];
        for (let at = 0; at < data.length; at += 4)
            if (data[at + 3] > 200 && `rgb(${data.slice(at, at + 3).join(", ")})` === wanted)
                found.push((at / 4) % canvas.width / canvas.width);
        return [Math.min(...found), Math.max(...found)];
    }"""
    mark = section.locator(".legend li").nth(entry).locator("i")
    wanted = mark.evaluate("(mark) => getComputedStyle(mark).backgroundColor")
    low, high = section.locator("canvas").evaluate(script, wanted)
    return low, high


def test_a_single_window_is_in_the_middle_of_a_minute(browser: Browser, tmp_path: Path) -> None:
    file = report(table(tmp_path / "metrics", rows(1, TOPICS[:1])))
    tab = PageVisit(browser, file, 1400)
    for number in range(5):
        low, high = extent(chart(tab, number), 0)
        assert 0.4 < low < high < 0.7
    tab.check(file)


def test_windows_between_gaps_are_drawn(browser: Browser, tmp_path: Path) -> None:
    every = rows(101, TOPICS[:1])
    file = report(table(tmp_path / "metrics", every.take([0, 50, 100])))
    tab = PageVisit(browser, file, 1400)
    for number in (2, 3):
        low, high = extent(chart(tab, number), 2)
        assert low < 0.2
        assert high > 0.9
    tab.check(file)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
def test_every_chart_is_drawn(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    late = late_rows({int(START.timestamp()) + 10 * n: 5 * n for n in range(1, 40)}, 10)
    file = report(table(tmp_path / "metrics", rows(400, TOPICS), late))
    assert file.stat().st_size < 1_000_000
    tab = PageVisit(browser, file, width, scheme)
    for number, lines in enumerate((9, 9, 3, 3, 8, 1)):
        section = chart(tab, number)
        assert section.locator(".legend li").count() == lines
        assert len(painted(section)) >= lines
        assert all(section.locator("output").all_inner_texts())
    assert chart(tab, 4).locator("output").all_inner_texts() == [str(n) for n in range(1, 9)]
    names = tab.page.locator(".topics td:first-child").all_inner_texts()
    assert set(names) == set(TOPICS)
    assert names[0] == "orders"
    assert tab.overflow() <= 0
    tab.page.evaluate("scrollTo(0, 0)")
    tab.page.screenshot(path=str(SCREENSHOTS / f"report-{scheme}-{width}.png"), full_page=True)
    tab.check(file)


def test_the_pointer_shows_the_values_of_one_time_in_every_chart(
    browser: Browser, tmp_path: Path
) -> None:
    tab = PageVisit(browser, report(table(tmp_path / "metrics", rows(100, TOPICS[:1]))), 1400)
    first, second = chart(tab, 0), chart(tab, 1)
    expect(first.locator("h2 time")).to_have_text("highest")
    first.locator(".u-over").hover(position={"x": 2, "y": 50})
    for section in (first, second):
        expect(section.locator("h2 time")).to_have_text("2026-03-01 12:00:00")
    expect(first.locator("output")).to_have_text("135")
    expect(second.locator("output")).to_have_text("13.5 kB")


def test_charts_follow_the_window(browser: Browser, tmp_path: Path) -> None:
    file = report(table(tmp_path / "metrics", rows(30, TOPICS[:2])))
    tab = PageVisit(browser, file, 1600)
    drawn = chart(tab, 0).locator(".uplot")
    tab.page.set_viewport_size({"width": 500, "height": 900})
    expect(drawn).to_have_css("width", re.compile(r"4\d\d(\.\d+)?px"))
    assert tab.overflow() <= 0
    tab.check(file)


def test_charts_follow_the_theme(browser: Browser, tmp_path: Path) -> None:
    tab = PageVisit(browser, report(table(tmp_path / "metrics", rows(30, TOPICS[:1]))), 1000)
    section = chart(tab, 0)
    light = painted(section)
    tab.page.emulate_media(color_scheme="dark")
    assert painted(chart(tab, 0)).isdisjoint(light)


SCROLLED = """element => new Promise(
    done => element.scrollLeft ? done() : element.addEventListener("scroll", () => done())
)"""
"""Ends when the element is scrolled; the page's policy does not let Playwright poll for that."""


def test_a_wide_table_scrolls_by_keyboard_on_a_phone(browser: Browser, tmp_path: Path) -> None:
    tab = PageVisit(browser, report(table(tmp_path / "metrics", rows(3, TOPICS))), 400)
    scroller = tab.page.locator(".scroller")
    expect(tab.page.locator(".hint")).to_be_visible()
    scroller.focus()
    tab.page.keyboard.press("ArrowRight")
    scroller.evaluate(SCROLLED)


@pytest.mark.parametrize("empty", ["no rows", "no rows in this time", "one window"])
def test_few_or_no_rows(browser: Browser, tmp_path: Path, empty: str) -> None:
    count = 0 if empty == "no rows" else 1
    more = ["--since", "2030-01-01T00:00:00Z"] if empty == "no rows in this time" else []
    path = table(tmp_path / "metrics", rows(count, TOPICS[:1]))
    file = report(path, *more)
    tab = PageVisit(browser, file, 1000)
    if empty == "one window":
        assert len(painted(chart(tab, 0))) >= 1
    else:
        assert "The table has no rows in this time range" in tab.page.inner_text("body")
        assert tab.page.locator("section").count() == 0
    tab.check(file)


def test_another_table_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["pipeline", "report", str(tmp_path / "none")]) == 1
    assert "not a Delta table" in capsys.readouterr().err
    assert command.main(["pipeline", "report", str(tmp_path), "--since", "yesterday"]) == 1
    assert "--since: expected a time" in capsys.readouterr().err
