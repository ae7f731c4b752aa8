"""The dashboard of a real broker: traffic, topics, sessions, tokens, a broker that goes away."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, expect

from pubsub.client.blocking import Client, connect
from tests.browser.dashboard_visit import Visit
from tests.browser.screenshots import enter
from tests.browser.traffic import TOPICS, EveryProtocol, publishers
from tests.integration.broker import HOST, Broker, Start, brokers
from tests.integration.cluster import free_port
from tests.integration.fast_client import make_token

SCRIPT = "<script>alert(1)</script><img src=x onerror=alert(2)>"
# Milliseconds within which traffic is shown, and the bursts of which one must be: other work on
# the computer may delay some.
SOON, BURSTS = 2000, 5


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
    visit = Visit(browser, broker.url)
    visit.live()
    with publishers(broker) as clients:
        sent = dict.fromkeys(TOPICS, 0)
        for name, client in clients.items():
            client.publish(TOPICS[name], b"first", confirm=True)
            sent[name] += 1
        shown = [shown_soon(visit, clients, sent) for _ in range(BURSTS)]
    assert any(shown)
    visit.close()


def shown_soon(visit: Visit, clients: dict[str, Client], sent: dict[str, int]) -> bool:
    """Publish over each protocol; return whether the page shows all of it in time."""
    for name, client in clients.items():
        client.publish_many(TOPICS[name], [b"x"] * 10, confirm=True)
        sent[name] += 10
    table = visit.page.get_by_role("table", name="Protocols")
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
    visit = Visit(browser, plain.url, hash="#/topics")
    visit.page.get_by_role("searchbox").fill("2026")
    visit.page.get_by_role("link", name="orders/2026").click()
    visit.heading("orders/2026")
    expect(visit.rows().first).to_contain_text('{"order": 19}')
    plain.publish("orders/2026", "while it is followed")
    expect(visit.rows().first).to_contain_text("while it is followed")

    visit.page.get_by_role("button", name="Look back").click()
    expect(visit.rows().first).to_contain_text('{"order": 0}')
    visit.page.get_by_label("Look back to", exact=True).select_option("time")
    visit.page.get_by_label("Time to look back to").fill("2001-01-01T00:00:00")
    expect(visit.rows().first).to_contain_text('{"order": 0}')
    expect(visit.page.locator(".toolbar .figures")).to_have_text("21 to the end")

    visit.page.get_by_role("button", name="Publish").click()
    visit.page.get_by_label("Payload").fill('{"order": 21, "items": ["tea", {"sugar": null}]}')
    visit.page.get_by_label("Sender").fill("señor")
    visit.page.get_by_label("Headers").fill("unit: C\nnote: a: b")
    visit.page.locator("form.publish").get_by_role("button", name="Publish").click()
    expect(visit.page.locator(".publish-result")).to_contain_text("stored at offset 21")

    visit.page.get_by_role("button", name="Messages").click()
    visit.page.get_by_role("button", name="Live").click()
    expect(visit.rows().first).to_contain_text('{"order": 21')
    visit.rows().first.get_by_role("button").click()
    detail = visit.page.locator(".detail")
    expect(detail).to_contain_text("señor")
    expect(detail).to_contain_text("Header note")
    expect(detail.locator(".tree")).to_contain_text('0: "tea"')
    detail.get_by_role("button", name="Hex").click()
    expect(detail.locator("pre")).to_contain_text("7b 22 6f 72 64 65 72 22")
    detail.get_by_role("button", name="Text").click()
    expect(detail.locator("pre")).to_have_text('{"order": 21, "items": ["tea", {"sugar": null}]}')
    visit.close()


def test_a_paused_topic_holds_new_messages(browser: Browser, plain: Plain) -> None:
    plain.publish("t", "one")
    visit = Visit(browser, plain.url, hash="#/topics/t")
    expect(visit.rows()).to_have_count(1)
    visit.page.get_by_role("button", name="Pause").click()
    plain.publish("t", "two", "three")
    expect(visit.page.locator(".toolbar .figures")).to_have_text("2 new")
    expect(visit.rows()).to_have_count(1)
    visit.page.get_by_role("button", name="Resume").click()
    expect(visit.rows()).to_have_count(3)
    expect(visit.rows().first).to_contain_text("three")
    visit.close()


def test_a_mistaken_publish_says_why(browser: Browser, plain: Plain) -> None:
    # Its first request is for a topic that does not exist, unless the tail has subscribed before.
    visit = Visit(browser, plain.url, hash="#/topics/new", failures=True)
    visit.page.get_by_role("button", name="Publish").click()
    form = visit.page.locator("form.publish")
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
    visit.page.get_by_role("button", name="Messages").click()
    expect(visit.rows().first).to_contain_text("00 ff 10")
    visit.close()


def test_a_session_is_disconnected_with_a_reason(browser: Browser, plain: Plain) -> None:
    url = f"cafe://{HOST}:{plain.broker.port('cafe')}"
    with connect(url, client_id="till-4") as client, client.subscribe("cafe/7"):
        visit = Visit(browser, plain.url, hash="#/sessions")
        visit.page.get_by_role("link", name="till-4").first.click()
        expect(visit.page.locator("h1")).to_contain_text("till-4")
        expect(visit.rows()).to_have_count(1)
        expect(visit.rows().first).to_contain_text("cafe/7")
        visit.page.get_by_role("button", name="Disconnect").click()
        dialog = visit.page.get_by_role("dialog")
        dialog.get_by_label("Reason").fill("moved to another broker")
        dialog.get_by_role("button", name="Cancel").click()
        expect(dialog).to_have_count(0)
        visit.page.get_by_role("button", name="Disconnect").click()
        dialog.get_by_label("Reason").fill("moved to another broker")
        visit.failures = True
        dialog.get_by_role("button", name="Disconnect").click()
        expect(visit.page.locator(".page-head")).to_contain_text("gone")
        plain.broker.wait_line("moved to another broker")
        visit.go("#/audit")
        expect(visit.rows().first).to_contain_text("moved to another broker")
        visit.close()


def test_a_wrong_token_says_so(browser: Browser, start: Start, tmp_path: Path) -> None:
    broker = EveryProtocol(start, tmp_path)
    visit = Visit(browser, broker.url, hash="#/sessions", failures=True)
    dialog = visit.page.get_by_role("dialog")
    expect(dialog.get_by_role("heading")).to_have_text("This broker asks for a token")
    dialog.get_by_label("Token").fill("wrong")
    visit.page.keyboard.press("Enter")
    expect(dialog.get_by_role("heading")).to_have_text("The broker refused the token")
    expect(dialog.get_by_role("alert")).not_to_be_empty()
    visit.page.keyboard.press("Escape")
    expect(visit.page.locator(".pill")).to_have_text("Token needed")
    visit.page.locator(".notice").get_by_role("button").click()
    dialog.get_by_label("Token").fill(broker.token)
    visit.page.keyboard.press("Enter")
    visit.live()
    expect(visit.page.locator(".figures")).to_contain_text("session")
    visit.page.reload()
    visit.live()
    expect(visit.page.locator(".figures")).to_contain_text("session")
    expect(dialog).to_have_count(0)
    assert broker.token not in visit.page.url
    assert visit.page.evaluate("sessionStorage.getItem('pubsub.token')") == broker.token
    assert visit.page.evaluate("localStorage.length") == 0
    visit.close()


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_a_broker_that_goes_away_and_comes_back(browser: Browser, plain: Plain, kill: bool) -> None:
    plain.publish("t", "before")
    visit = Visit(browser, plain.url, hash="#/topics/t")
    visit.failures = True
    visit.live()
    expect(visit.rows()).to_have_count(1)
    if kill:
        plain.broker.kill()
    else:
        plain.broker.stop()
    expect(visit.page.locator(".pill")).to_have_text("Disconnected")
    expect(visit.page.locator(".notice")).to_contain_text("The next attempt is in")
    plain.begin()
    plain.publish("t", "after")
    visit.live()
    expect(visit.page.locator(".notice")).to_have_count(0)
    expect(visit.rows()).to_have_count(2)
    expect(visit.rows().first).to_contain_text("after")
    visit.close()


def test_names_and_payloads_stay_text(browser: Browser, plain: Plain) -> None:
    plain.publish(SCRIPT, SCRIPT, json.dumps({SCRIPT: SCRIPT}))
    url = f"cafe://{HOST}:{plain.broker.port('cafe')}"
    with connect(url, client_id=SCRIPT) as client, client.subscribe("cafe/7"):
        visit = Visit(browser, plain.url, hash="#/topics")
        visit.page.get_by_role("link", name=SCRIPT).click()
        visit.heading(SCRIPT)
        assert visit.page.title() == f"{SCRIPT} · pubsub"
        expect(visit.rows()).to_have_count(2)
        expect(visit.rows().last).to_contain_text(SCRIPT)
        for number, view in ((0, "JSON"), (1, "Text"), (0, "Hex")):
            visit.rows().nth(number).get_by_role("button").click()
            visit.page.get_by_role("button", name=view, exact=True).click()
        visit.go("#/sessions")
        visit.page.get_by_role("link", name=SCRIPT).first.click()
        expect(visit.page.locator("h1")).to_contain_text(SCRIPT)
        visit.page.get_by_role("button", name="Disconnect").click()
        expect(visit.page.get_by_role("dialog")).to_contain_text(SCRIPT)
        assert visit.page.locator("img:not(.mark)").count() == 0
        assert visit.page.locator("script").count() == 2
        visit.close()


def test_a_topic_is_created_re_keyed_and_deleted(
    browser: Browser, start: Start, tmp_path: Path
) -> None:
    broker = EveryProtocol(start, tmp_path)
    visit = enter(browser, broker, 1400, "light")
    visit.go("#/topics")
    visit.page.get_by_role("button", name="New topic").click()
    dialog = visit.page.get_by_role("dialog")
    dialog.get_by_label("Name").fill("plans/2027")
    dialog.get_by_label("Queue key").select_option(label="A new one, which is shown once")
    dialog.get_by_role("button", name="Create").click()
    first = new_key(visit)
    visit.heading("plans/2027")
    expect(visit.page.locator(".topic-facts")).to_contain_text("queue key")

    visit.page.get_by_role("button", name="Manage").click()
    visit.page.get_by_role("button", name="Replace the key").click()
    dialog.get_by_role("button", name="Replace", exact=True).click()
    second = new_key(visit)
    assert len(first) == len(second) == 32
    assert first != second
    assert second not in visit.page.content()

    visit.page.get_by_role("button", name="Delete the topic").click()
    delete = dialog.get_by_role("button", name="Delete", exact=True)
    dialog.get_by_label("Name of the topic").fill("plans")
    delete.click()
    expect(dialog).to_be_visible()
    dialog.get_by_label("Name of the topic").fill("plans/2027")
    delete.click()
    visit.heading("Topics")
    visit.page.get_by_role("searchbox").fill("plans/2027")
    expect(visit.page.locator(".state")).to_be_visible()
    visit.go("#/audit")
    expect(visit.rows().first).to_contain_text("delete")
    for key in (first, second):
        assert key not in visit.page.content()
        assert key not in broker.broker.output
        assert not visit.page.evaluate("key => JSON.stringify(sessionStorage).includes(key)", key)
    visit.close()


def new_key(visit: Visit) -> str:
    """Return the key that is shown, and close its dialog by the keyboard."""
    dialog = visit.page.get_by_role("dialog", name="The queue key of")
    key = dialog.get_by_label("New key").input_value()
    assert visit.barriers() == []
    visit.page.keyboard.press("Enter")
    expect(visit.page.get_by_role("dialog")).to_have_count(0)
    return key


def test_changes_of_a_topic_without_the_right_say_so(
    browser: Browser, start: Start, tmp_path: Path
) -> None:
    broker = EveryProtocol(start, tmp_path)
    token = make_token(
        broker.secret, "--permission=history", "--permission=publish", permission="metrics"
    ).decode()
    with broker.connect("nsd", "first") as client:
        client.publish("orders", b"x", confirm=True)
    visit = enter(browser, broker, 400, "dark", token)
    visit.failures = True
    dialog = visit.page.get_by_role("dialog")
    visit.go("#/topics")
    visit.page.get_by_role("button", name="New topic").click()
    dialog.get_by_label("Name").fill("mine")
    visit.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("Permission denied: create topic 'mine'.")
    assert visit.barriers() == []
    visit.page.keyboard.press("Escape")
    visit.go("#/topics/orders")
    visit.page.get_by_role("button", name="Manage").click()
    visit.page.get_by_role("button", name="Delete the topic").click()
    dialog.get_by_label("Name of the topic").fill("orders")
    visit.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_have_text("Permission denied: delete topic 'orders'.")
    visit.page.keyboard.press("Escape")
    visit.page.get_by_role("button", name="Close with a key").click()
    dialog.get_by_label("Queue key").select_option(label="One that I enter")
    dialog.get_by_role("button", name="Close with the key").click()
    dialog.get_by_label("Key to use").fill("k1")
    visit.page.keyboard.press("Enter")
    expect(dialog.get_by_role("alert")).to_contain_text("Permission denied")
    visit.page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    visit.close()


def test_a_topic_is_created_by_the_keyboard_alone(browser: Browser, plain: Plain) -> None:
    visit = Visit(browser, plain.url, hash="#/topics")
    visit.live()
    reach(visit, "New topic…")
    visit.page.keyboard.type("by-keys")
    visit.page.keyboard.press("Enter")
    visit.heading("by-keys")
    expect(visit.page.locator(".topic-facts")).to_contain_text("Durability")
    reach(visit, "Manage")
    reach(visit, "Delete the topic…")
    visit.page.keyboard.type("by-keys")
    visit.page.keyboard.press("Enter")
    visit.heading("Topics")
    visit.close()


def reach(visit: Visit, text: str) -> None:
    """Press the button with this text, by the keyboard."""
    expect(visit.page.get_by_role("button", name=text)).to_be_visible()
    for _ in range(60):
        if focused(visit) == text:
            break
        visit.page.keyboard.press("Tab")
    assert focused(visit) == text
    visit.page.keyboard.press("Enter")


def test_by_the_keyboard_alone(browser: Browser, plain: Plain) -> None:
    plain.publish("orders", "one")
    visit = Visit(browser, plain.url)
    visit.live()
    press = visit.page.keyboard.press
    press("Tab")
    assert focused(visit) == "Skip to the content"
    tab_to(visit, "Topics")
    press("Enter")
    visit.heading("Topics")
    expect(visit.rows()).not_to_have_count(0)
    press("/")
    visit.page.keyboard.type("orders")
    expect(visit.page.locator(".toolbar .figures")).to_contain_text("1 of")
    tab_to(visit, "orders")
    press("Enter")
    visit.heading("orders")
    visit.close()


def focused(visit: Visit) -> str:
    """Return the text of the element with the focus."""
    return str(visit.page.evaluate("document.activeElement.textContent"))


def tab_to(visit: Visit, text: str) -> None:
    """Press Tab until the element with this text has the focus."""
    for _ in range(20):
        visit.page.keyboard.press("Tab")
        if focused(visit) == text:
            return
    raise AssertionError(f"the focus does not reach {text}")
