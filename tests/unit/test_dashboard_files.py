"""The dashboard's files: their headers and their contents."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from tests.unit.web import Answer, WebHouse

DASHBOARD = Path(__file__).parents[2] / "pubsub" / "http_api" / "dashboard"
VENDORED = DASHBOARD / "vendor"
BROWSER = "text/html,application/xhtml+xml,*/*;q=0.8"
_IMPORT = re.compile(r'from "([^"]+)"')
_ASSET = re.compile(r'(?:src|href)="(dashboard/[^"]+)"')
_OTHER_HOST = re.compile(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", re.IGNORECASE)


def own_files(*kinds: str) -> list[Path]:
    """Return the files of these kinds that are written here."""
    found = [path for kind in kinds for path in DASHBOARD.rglob(f"*.{kind}")]
    return sorted(path for path in found if VENDORED not in path.parents)


class ServingTests(SynchronousTestCase):
    """GET / and /dashboard/"""

    def setUp(self) -> None:
        self.house = WebHouse()

    def get(self, path: str, **headers: str) -> Answer:
        return self.house.get(path, **headers)

    def test_browsers_get_the_page_and_others_the_list(self) -> None:
        page = self.get("/", Accept=BROWSER)
        assert page.headers["Content-Type"] == "text/html; charset=utf-8"
        assert page.body == (DASHBOARD / "index.html").read_bytes()
        plain = self.get("/", Accept="*/*")
        assert plain.headers["Content-Type"] == "text/plain; charset=utf-8"
        assert self.get("/v1").body == plain.body == self.house.get("/").body
        assert page.headers["Vary"] == plain.headers["Vary"] == "Accept"

    def test_every_file_has_the_policy_and_its_type(self) -> None:
        types = {"js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
        for path in own_files(*types):
            answer = self.get(f"/dashboard/{path.relative_to(DASHBOARD)}")
            assert answer.status == 200, path
            assert answer.body == path.read_bytes()
            assert answer.headers["Content-Type"] == types[path.suffix[1:]]
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["Cache-Control"] == "no-cache"
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy

    def test_a_cached_file_is_not_sent_again(self) -> None:
        first = self.get("/dashboard/dashboard.css")
        tag = first.headers["ETag"]
        again = self.get("/dashboard/dashboard.css", If_None_Match=tag)
        assert (again.status, again.body, again.headers["ETag"]) == (304, b"", tag)
        assert "Content-Length" not in again.headers
        other = self.get("/dashboard/dashboard.css", If_None_Match='"other"')
        assert (other.status, other.body) == (200, first.body)

    def test_head_has_no_body(self) -> None:
        client = self.house.connect()
        client.send(b"HEAD / HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\n\r\n")
        answer = client.answer("HEAD")
        assert answer.status == 200
        assert int(answer.headers["Content-Length"]) == (DASHBOARD / "index.html").stat().st_size
        assert answer.body == answer.rest == b""

    def test_other_files_are_not_found(self) -> None:
        for name in ("", "index.html", "none.js", "../server.py", "%2e%2e/server.py", "app",
                     "vendor/packages.json", "vendor/uplot/LICENSE"):  # fmt: skip
            assert self.get(f"/dashboard/{name}").error == (404, "not-found"), name

    def test_other_methods(self) -> None:
        assert self.house.post("/dashboard/dashboard.css", {}).error == (405, "method")

    def test_no_token_is_needed(self) -> None:
        answer = self.get("/dashboard/favicon.svg", Authorization="Bearer wrong")
        assert answer.status == 200


class ContentTests(SynchronousTestCase):
    """The files themselves"""

    def test_vendored_files_equal_the_published_ones(self) -> None:
        packages = json.loads((VENDORED / "packages.json").read_text())
        expected = {"packages.json"}
        for name, package in packages.items():
            assert package["source"].startswith("npm:")
            assert package["source"].endswith(f"{name}@{package['version']}")
            assert package["licence"]
            for file, digest in package["files"].items():
                path = VENDORED / name / Path(file).name
                assert sha256(path.read_bytes()).hexdigest() == digest, file
                expected.add(str(path.relative_to(VENDORED)))
            assert "LICENSE" in package["files"]
        found = {str(p.relative_to(VENDORED)) for p in VENDORED.rglob("*") if p.is_file()}
        assert found == expected

    def test_every_file_that_is_named_exists(self) -> None:
        page = (DASHBOARD / "index.html").read_text()
        for name in _ASSET.findall(page):
            assert (DASHBOARD.parent / name).is_file(), name
        for path in own_files("js"):
            for name in _IMPORT.findall(path.read_text()):
                assert (path.parent / name).is_file(), (path, name)

    def test_no_other_host_is_named(self) -> None:
        for path in own_files("js", "css", "html"):
            text = path.read_text().replace("http://www.w3.org/2000/svg", "")
            assert not _OTHER_HOST.search(text), path

    def test_nothing_is_parsed_as_html_and_nothing_is_inline(self) -> None:
        for path in own_files("js"):
            text = path.read_text()
            for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
                assert name not in text, path
        page = (DASHBOARD / "index.html").read_text()
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script>", page)

    def test_modules_are_short(self) -> None:
        for path in own_files("js"):
            lines = path.read_text().splitlines()
            assert len(lines) < 350, path
            # An icon is one line.
            assert path.name == "icons.js" or max(map(len, lines)) <= 120, path
