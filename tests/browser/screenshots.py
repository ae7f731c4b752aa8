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
from tests.browser.dashboard_visit import THEMES, WIDTHS, Visit
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
) -> Visit:
    """Return a visit with the broker's token or another, which shows the overview with figures."""
    visit = Visit(browser, broker.url, width, theme)
    visit.page.get_by_role("button", name="Token").click()
    visit.page.get_by_role("dialog").get_by_label("Token").fill(token or broker.token)
    visit.page.keyboard.press("Enter")
    visit.live()
    visit.page.locator("h1").click()
    expect(visit.page.get_by_role("table", name="Protocols").get_by_role("row")).to_have_count(7)
    return visit


def choose_message(visit: Visit) -> None:
    """Show the topic's page with a message."""
    visit.go(_TOPIC)
    expect(visit.page.locator(".topic-facts")).to_contain_text("Durability")
    expect(visit.rows()).not_to_have_count(0)
    visit.page.get_by_role("button", name="Pause").click()
    visit.rows().nth(2).get_by_role("button").click()
    expect(visit.page.locator(".tree")).to_be_visible()


def show_list(visit: Visit, hash: str) -> None:
    """Show a page that is a table, with rows."""
    visit.go(hash)
    expect(visit.rows()).not_to_have_count(0)


def _take_all(browser: Browser, broker: EveryProtocol, directory: Path) -> None:
    visits = [(w, t, enter(browser, broker, w, t)) for w in WIDTHS for t in THEMES]
    time.sleep(_SECONDS)
    for width, theme, visit in visits:
        visit.page.bring_to_front()
        _keep(visit.screenshot(f"overview-{width}-{theme}", full=False), directory)
        choose_message(visit)
        _keep(visit.screenshot(f"topic-{width}-{theme}", full=width < 1000), directory)
        show_list(visit, "#/sessions")
        _keep(visit.screenshot(f"sessions-{width}-{theme}", full=False), directory)
        visit.close()


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
