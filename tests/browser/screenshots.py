"""Pictures of the dashboard, of a broker with traffic over every protocol.

``python -m tests.browser.screenshots DIRECTORY`` writes those of the documentation; it needs a
little more than a minute, which is the time that the charts show.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from playwright.sync_api import Browser, expect, sync_playwright

from tests.browser.conftest import launch
from tests.browser.dashboard_tab import THEMES, WIDTHS, DashboardTab
from tests.browser.traffic import TOPICS, EveryProtocol, waves
from tests.integration.broker import brokers

_SECONDS = 64
_TOPIC = "#/topics/cafe%2F7"


@contextmanager
def busy_broker(directory: Path) -> Iterator[EveryProtocol]:
    """Yield a broker with traffic, subscribers, readers and refusals."""
    with brokers(directory) as start, ExitStack() as stack:
        broker = EveryProtocol(start, directory)
        first = stack.enter_context(broker.connect("nsd", "first"))
        first.publish_many(TOPICS["nsd"], [b"first"] * 50, confirm=True)
        stack.enter_context(waves(broker))
        for number in range(3):
            for name, topic in TOPICS.items():
                client = stack.enter_context(broker.connect(name, f"{name}-{number:02}"))
                # The messages are far less than a client keeps for a program.
                stack.enter_context(client.subscribe(topic))
        for name, offset in (("reports/daily", 40), ("reports/hourly", 7)):
            _request(broker, "PUT", f"readers/{name.replace('/', '%2F')}", {"offset": offset})
        for _ in range(5):
            with suppress(urllib.error.HTTPError):
                _request(broker, "GET", "sessions", token="expired")
        yield broker


def _request(
    broker: EveryProtocol, method: str, path: str, body: object = None, token: str = ""
) -> None:
    """Send a request; raises HTTPError."""
    request = urllib.request.Request(
        f"{broker.url}v1/{path}",
        None if body is None else json.dumps(body).encode(),
        {"Authorization": f"Bearer {token or broker.token}"},
        method=method,
    )
    urllib.request.urlopen(request, timeout=30).close()


def enter(
    browser: Browser, broker: EveryProtocol, width: int, theme: str, token: str = ""
) -> DashboardTab:
    """Return a tab with the broker's token or another, which shows the overview with figures."""
    tab = DashboardTab(browser, broker.url, width, theme)
    tab.page.get_by_role("button", name="Token").click()
    tab.page.get_by_role("dialog").get_by_label("Token").fill(token or broker.token)
    tab.page.keyboard.press("Enter")
    tab.live()
    tab.page.locator("h1").click()
    expect(tab.page.get_by_role("table", name="Protocols").get_by_role("row")).to_have_count(7)
    return tab


def choose_message(tab: DashboardTab) -> None:
    """Show the topic's page with a message."""
    tab.go(_TOPIC)
    expect(tab.page.locator(".topic-facts")).to_contain_text("Durability")
    expect(tab.rows()).not_to_have_count(0)
    tab.page.get_by_role("button", name="Pause").click()
    tab.rows().nth(2).get_by_role("button").click()
    expect(tab.page.locator(".tree")).to_be_visible()
    # The choice has scrolled a narrow page, and the head stays where the page has scrolled to.
    tab.page.evaluate("scrollTo(0, 0)")


def show_list(tab: DashboardTab, hash: str) -> None:
    """Show a page that is a table, with rows."""
    tab.go(hash)
    expect(tab.rows()).not_to_have_count(0)


def _take_all(browser: Browser, broker: EveryProtocol, directory: Path) -> None:
    tabs = [(w, t, enter(browser, broker, w, t)) for w in WIDTHS for t in THEMES]
    time.sleep(_SECONDS)
    for width, theme, tab in tabs:
        tab.page.bring_to_front()
        _keep(tab.screenshot(f"overview-{width}-{theme}", full=False), directory)
        choose_message(tab)
        _keep(tab.screenshot(f"topic-{width}-{theme}", full=width < 1000), directory)
        show_list(tab, "#/sessions")
        _keep(tab.screenshot(f"sessions-{width}-{theme}", full=False), directory)
        tab.close()


def _keep(picture: Path, directory: Path) -> None:
    shutil.copy(picture, directory / f"dashboard-{picture.name}")


def main(directory: Path) -> None:
    """Write the pictures of the documentation."""
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory() as work, sync_playwright() as playwright:
        browser = launch(playwright)
        with busy_broker(Path(work)) as broker:
            _take_all(browser, broker, directory)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
