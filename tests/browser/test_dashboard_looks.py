"""Every page of the dashboard in both themes and two widths, with pictures in .venv/screenshots.

Axe-core finds nothing serious, nothing is wider than the window, the browser reports no error, and
the policy is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.dashboard_visit import THEMES, WIDTHS, Visit
from tests.browser.screenshots import busy_broker, choose_message, enter, show_list
from tests.browser.traffic import EveryProtocol

LISTS = ("topics", "sessions", "readers", "listeners", "refusals", "audit")
OPENED_HERE = {
    "readers": ["Owner", "Position"],
    "listeners": ["Endpoint", "TLS", "Anonymous"],
    "refusals": ["Last client"],
    "audit": ["Details"],
}
"""Lists whose rows are dialogs, and some of what these show."""
EMPTY_LISTS = {"peers": "This broker has no peers", "slow": "Every subscriber keeps up"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EveryProtocol]:
    """Yield a broker with traffic."""
    directory: Path = tmp_path_factory.mktemp("broker")
    with busy_broker(directory) as broker:
        yield broker


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_every_page(browser: Browser, broker: EveryProtocol, width: int, theme: str) -> None:
    visit = enter(browser, broker, width, theme)

    def look(name: str) -> None:
        assert visit.barriers() == [], name
        assert visit.overflow() <= 0, name
        visit.screenshot(f"{name}-{width}-{theme}")

    look("overview")
    choose_message(visit)
    look("topic")
    for view in ("Publish", "Subscribers", "Manage"):
        visit.page.get_by_role("button", name=view).click()
        look(f"topic-{view.lower()}")
    for button, name in (("Close with a key", "key"), ("Delete the topic", "delete")):
        visit.page.get_by_role("button", name=button).click()
        look(f"topic-{name}")
        visit.page.keyboard.press("Escape")
    for name in LISTS:
        show_list(visit, f"#/{name}")
        assert visit.cut_heads() == [], name
        look(name)
        if name in OPENED_HERE:
            _open_row(visit, look, name)
    for name, text in EMPTY_LISTS.items():
        visit.go(f"#/{name}")
        expect(visit.page.locator(".state")).to_contain_text(text)
        look(name)
    visit.go("#/store")
    expect(visit.page.locator(".facts")).to_contain_text("Next offset")
    look("store")
    _dialogs(visit, look)
    visit.close()


def _open_row(visit: Visit, look: Callable[[str], None], name: str) -> None:
    """Show all that a row has, also what a narrow table leaves out."""
    visit.rows().first.get_by_role("button").focus()
    visit.page.keyboard.press("Enter")
    dialog = visit.page.get_by_role("dialog")
    for label in OPENED_HERE[name]:
        expect(dialog.locator("dt", has_text=label)).to_be_visible()
    look(f"{name}-row")
    visit.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def _dialogs(visit: Visit, look: Callable[[str], None]) -> None:
    show_list(visit, "#/topics")
    visit.page.get_by_role("button", name="New topic").click()
    look("new-topic")
    visit.page.keyboard.press("Escape")
    show_list(visit, "#/sessions")
    visit.rows().nth(1).get_by_role("link").click()
    expect(visit.page.locator(".facts")).to_contain_text("Mark in events")
    look("session")
    for button, name in (("Disconnect", "disconnect"), ("Token", "token")):
        visit.page.get_by_role("button", name=button).click()
        look(name)
        visit.page.keyboard.press("Escape")


def test_a_chosen_theme_stays(browser: Browser, broker: EveryProtocol) -> None:
    visit = enter(browser, broker, 1400, "light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = visit.page.evaluate(colour)
    for label in ("Theme: light", "Theme: dark"):
        visit.page.get_by_role("button", name="Theme").click()
        expect(visit.page.get_by_role("button", name=label)).to_be_visible()
    dark = visit.page.evaluate(colour)
    assert dark != light
    visit.page.reload()
    visit.live()
    assert visit.page.evaluate(colour) == dark
    visit.page.emulate_media(color_scheme="dark")
    visit.page.get_by_role("button", name="Theme").click()
    assert visit.page.evaluate(colour) == dark
    visit.page.emulate_media(color_scheme="light")
    assert visit.page.evaluate(colour) == light
    visit.close()


def test_the_menu_of_a_narrow_page(browser: Browser, broker: EveryProtocol) -> None:
    visit = enter(browser, broker, 400, "light")
    menu = visit.page.get_by_role("button", name="Pages")
    expect(visit.page.get_by_role("navigation")).not_to_be_visible()
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    assert visit.barriers() == []
    visit.screenshot("menu-400-light")
    visit.page.keyboard.press("Escape")
    expect(visit.page.get_by_role("navigation")).not_to_be_visible()
    menu.click()
    visit.page.get_by_role("link", name="Topics").click()
    visit.heading("Topics")
    expect(visit.page.get_by_role("navigation")).not_to_be_visible()
    expect(visit.rows()).not_to_have_count(0)
    visit.close()
