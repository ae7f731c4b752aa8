"""The dashboard of a real broker: traffic, topics, sessions, tokens, a broker that goes away."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from pubsub.client.blocking import Client, connect
from tests.browser.conftest import TIMEOUT
from tests.browser.dashboard_tab import DashboardTab
from tests.browser.screenshots import enter
from tests.browser.traffic import TOPICS, EveryProtocol, publishers
from tests.integration.broker import HOST, Broker, Start, brokers
from tests.integration.cluster import free_port
from tests.integration.fast_client import make_token

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
# Milliseconds within which traffic is shown, and the bursts of which one must be: other work on
# the computer may delay most.
SOON, BURSTS = 2000, 20


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts brokers."""
    with brokers(tmp_path) as start:
        yield start


class Plain:
    """A broker with cafe and nsd, without a secret, that can be restarted at its port."""

    def __init__(self, start: Start, directory: Path) -> None:
        self.port, self._start, self._directory = free_port(), start, directory
        self.broker = self.begin()

    def begin(self) -> Broker:
        """Start it, again if it was stopped."""
        self.broker = self._start(
            f"--listen=cafe=tcp:0:interface={HOST}",
            f"--listen=nsd=tcp:0:interface={HOST}",
            f"--admin-port=tcp:{self.port}:interface={HOST}",
            f"--store=log:{self._directory}/history",
            "--name=broker-a",
        )
        return self.broker

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}/"

    def publish(self, topic: str, *payloads: str) -> None:
        """Publish messages over HTTP."""
        lines = "".join(json.dumps({"value": one}) + "\n" for one in payloads)
        urllib.request.urlopen(
            urllib.request.Request(
                f"{self.url}v1/topics/{quote(topic, safe='')}/messages",
                lines.encode(),
                {"Content-Type": "application/x-ndjson"},
            ),
            timeout=30,
        ).close()


@pytest.fixture
def plain(start: Start, tmp_path: Path) -> Plain:
    """Return a broker without a secret."""
    return Plain(start, tmp_path)


def test_traffic_of_every_protocol_is_shown_soon(
    browser: Browser, start: Start, tmp_path: Path
) -> None:
    broker = EveryProtocol(start, tmp_path)
    tab = DashboardTab(browser, broker.url)
    tab.live()
    with publishers(broker) as clients:
        sent = dict.fromkeys(TOPICS, 0)
        for name, client in clients.items():
            client.publish(TOPICS[name], b"first", confirm=True)
            sent[name] += 1
        assert any(shown_soon(tab, clients, sent) for _ in range(BURSTS))
    tab.close()


def test_the_name_of_the_broker(browser: Browser, plain: Plain) -> None:
    tab = DashboardTab(browser, plain.url)
    tab.live()
    expect(tab.page.locator("header .broker-name")).to_have_text("broker-a")
    tab.close()


def shown_soon(tab: DashboardTab, clients: dict[str, Client], sent: dict[str, int]) -> bool:
    """Publish over each protocol; return whether the page shows all of it in time."""
    for name, client in clients.items():
        client.publish_many(TOPICS[name], [b"x"] * 10, confirm=True)
        sent[name] += 10
    table = tab.page.get_by_role("table", name="Protocols")
    try:
        for name, count in sent.items():
            row = table.get_by_role("row").filter(has_text=name)
            expect(row.get_by_role("cell").nth(4)).to_have_text(f"{count}", timeout=SOON)
    except AssertionError:
        return False
    return True


def test_a_topic_is_followed_looked_back_at_and_published_on(
    browser: Browser, plain: Plain
) -> None:
    plain.publish("orders/2026", *(json.dumps({"order": n}) for n in range(20)))
    tab = DashboardTab(browser, plain.url, hash="#/topics")
    tab.page.get_by_role("searchbox").fill("2026")
    tab.page.get_by_role("link", name="orders/2026").click()
    tab.heading("orders/2026")
    expect(tab.rows().first).to_contain_text('{"order": 19}')
    plain.publish("orders/2026", "while it is followed")
    expect(tab.rows().first).to_contain_text("while it is followed")

    tab.page.get_by_role("button", name="Look back").click()
    expect(tab.rows().first).to_contain_text('{"order": 0}')
    tab.page.get_by_label("Look back to", exact=True).select_option("time")
    tab.page.get_by_label("Time to look back to").fill("2001-01-01T00:00:00")
    expect(tab.rows().first).to_contain_text('{"order": 0}')
    expect(tab.page.locator(".toolbar .figures")).to_have_text("21 to the end")

    tab.page.get_by_role("button", name="Publish").click()
    tab.page.get_by_label("Payload").fill('{"order": 21, "items": ["tea", {"sugar": null}]}')
    tab.page.get_by_label("Sender").fill("señor")
    tab.page.get_by_label("Headers").fill("unit: C\nnote: a: b")
    tab.page.locator("form.publish").get_by_role("button", name="Publish").click()
    expect(tab.page.locator(".publish-result")).to_contain_text("stored at offset 21")

    tab.page.get_by_role("button", name="Messages").click()
    tab.page.get_by_role("button", name="Live").click()
    expect(tab.rows().first).to_contain_text('{"order": 21')
    tab.rows().first.get_by_role("button").click()
    detail = tab.page.locator(".detail")
    expect(detail).to_contain_text("señor")
    expect(detail).to_contain_text("Header note")
    expect(detail.locator(".tree")).to_contain_text('0: "tea"')
    detail.get_by_role("button", name="Hex").click()
    expect(detail.locator("pre")).to_contain_text("7b 22 6f 72 64 65 72 22")
    detail.get_by_role("button", name="Text").click()
    expect(detail.locator("pre")).to_have_text('{"order": 21, "items": ["tea", {"sugar": null}]}')
    tab.close()


def test_a_chosen_message_is_in_view_on_a_narrow_page(browser: Browser, plain: Plain) -> None:
    plain.publish("orders/2026", *(json.dumps({"order": n}) for n in range(30)))
    tab = DashboardTab(browser, plain.url, 400, hash="#/topics/orders%2F2026")
    expect(tab.rows().first).to_contain_text('{"order": 29}')
    expect(tab.page.locator(".detail")).not_to_be_in_viewport()
    tab.rows().nth(3).get_by_role("button").click()
    expect(tab.page.locator(".detail .tree")).to_be_in_viewport()
    expect(tab.page.locator(".detail .tree")).to_contain_text("26")
    tab.close()


def test_the_last_messages_of_a_topic_are_shown_at_first(browser: Browser, plain: Plain) -> None:
    plain.publish("quiet[1]*", "early", "last")
    plain.publish("busy", *map(str, range(1200)))
    tab = DashboardTab(browser, plain.url, hash="#/topics/quiet%5B1%5D*")
    expect(tab.rows()).to_have_count(2)
    expect(tab.rows().first).to_contain_text("last")
    plain.publish("quiet[1]*", "next")
    expect(tab.rows()).to_have_count(3)
    tab.close()


def test_they_are_shown_after_a_restart_too(browser: Browser, plain: Plain) -> None:
    plain.publish("quiet", "early", "last")
    plain.publish("busy", *map(str, range(1200)))
    plain.broker.stop()
    plain.begin()
    tab = DashboardTab(browser, plain.url, hash="#/topics/quiet")
    expect(tab.rows()).to_have_count(2)
    expect(tab.rows().first).to_contain_text("last")
    tab.close()


def test_stored_messages_do_not_come_too_fast(browser: Browser, plain: Plain) -> None:
    plain.publish("t", *map(str, range(600)))
    tab = DashboardTab(browser, plain.url)
    tab.live()
    tab.page.clock.set_fixed_time(time.time() + 60)
    tab.go("#/topics/t")
    expect(tab.page.locator("table.rows")).to_have_attribute("aria-rowcount", "501")
    expect(tab.rows().first).to_contain_text("599")
    tab.close()


def test_a_paused_topic_holds_new_messages(browser: Browser, plain: Plain) -> None:
    plain.publish("t", "one")
    tab = DashboardTab(browser, plain.url, hash="#/topics/t")
    expect(tab.rows()).to_have_count(1)
    tab.page.get_by_role("button", name="Pause").click()
    plain.publish("t", "two", "three")
    expect(tab.page.locator(".toolbar .figures")).to_have_text("2 new")
    expect(tab.rows()).to_have_count(1)
    tab.page.get_by_role("button", name="Resume").click()
    expect(tab.rows()).to_have_count(3)
    expect(tab.rows().first).to_contain_text("three")
    tab.close()


def test_a_mistaken_publish_says_why(browser: Browser, plain: Plain) -> None:
    # Its first request is for a topic that does not exist, unless the tail has subscribed before.
    tab = DashboardTab(browser, plain.url, hash="#/topics/new", failures=True)
    tab.page.get_by_role("button", name="Publish").click()
    form = tab.page.locator("form.publish")
    form.get_by_label("Payload").fill("{not json")
    form.get_by_label("Kind").select_option("json")
    form.get_by_role("button", name="Publish").click()
    expect(form.get_by_role("alert")).to_contain_text("The payload is not JSON")
    form.get_by_label("Kind").select_option("hex")
    form.get_by_role("button", name="Publish").click()
    expect(form.get_by_role("alert")).to_contain_text("The payload is not hexadecimal")
    form.get_by_label("Payload").fill("00 ff 10")
    form.get_by_role("button", name="Publish").click()
    expect(form.locator(".publish-result")).to_contain_text("stored at offset 0")
    tab.page.get_by_role("button", name="Messages").click()
    expect(tab.rows().first).to_contain_text("00 ff 10")
    tab.close()


def test_a_session_is_disconnected_with_a_reason(browser: Browser, plain: Plain) -> None:
    url = f"cafe://{HOST}:{plain.broker.port('cafe')}"
    with connect(url, client_id="till-4") as client, client.subscribe("cafe/7"):
        tab = DashboardTab(browser, plain.url, hash="#/sessions")
        tab.page.get_by_role("link", name="till-4").first.click()
        expect(tab.page.locator("h1")).to_contain_text("till-4")
        expect(tab.rows()).to_have_count(1)
        expect(tab.rows().first).to_contain_text("cafe/7")
        tab.page.get_by_role("button", name="Disconnect").click()
        dialog = tab.page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("moved to another broker")
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        tab.page.get_by_role("button", name="Disconnect").click()
        dialog.get_by_label("Reason").fill("moved to another broker")
        tab.failures = True
        dialog.get_by_role("button", name="Disconnect").click()
        expect(tab.page.locator(".page-head")).to_contain_text("gone")
        plain.broker.wait_line("moved to another broker")
        tab.go("#/audit")
        expect(tab.rows().first).to_contain_text("moved to another broker")
        tab.close()


def test_a_wrong_token_says_so(browser: Browser, start: Start, tmp_path: Path) -> None:
    broker = EveryProtocol(start, tmp_path)
    tab = DashboardTab(browser, broker.url, hash="#/sessions", failures=True)
    dialog = tab.page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("This broker asks for a token")
    dialog.get_by_label("Token").fill("wrong")
    tab.page.keyboard.press("Enter")
    expect(dialog.get_by_role("heading")).to_have_text("The broker refused the token")
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    tab.page.keyboard.press("Escape")
    expect(tab.page.locator(".pill")).to_have_text("Token needed")
    tab.page.locator(".notice").get_by_role("button").click()
    dialog.get_by_label("Token").fill(broker.token)
    tab.page.keyboard.press("Enter")
    tab.live()
    expect(tab.page.locator(".figures")).to_contain_text("session")
    tab.page.reload()
    tab.live()
    expect(tab.page.locator(".figures")).to_contain_text("session")
    expect(dialog).to_have_count(0)
    assert broker.token not in tab.page.url
    assert tab.page.evaluate("sessionStorage.getItem('pubsub.token')") == broker.token
    assert tab.page.evaluate("localStorage.length") == 0
    tab.close()


def test_a_token_that_expires_is_asked_for_again(
    browser: Browser, start: Start, tmp_path: Path
) -> None:
    broker = EveryProtocol(start, tmp_path)
    begun = time.monotonic()
    enter(browser, broker, 1400, "light").close()
    # The token has to be valid for longer than a busy computer takes to show the page.
    seconds = 4 + 2 * round(time.monotonic() - begun)
    token = make_token(broker.secret, f"--expires={seconds}s", permission="*").decode()
    tab = enter(browser, broker, 1400, "light", token)
    tab.failures = True
    expect(tab.page.get_by_role("dialog")).to_be_visible(timeout=TIMEOUT + 1000 * seconds)
    expect(tab.page.locator(".pill")).to_have_text("Token needed")
    tab.page.keyboard.press("Escape")
    assert "undefined" not in tab.page.locator("body").inner_text()
    tab.go("#/topics")
    tab.heading("Topics")
    tab.page.keyboard.press("Escape")
    tab.go("#/")
    tab.heading("Overview")
    tab.close()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_broker_that_goes_away_and_comes_back(browser: Browser, plain: Plain, kill: bool) -> None:
    plain.publish("t", "before")
    tab = DashboardTab(browser, plain.url, hash="#/topics/t")
    tab.failures = True
    tab.live()
    expect(tab.rows()).to_have_count(1)
    if kill:
        plain.broker.kill()
    else:
        plain.broker.stop()
    expect(tab.page.locator(".pill")).to_have_text("Disconnected")
    expect(tab.page.locator(".notice")).to_contain_text("The next attempt is in")
    # The parts of the page know it, and leave it to the notice to say it.
    expect(tab.page.locator(".problem.away")).to_have_count(1)
    expect(tab.page.get_by_role("alert")).to_have_count(1)
    expect(tab.page.locator(".topic-facts")).to_contain_text("Durability")
    plain.begin()
    plain.publish("t", "after")
    tab.live()
    expect(tab.page.locator(".notice")).to_have_count(0)
    expect(tab.rows()).to_have_count(2)
    expect(tab.rows().first).to_contain_text("after")
    tab.close()


def test_names_and_payloads_stay_text(browser: Browser, plain: Plain) -> None:
    plain.publish(SCRIPT, SCRIPT, json.dumps({SCRIPT: SCRIPT}))
    url = f"cafe://{HOST}:{plain.broker.port('cafe')}"
    with connect(url, client_id=SCRIPT) as client, client.subscribe("cafe/7"):
        tab = DashboardTab(browser, plain.url, hash="#/topics")
        tab.page.get_by_role("link", name=SCRIPT).click()
        tab.heading(SCRIPT)
        assert tab.page.title() == f"{SCRIPT} · pubsub"
        expect(tab.rows()).to_have_count(2)
        expect(tab.rows().last).to_contain_text(SCRIPT)
        for number, view in ((0, "JSON"), (1, "Text"), (0, "Hex")):
            tab.rows().nth(number).get_by_role("button").click()
            tab.page.get_by_role("button", name=view, exact=True).click()
        tab.go("#/sessions")
        tab.page.get_by_role("link", name=SCRIPT).first.click()
        expect(tab.page.locator("h1")).to_contain_text(SCRIPT)
        tab.page.get_by_role("button", name="Disconnect").click()
        expect(tab.page.get_by_role("dialog")).to_contain_text(SCRIPT)
        assert tab.page.locator("img:not(.mark)").count() == 0
        assert tab.page.locator("script").count() == 2
        tab.close()


def test_a_name_cannot_turn_the_text_around(browser: Browser, plain: Plain) -> None:
    plain.publish("paid\u202egnp.exe", "\u2066value")
    tab = DashboardTab(browser, plain.url, hash="#/topics")
    tab.page.get_by_role("link", name="paid\\u202egnp.exe").click()
    tab.heading("paid\\u202egnp.exe")
    expect(tab.rows().last).to_contain_text("\\u2066value")
    tab.close()


def test_a_topic_is_created_re_keyed_and_deleted(
    browser: Browser, start: Start, tmp_path: Path
) -> None:
    broker = EveryProtocol(start, tmp_path)
    tab = enter(browser, broker, 1400, "light")
    tab.go("#/topics")
    tab.page.get_by_role("button", name="New topic").click()
    dialog = tab.page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("plans/2027")
    dialog.get_by_label("Queue key").select_option(label="A new one, which is shown once")
    dialog.get_by_role("button", name="Create").click()
    first = new_key(tab)
    tab.heading("plans/2027")
    expect(tab.page.locator(".topic-facts")).to_contain_text("queue key")

    tab.page.get_by_role("button", name="Manage").click()
    tab.page.get_by_role("button", name="Replace the key").click()
    dialog.get_by_role("button", name="Replace", exact=True).click()
    second = new_key(tab)
    assert len(first) == len(second) == 32
    assert first != second
    assert second not in tab.page.content()

    tab.page.get_by_role("button", name="Delete the topic").click()
    delete = dialog.get_by_role("button", name="Delete", exact=True)
    dialog.get_by_label("Name of the topic").fill("plans")
    delete.click()
    expect(dialog).to_be_visible()
    dialog.get_by_label("Name of the topic").fill("plans/2027")
    delete.click()
    tab.heading("Topics")
    tab.page.get_by_role("searchbox").fill("plans/2027")
    expect(tab.page.locator(".state")).to_be_visible()
    tab.go("#/audit")
    expect(tab.rows().first).to_contain_text("delete")
    for key in (first, second):
        assert key not in tab.page.content()
        assert key not in broker.broker.output
        assert not tab.page.evaluate("key => JSON.stringify(sessionStorage).includes(key)", key)
    tab.close()


def new_key(tab: DashboardTab) -> str:
    """Return the key that is shown, and close its dialog by the keyboard."""
    dialog = tab.page.get_by_role("dialog", name="The queue key of")
    key = dialog.get_by_label("New key").input_value()
    assert tab.barriers() == []
    tab.page.keyboard.press("Enter")
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    return key


def test_a_dialog_ends_with_its_page(browser: Browser, plain: Plain) -> None:
    plain.publish("t", "one")
    tab = DashboardTab(browser, plain.url, hash="#/topics")
    tab.heading("Topics")
    tab.go("#/topics/t")
    tab.page.get_by_role("button", name="Manage").click()
    tab.page.get_by_role("button", name="Delete the topic").click()
    expect(tab.page.get_by_role("dialog")).to_be_visible()
    tab.page.go_back()
    tab.heading("Topics")
    expect(tab.page.get_by_role("dialog")).to_have_count(0)
    expect(tab.rows().filter(has_text="t").first).to_be_visible()
    tab.close()


def test_changes_of_a_topic_without_the_right_say_so(
    browser: Browser, start: Start, tmp_path: Path
) -> None:
    broker = EveryProtocol(start, tmp_path)
    token = make_token(
        broker.secret, "--permission=history", "--permission=publish", permission="metrics"
    ).decode()
    with broker.connect("nsd", "first") as client:
        client.publish("orders", b"x", confirm=True)
    tab = enter(browser, broker, 400, "dark", token)
    tab.failures = True
    dialog = tab.page.get_by_role("dialog")
    tab.go("#/topics")
    tab.page.get_by_role("button", name="New topic").click()
    dialog.get_by_label("Name").fill("mine")
    tab.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("Permission denied: create topic 'mine'.")
    assert tab.barriers() == []
    tab.page.keyboard.press("Escape")
    tab.go("#/topics/orders")
    tab.page.get_by_role("button", name="Manage").click()
    tab.page.get_by_role("button", name="Delete the topic").click()
    dialog.get_by_label("Name of the topic").fill("orders")
    tab.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("Permission denied: delete topic 'orders'.")
    tab.page.keyboard.press("Escape")
    tab.page.get_by_role("button", name="Close with a key").click()
    dialog.get_by_label("Queue key").select_option(label="One that I enter")
    dialog.get_by_role("button", name="Close with the key").click()
    dialog.get_by_label("Key to use").fill("k1")
    tab.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("Permission denied")
    tab.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    tab.close()


def test_a_topic_is_created_by_the_keyboard_alone(browser: Browser, plain: Plain) -> None:
    tab = DashboardTab(browser, plain.url, hash="#/topics")
    tab.live()
    reach(tab, "New topic…")
    tab.page.keyboard.type("by-keys")
    tab.page.keyboard.press("Enter")
    tab.heading("by-keys")
    expect(tab.page.locator(".topic-facts")).to_contain_text("Durability")
    reach(tab, "Manage")
    reach(tab, "Delete the topic…")
    tab.page.keyboard.type("by-keys")
    tab.page.keyboard.press("Enter")
    tab.heading("Topics")
    tab.close()


def reach(tab: DashboardTab, text: str) -> None:
    """Press the button with this text, by the keyboard."""
    expect(tab.page.get_by_role("button", name=text)).to_be_visible()
    for _ in range(60):
        if focused(tab) == text:
            break
        tab.page.keyboard.press("Tab")
    assert focused(tab) == text
    tab.page.keyboard.press("Enter")


def test_by_the_keyboard_alone(browser: Browser, plain: Plain) -> None:
    plain.publish("orders", "one")
    tab = DashboardTab(browser, plain.url)
    tab.live()
    press = tab.page.keyboard.press
    press("Tab")
    assert focused(tab) == "Skip to the content"
    tab_to(tab, "Topics")
    press("Enter")
    tab.heading("Topics")
    expect(tab.rows()).not_to_have_count(0)
    press("/")
    tab.page.keyboard.type("orders")
    expect(tab.page.locator(".toolbar .figures")).to_contain_text("1 of")
    tab_to(tab, "orders")
    press("Enter")
    tab.heading("orders")
    tab.close()


def focused(tab: DashboardTab) -> str:
    """Return the text of the element with the focus."""
    return str(tab.page.evaluate("document.activeElement.textContent"))


def tab_to(tab: DashboardTab, text: str) -> None:
    """Press Tab until the element with this text has the focus."""
    for _ in range(20):
        tab.page.keyboard.press("Tab")
        if focused(tab) == text:
            return
    raise AssertionError(f"the focus does not reach {text}")
