"""The dashboard's files, which are served at ``/`` and below ``/dashboard/``.

They are read from the package once. A browser keeps them and asks with ``If-None-Match`` whether
they have changed, so that a broker that was upgraded is never shown by an old page. The policy
(Content Security Policy, level 3) allows files of the broker itself, and no inline code;
``require-trusted-types-for`` makes the browser refuse text that would be parsed as HTML.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import TYPE_CHECKING

from twisted.web.http import CACHED

from pubsub.http_api.requests.api_error import NOT_FOUND, ApiError
from pubsub.http_api.requests.parameters import Parameters

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

    from pubsub.http_api.requests.api_request import ApiRequest

PREFIX = b"/dashboard/"
"""The path of the files, without their names."""
_PAGE = "index.html"
_TYPES = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
    "woff2": "font/woff2",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""The policy for the page: the sources it may load, and its actions."""
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True, slots=True)
class _DashboardFile:
    """A file's content, media type and entity tag."""

    content: bytes
    kind: str
    tag: bytes


class DashboardFiles:
    """The endpoints / and /dashboard/."""

    def __init__(self, listing: bytes) -> None:
        self._files = _read_files()
        self._listing = listing

    async def index(self, request: ApiRequest) -> None:
        """GET /: the page for browsers, and the list of endpoints for other clients."""
        request.responseHeaders.addRawHeader(b"Vary", b"Accept")
        if _wants_html(request):
            _send(request, self._files[_PAGE])
        else:
            self._answer_listing(request)

    async def listing(self, request: ApiRequest) -> None:
        """GET /v1: the list of endpoints."""
        Parameters.of_url(request)
        self._answer_listing(request)

    def _answer_listing(self, request: ApiRequest) -> None:
        request.answer(200, self._listing, "text/plain; charset=utf-8")

    async def file(self, request: ApiRequest) -> None:
        """GET /dashboard/NAME"""
        name = request.path[len(PREFIX) :].decode(errors="replace")
        found = self._files.get(name)
        if found is None or name == _PAGE:
            raise ApiError(NOT_FOUND, "not-found", "the dashboard has no such file; open /")
        _send(request, found)


def _wants_html(request: ApiRequest) -> bool:
    """Return whether the client accepts HTML by name, as browsers do."""
    accepted = request.requestHeaders.getRawHeaders("accept", [])
    return any("text/html" in value.lower() for value in accepted)


def _send(request: ApiRequest, file: _DashboardFile) -> None:
    """Answer with the file, or with 304 if the client has it."""
    if request.setETag(file.tag) is not CACHED:
        request.answer(200, file.content, file.kind, _HEADERS)
        return
    request.head(304, _HEADERS, file.kind)
    request.finish()


@cache
def _read_files() -> dict[str, _DashboardFile]:
    """Return the files of the package, by their paths in it."""
    root = files("pubsub.http_api") / "dashboard"
    return {name: _file(name, found.read_bytes()) for name, found in _walk(root, "")}


def _walk(directory: Traversable, path: str) -> Iterator[tuple[str, Traversable]]:
    """Yield the files below ``directory`` that browsers ask for."""
    for entry in directory.iterdir():
        name = path + entry.name
        if entry.is_dir():
            yield from _walk(entry, f"{name}/")
        elif _extension(name) in _TYPES:
            yield name, entry


def _extension(name: str) -> str:
    return name.rpartition(".")[2]


def _file(name: str, content: bytes) -> _DashboardFile:
    tag = f'"{sha256(content).hexdigest()[:32]}"'
    return _DashboardFile(content, _TYPES[_extension(name)], tag.encode())
