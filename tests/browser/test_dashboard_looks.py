"""Every page of the dashboard in both themes and two widths, with pictures in .venv/screenshots.

Axe-core finds nothing serious, nothing is wider than the window, the browser reports no error, and
the policy is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.browser.dashboard_tab import THEMES, WIDTHS, DashboardTab
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
    tab = enter(browser, broker, width, theme)

    def look(name: str) -> None:
        assert tab.barriers() == [], name
        assert tab.overflow() <= 0, name
        tab.screenshot(f"{name}-{width}-{theme}")

    look("overview")
    choose_message(tab)
    look("topic")
    for view in ("Publish", "Subscribers", "Manage"):
        tab.page.get_by_role("button", name=view).click()
        look(f"topic-{view.lower()}")
    for button, name in (("Close with a key", "key"), ("Delete the topic", "delete")):
        tab.page.get_by_role("button", name=button).click()
        look(f"topic-{name}")
        tab.page.keyboard.press("Escape")
    for name in LISTS:
        show_list(tab, f"#/{name}")
        assert tab.cut_heads() == [], name
        look(name)
        if name in OPENED_HERE:
            _open_row(tab, look, name)
    for name, text in EMPTY_LISTS.items():
        tab.go(f"#/{name}")
        expect(tab.page.locator(".state")).to_contain_text(text)
        look(name)
    tab.go("#/store")
    expect(tab.page.locator(".facts")).to_contain_text("Next offset")
    look("store")
    _dialogs(tab, look)
    tab.close()


def _open_row(tab: DashboardTab, look: Callable[[str], None], name: str) -> None:
    """Show all that a row has, also what a narrow table leaves out."""
    tab.rows().first.get_by_role("button").focus()
    tab.page.keyboard.press("Enter")
    dialog = tab.page.get_by_role("dialog")
    for label in OPENED_HERE[name]:
        expect(dialog.locator("dt", has_text=label)).to_be_visible()
    look(f"{name}-row")
    tab.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def _dialogs(tab: DashboardTab, look: Callable[[str], None]) -> None:
    show_list(tab, "#/topics")
    tab.page.get_by_role("button", name="New topic").click()
    look("new-topic")
    tab.page.keyboard.press("Escape")
    show_list(tab, "#/sessions")
    tab.rows().nth(1).get_by_role("link").click()
    expect(tab.page.locator(".facts")).to_contain_text("Mark in events")
    look("session")
    for button, name in (("Disconnect", "disconnect"), ("Token", "token")):
        tab.page.get_by_role("button", name=button).click()
        look(name)
        tab.page.keyboard.press("Escape")


def test_a_chosen_theme_stays(browser: Browser, broker: EveryProtocol) -> None:
    tab = enter(browser, broker, 1400, "light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = tab.page.evaluate(colour)
    for label in ("Theme: light", "Theme: dark"):
        tab.page.get_by_role("button", name="Theme").click()
        expect(tab.page.get_by_role("button", name=label)).to_be_visible()
    dark = tab.page.evaluate(colour)
    assert dark != light
    tab.page.reload()
    tab.live()
    assert tab.page.evaluate(colour) == dark
    tab.page.emulate_media(color_scheme="dark")
    tab.page.get_by_role("button", name="Theme").click()
    assert tab.page.evaluate(colour) == dark
    tab.page.emulate_media(color_scheme="light")
    assert tab.page.evaluate(colour) == light
    tab.close()


def test_the_menu_of_a_narrow_page(browser: Browser, broker: EveryProtocol) -> None:
    tab = enter(browser, broker, 400, "light")
    menu = tab.page.get_by_role("button", name="Pages")
    expect(tab.page.get_by_role("navigation")).not_to_be_visible()
    menu.click()
    expect(menu).to_have_attribute("aria-expanded", "true")
    assert tab.barriers() == []
    tab.screenshot("menu-400-light")
    tab.page.keyboard.press("Escape")
    expect(tab.page.get_by_role("navigation")).not_to_be_visible()
    menu.click()
    tab.page.get_by_role("link", name="Topics").click()
    tab.heading("Topics")
    expect(tab.page.get_by_role("navigation")).not_to_be_visible()
    expect(tab.rows()).not_to_have_count(0)
    tab.close()
