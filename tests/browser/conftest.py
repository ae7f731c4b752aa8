"""A browser for the tests here: Debian's chromium, without a window."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Playwright, expect, sync_playwright

# Only a broken page takes so long; milliseconds.
TIMEOUT = 30_000
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip


def launch(playwright: Playwright) -> Browser:
    """Return Chromium, which ``scripts/setup dev`` installs."""
    path = shutil.which("chromium")
    assert path is not None, "chromium is not installed: scripts/setup dev says how"
    return playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Yield the browser."""
    expect.set_options(timeout=TIMEOUT)
    with sync_playwright() as playwright:
        browser = launch(playwright)
        yield browser
        browser.close()
