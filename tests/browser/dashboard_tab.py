"""A tab of the dashboard in the browser, with the errors that occurred."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Locator, Page, expect

SCREENSHOTS = Path(__file__).parents[2] / ".venv" / "screenshots"
THEMES = ("light", "dark")
WIDTHS = (400, 1400)
# Lines of chromium itself about a request that was refused or did not reach the broker.
_REQUEST_FAILED = "Failed to load resource: "
_WATCH = """
globalThis.violations = [];
document.addEventListener("securitypolicyviolation",
    (event) => violations.push(`${event.violatedDirective} ${event.blockedURI}`));
"""


class DashboardTab:
    """A tab with the dashboard of ``url``.

    Requests that fail are errors unless ``failures`` is true, which may change.
    """

    def __init__(
        self,
        browser: Browser,
        url: str,
        width: int = 1400,
        theme: str = "light",
        hash: str = "",
        failures: bool = False,
    ) -> None:
        self._url = url
        self.errors: list[str] = []
        self.failures = failures
        context = browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if theme == "dark" else "light",
            reduced_motion="reduce",
            locale="en-GB",
        )
        self.page: Page = context.new_page()
        self.page.add_init_script(_WATCH)
        self.page.on("console", lambda said: self._said(said.type, said.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("dialog", lambda dialog: self.errors.append(f"dialog: {dialog.message}"))
        self.page.on("request", lambda request: self._requested(request.url))
        self.page.goto(url + hash)

    def _said(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not (
            self.failures and text.startswith(_REQUEST_FAILED)
        ):
            self.errors.append(f"{kind}: {text}")

    def _requested(self, url: str) -> None:
        if not url.startswith((self._url, "data:", "blob:")):
            self.errors.append(f"another host: {url}")

    def go(self, hash: str) -> None:
        """Go to a page, such as #/topics, and wait until it is shown."""
        self.page.evaluate("(hash) => { location.hash = hash; }", hash)

    def heading(self, text: str) -> None:
        """Wait for the heading of a page."""
        expect(self.page.locator("h1")).to_have_text(text)

    def live(self) -> None:
        """Wait until the page follows the broker."""
        expect(self.page.locator(".pill")).to_have_text("Live")

    def rows(self) -> Locator:
        """Return the rows of the table that are in view."""
        return self.page.locator(".rows tbody tr:not(.spacer)")

    def overflow(self) -> int:
        """Return the number of pixels by which the page is wider than its window."""
        script = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        return int(self.page.evaluate(script))

    def cut_heads(self) -> list[str]:
        """Return the heads of columns that do not fit their columns."""
        # Not by scrollWidth, which is rounded.
        script = """found => found.filter(one => {
            const text = document.createRange();
            text.selectNodeContents(one);
            return text.getBoundingClientRect().width > one.getBoundingClientRect().width + 0.01;
        }).map(one => one.textContent)"""
        heads = self.page.locator(".rows thead .sort span:first-child")
        cut: list[str] = heads.evaluate_all(script)
        return cut

    def barriers(self) -> list[str]:
        """Return the findings of axe-core, except minor ones."""
        found: list[dict[str, Any]] = Axe().run(self.page).response["violations"]
        return [
            f"{one['id']}: {node['html'][:200]} {node['failureSummary']}"
            for one in found
            if one["impact"] != "minor"
            for node in one["nodes"]
        ]

    def screenshot(self, name: str, full: bool = True) -> Path:
        """Leave a picture and return its path."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{re.sub(r'[^a-z0-9-]', '-', name)}.png"
        self.page.screenshot(path=path, full_page=full, animations="disabled")
        return path

    def close(self) -> None:
        """Close the tab; it had no errors and kept to the policy."""
        violations = self.page.evaluate("globalThis.violations")
        self.page.context.close()
        assert violations == [], violations
        assert self.errors == [], self.errors
