"""The page of docs/websocket.md in a browser: subscribe, publish, continue after a restart."""

from __future__ import annotations

import json
import re
import signal
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from playwright.sync_api import Browser, Page

from tests.integration.broker import HOST, Start, brokers, listen
from tests.integration.cluster import free_port
from tests.integration.fast_client import make_secret, make_token

ROOT = Path(__file__).parents[2]
PAGE = """<!doctype html><title>page</title><script>
{script}
const got = [], tokens = {tokens};
const getToken = tokens && (async () => tokens.shift() ?? Promise.reject("no token"));
addEventListener("unhandledrejection", () => got.push("unhandled"));
const client = pubsub("{url}", ["greetings"], (message) => got.push(message.value), getToken);
</script>"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves files without a log."""

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Yield a directory and the origin at which its files are served."""
    served = tmp_path / "site"
    served.mkdir()
    server = ThreadingHTTPServer((HOST, 0), partial(Quiet, directory=str(served)))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield served, f"http://{HOST}:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


class Restarted:
    """A broker with a history on disk, which can be restarted at its port."""

    def __init__(self, start: Start, directory: Path, *options: str) -> None:
        self.port = free_port()
        self._start = partial(
            start,
            *listen("cafe"),
            f"--admin-port=tcp:{self.port}:interface={HOST}",
            f"--store=log:{directory}/history",
            *options,
        )
        self.broker = self._start()

    def restart(self, kill: bool) -> None:
        """Stop the broker or kill it; publish a message with the next one."""
        if kill:
            self.broker.kill()
        else:
            self.broker.stop()
        self.broker = self._start()
        self.publish("while the page was away")

    def publish(self, value: str) -> None:
        """Publish a message without the page."""
        url = f"http://{HOST}:{self.port}/v1/topics/greetings/messages"
        urllib.request.urlopen(url, data=value.encode(), timeout=30).close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts brokers."""
    with brokers(tmp_path) as start:
        yield start


def open_page(
    browser: Browser,
    site: tuple[Path, str],
    port: int,
    tokens: list[str | None] | None = None,
    fake_clock: bool = False,
) -> Page:
    """Open the page of the documentation, with a token for each connection, or none, if any."""
    directory, origin = site
    text = (ROOT / "docs" / "websocket.md").read_text()
    (script,) = re.findall(r"```js\n(function.*?)```", text, re.DOTALL)
    assert f"These {script.count(chr(10))} lines" in text
    url = f"ws://{HOST}:{port}/v1/ws"
    content = PAGE.format(script=script, url=url, tokens=json.dumps(tokens))
    (directory / "page.html").write_text(content)
    page = browser.new_page()
    if fake_clock:
        page.clock.install()
    page.goto(f"{origin}/page.html")
    return page


def wait_for(page: Page, *values: str) -> None:
    """Wait until the page has received these messages."""
    page.wait_for_function(f"got.length >= {len(values)}")
    assert page.evaluate("got") == list(values)


PUBLISH = """async (value) => {
    while (true) {
        try { return await client.publish("greetings", value) }
        catch { await new Promise(requestAnimationFrame) }
    }
}"""
"""Publishes; while the page is not connected it tries again."""


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_the_page_goes_on_after_a_restart(
    browser: Browser, site: tuple[Path, str], start: Start, tmp_path: Path, kill: bool
) -> None:
    broker = Restarted(start, tmp_path, f"--http-origins={site[1]}")
    page = open_page(browser, site, broker.port)
    answer = page.evaluate(PUBLISH, "hello ☃")
    assert (answer["offset"], answer["level"]) == (0, "stored")
    wait_for(page, "hello ☃")
    broker.restart(kill)
    wait_for(page, "hello ☃", "while the page was away")
    page.evaluate(PUBLISH, "again")
    wait_for(page, "hello ☃", "while the page was away", "again")
    page.close()


def test_the_page_goes_on_with_another_token(
    browser: Browser, site: tuple[Path, str], start: Start, tmp_path: Path
) -> None:
    secret = make_secret(tmp_path / "secret")
    config = tmp_path / "pubsub.toml"
    config.write_text(f'secret-file = "{secret}"\nallow-anonymous = false\n')
    broker = Restarted(start, tmp_path, f"--http-origins={site[1]}", f"--config={config}")
    page = open_page(browser, site, broker.port, [None, "not a token", make_token(secret).decode()])
    page.evaluate(f"(value) => void ({PUBLISH})(value)", "hello")
    wait_for(page, "hello")
    page.close()


def test_the_page_does_not_wait_for_a_silent_connection(
    browser: Browser, site: tuple[Path, str], start: Start, tmp_path: Path
) -> None:
    broker = Restarted(start, tmp_path, f"--http-origins={site[1]}")
    page = open_page(browser, site, broker.port, fake_clock=True)
    page.evaluate(PUBLISH, "hello")
    wait_for(page, "hello")
    broker.broker.signal(signal.SIGSTOP)
    with page.expect_websocket():
        for _ in range(3):
            page.clock.fast_forward(20_000)
    broker.broker.signal(signal.SIGCONT)
    broker.publish("again")
    wait_for(page, "hello", "again")
    page.close()


def test_a_page_of_another_origin_is_refused(
    browser: Browser, site: tuple[Path, str], start: Start, tmp_path: Path
) -> None:
    broker = Restarted(start, tmp_path)
    page = open_page(browser, site, broker.port)
    # The browser may also look for an icon.
    page.wait_for_event("console", lambda message: "403" in message.text, timeout=20_000)
    assert page.evaluate("got") == []
    page.close()


def test_event_source_goes_on_after_a_restart(
    browser: Browser, site: tuple[Path, str], start: Start, tmp_path: Path
) -> None:
    broker = Restarted(start, tmp_path, f"--http-origins={site[1]}")
    page = open_page(browser, site, broker.port)
    url = f"http://{HOST}:{broker.port}/v1/topics/greetings/messages?follow=1"
    page.evaluate(
        """(url) => new Promise((resolve) => {
            globalThis.events = [];
            const source = new EventSource(url);
            source.onmessage = ({ data }) => events.push(JSON.parse(data).value);
            source.onopen = resolve;
        })""",
        url,
    )
    broker.publish("one")
    page.wait_for_function("events.length >= 1")
    broker.restart(kill=True)
    page.wait_for_function("events.length >= 2")
    assert page.evaluate("events") == ["one", "while the page was away"]
    page.close()
