"""The dashboard's tables with 10,000 rows, of a broker that does not exist."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, Route, expect

from tests.browser.dashboard_tab import DashboardTab
from tests.browser.fake_broker import FakeBroker

# Milliseconds by which a frame may take longer than one in which nothing moves, and the attempts of
# which one must be smooth: other work on the computer delays some.
_SMOOTH, _ATTEMPTS = 100, 10
_SCROLL = """async (pixels) => {
    const box = document.querySelector(".scroller"), times = [];
    box.scrollTop = 0;
    let last = performance.now();
    for (let at = 0; at < 60; at += 1) {
        box.scrollTop += pixels;
        await new Promise(requestAnimationFrame);
        times.push(performance.now() - last);
        last = performance.now();
    }
    return times.sort((a, b) => a - b)[30];
}"""


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Yield the address of the broker that does not exist."""
    yield from served(FakeBroker())


def served(broker: FakeBroker) -> Iterator[str]:
    """Yield the address of ``broker`` while it serves."""
    thread = threading.Thread(target=broker.server.serve_forever, daemon=True)
    thread.start()
    yield broker.url
    broker.server.shutdown()
    broker.server.server_close()


def test_all_rows_are_there_and_few_are_elements(browser: Browser, url: str) -> None:
    tab = DashboardTab(browser, url, hash="#/topics")
    expect(tab.page.locator(".figures")).to_have_text("10,000 topics")
    expect(tab.page.locator("table.rows")).to_have_attribute("aria-rowcount", "10001")
    assert tab.rows().count() < 60
    tab.page.locator(".scroller").evaluate("box => { box.scrollTop = box.scrollHeight; }")
    expect(tab.rows().last).to_have_attribute("aria-rowindex", "10001")
    expect(tab.rows().last).to_contain_text("<script>")
    tab.close()


def test_scrolling_is_smooth(browser: Browser, url: str) -> None:
    tab = DashboardTab(browser, url, hash="#/sessions")
    expect(tab.page.locator(".figures")).to_have_text("10,000 sessions")

    def is_smooth() -> bool:
        still = tab.page.evaluate(_SCROLL, 0)
        return bool(tab.page.evaluate(_SCROLL, 6000) < _SMOOTH + still)

    assert any(is_smooth() for _ in range(_ATTEMPTS))
    tab.close()


def test_headings_sort(browser: Browser, url: str) -> None:
    tab = DashboardTab(browser, url, hash="#/topics")
    expect(tab.page.locator(".figures")).to_have_text("10,000 topics")
    heading = tab.page.locator("th[data-column=messages]")
    expect(heading).to_have_attribute("aria-sort", "descending")
    cells = tab.page.locator(".rows tbody tr:not(.spacer) td:nth-child(4)")
    numbers = [int(text.replace(",", "")) for text in cells.all_inner_texts()]
    assert numbers == sorted(numbers, reverse=True)
    assert numbers[0] > 999_000
    heading.get_by_role("button").click()
    expect(heading).to_have_attribute("aria-sort", "ascending")
    expect(cells.first).to_have_text("0")
    tab.close()


def test_filters(browser: Browser, url: str) -> None:
    tab = DashboardTab(browser, url, hash="#/topics")
    expect(tab.page.locator(".figures")).to_have_text("10,000 topics")
    search = tab.page.get_by_role("searchbox")
    search.fill("Device-0999")
    expect(tab.page.locator(".figures")).to_have_text("4 of 10,000 topics")
    search.fill("*/*-00/*9")
    expect(tab.page.locator(".figures")).to_have_text("10 of 10,000 topics")
    search.fill("nothing of this kind")
    expect(tab.page.locator(".state")).to_contain_text("No topic matches")
    search.fill("")
    expect(tab.page.locator(".figures")).to_have_text("10,000 topics")
    tab.go("#/sessions")
    tab.page.get_by_role("combobox").select_option("rheos")
    expect(tab.page.locator(".figures")).to_have_text("1,667 of 10,000 sessions")
    tab.close()


def test_a_filter_at_the_end_of_the_list_shows_rows_at_once(browser: Browser, url: str) -> None:
    tab = DashboardTab(browser, url, hash="#/topics")
    expect(tab.page.locator(".figures")).to_have_text("10,000 topics")
    box = tab.page.locator(".scroller")
    box.evaluate("box => { box.scrollTop = box.scrollHeight; }")
    expect(tab.rows().last).to_have_attribute("aria-rowindex", "10001")
    # In the frame after that in which the table was filtered.
    count = tab.page.evaluate("""async () => {
        const search = document.querySelector("input[type=search]");
        const figures = document.querySelector(".figures");
        search.value = "hall-50";
        search.dispatchEvent(new Event("input"));
        await new Promise(resolve => new MutationObserver(resolve).observe(
            figures, { childList: true, characterData: true, subtree: true }));
        await new Promise(requestAnimationFrame);
        return document.querySelectorAll(".rows tbody tr:not(.spacer)").length;
    }""")
    assert count > 10
    expect(tab.rows().last).to_have_attribute("aria-rowindex", "101")
    tab.close()


@pytest.fixture
def longer() -> Iterator[str]:
    """Yield the address of a broker with more topics than a table shows."""
    broker = FakeBroker()
    topics = broker.rows["topics"]
    topics += [topics[0] | {"name": name} for name in ("Rooms[3]", "rooms3", "É" * 127, "X" * 255)]
    yield from served(broker)


def test_filters_of_a_longer_list(browser: Browser, longer: str) -> None:
    tab = DashboardTab(browser, longer, hash="#/topics")
    expect(tab.page.locator(".figures")).to_have_text("The first 10,000; filter to find others")
    search = tab.page.get_by_role("searchbox")
    for text, name in (
        ("rooms[3", "Rooms[3]"),
        ("ROOMS[?]", "Rooms[3]"),
        ("oOms3", "rooms3"),
        ("é" * 127, "É" * 127),
        ("x" * 255, "X" * 255),
    ):
        search.fill(text)
        expect(tab.page.locator(".rows tbody th")).to_have_text([name])
        expect(tab.page.locator(".figures")).to_have_text("1 topic")
    tab.close()


# What becomes of the request that the page follows the broker by.
_ANSWERS: dict[str, Callable[[Route], None]] = {
    "Live": lambda route: route.continue_(),
    "Connecting": lambda route: None,
    "Disconnected": lambda route: route.abort(),
    "Token needed": lambda route: route.fulfill(status=401, json={"error": "unauthorized"}),
}


@pytest.mark.parametrize("phase", _ANSWERS)
def test_a_page_of_320_pixels(browser: Browser, url: str, phase: str) -> None:
    tab = DashboardTab(browser, url, width=320, hash="#/topics/" + "x" * 255, failures=True)
    tab.page.route("**/status*", _ANSWERS[phase])
    tab.page.reload()
    expect(tab.page.locator(".pill")).to_have_text(phase)
    expect(tab.page.get_by_role("link", name="pubsub", exact=True)).to_be_visible()
    if phase == "Live":
        expect(tab.page.get_by_role("button", name="Manage")).to_be_visible()
    assert tab.overflow() <= 0
    tab.close()


def test_rows_by_the_keyboard(browser: Browser, url: str) -> None:
    tab = DashboardTab(browser, url, hash="#/topics")
    expect(tab.page.locator(".figures")).to_have_text("10,000 topics")
    press = tab.page.keyboard.press
    press("/")
    tab.page.keyboard.type("hall-50")
    tab.page.get_by_role("button", name="Name").click()
    expect(tab.page.locator(".figures")).to_have_text("100 of 10,000 topics")
    tab.page.locator(".rows tbody a[tabindex='0']").focus()
    press("ArrowDown")
    press("ArrowDown")
    assert focused(tab) == "sensors/hall-50/device-05002"
    press("End")
    assert focused(tab) == "sensors/hall-50/device-05099"
    press("PageUp")
    press("Home")
    assert focused(tab) == "sensors/hall-50/device-05000"
    press("Enter")
    tab.heading("sensors/hall-50/device-05000")
    tab.close()


def test_the_tab_key_reaches_a_row_in_view(browser: Browser, url: str) -> None:
    tab = DashboardTab(browser, url, hash="#/topics")
    expect(tab.page.locator(".figures")).to_have_text("10,000 topics")
    stop = tab.page.locator(".rows tbody a[tabindex='0']")
    for heading in ("Name", "Messages"):
        # The rows that were read first are anywhere now.
        tab.page.get_by_role("button", name=heading).click()
        expect(stop).to_have_count(1)
        expect(tab.rows().first.locator("a")).to_have_attribute("tabindex", "0")
    stop.focus()
    tab.page.keyboard.press("End")
    expect(tab.rows().last.locator("a")).to_have_attribute("tabindex", "0")
    tab.page.locator(".scroller").evaluate("box => { box.scrollTop = 0; }")
    expect(tab.rows().first).to_have_attribute("aria-rowindex", "2")
    expect(tab.rows().first.locator("a")).to_have_attribute("tabindex", "0")
    expect(stop).to_have_count(1)
    tab.close()


def focused(tab: DashboardTab) -> str:
    """Return the text of the element with the focus."""
    return str(tab.page.evaluate("document.activeElement.textContent"))
