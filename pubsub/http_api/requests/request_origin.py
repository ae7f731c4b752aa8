"""The origin of a request: its headers Host and Origin, as a browser sends them.

A web page can make a browser send requests to a broker that only the browser's user can reach. The
browser names the page's site in ``Origin``. With DNS rebinding the page's own name resolves to the
broker's address, so that there is no foreign origin; then ``Host`` has that name. Names that no one
else can make resolve to the broker are its addresses, localhost and the computer's name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from socket import gethostname
from typing import TYPE_CHECKING, Any

from twisted.logger import Logger

from pubsub.http_api.requests.api_error import BAD_REQUEST, FORBIDDEN, ApiError
from pubsub.http_api.requests.header_names import HEADER_PREFIX, SENDER_HEADER
from pubsub.settings import PATTERNS, Setting, matcher

if TYPE_CHECKING:
    from collections.abc import Callable

    from pubsub.http_api.requests.api_request import ApiRequest

log = Logger()
SETTINGS: tuple[Setting, ...] = (
    Setting(
        "http-hosts",
        PATTERNS,
        "",
        "names under which clients reach the HTTP API, beside addresses, localhost and the "
        "computer's name",
        "http-hosts",
    ),
    Setting(
        "http-origins",
        PATTERNS,
        "",
        "origins of web pages that may use the HTTP API, such as https://example.org",
        "http-origins",
    ),
)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:@/?#\s]+)(:[0-9]{0,5})?")
# Everybody may request them, and load balancers have names of their own for the broker.
_PROBES = (b"/healthz", b"/readyz")
_METHODS = "GET, POST, PUT, DELETE"
_HEADERS = ("authorization", "content-type", "last-event-id", SENDER_HEADER)
# What browsers say of requests that pages of another origin make.
_OTHER_SITES = ("cross-site", "same-site")
# Of the response headers, a page sees only those that are listed.
_EXPOSED = "Pubsub-Start, Pubsub-Stop, Pubsub-First, Pubsub-Epoch, Retry-After"
# Seconds for which a browser remembers the answer to a preflight request.
_MAX_AGE = "600"
# Characters of an error in the log; it has the name that was refused.
_SHOWN = 300


class RequestOrigin:
    """Checks requests by the settings ``http-hosts`` and ``http-origins`` in ``settings``."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self._is_host = _lower_matcher(settings["http-hosts"])
        self._is_origin = _lower_matcher(settings["http-origins"])
        name = gethostname().lower()
        self._logged: set[str] = set()
        self._own_names = {"localhost", name, name.partition(".")[0]}

    def check(self, request: ApiRequest) -> bool:
        """Raise ApiError if the request's Host or Origin is refused.

        Answers a browser that asks whether a page of an allowed origin may send a request, and
        returns whether it has done so. The first error of each code is logged, as Prometheus and
        many proxies do not show the response.
        """
        try:
            return self._check(request)
        except ApiError as error:
            if error.code not in self._logged:
                self._logged.add(error.code)
                log.warn("http: {problem!r}; others are only counted", problem=str(error)[:_SHOWN])
            raise

    def _check(self, request: ApiRequest) -> bool:
        host = _single(request, "host")
        if host is not None and request.path not in _PROBES and not self._is_own(host):
            raise ApiError(
                FORBIDDEN,
                "host",
                f"Host {host} is not a name of this broker; add it to the setting http-hosts",
            )
        origin = _single(request, "origin")
        if origin is None:
            if request.path not in _PROBES:
                _check_site(request)
            return False
        if host and origin.partition("://")[2].lower() == host.lower():
            return False
        if not self._is_origin(origin):
            # Any web page can make a browser send requests here.
            raise ApiError(
                FORBIDDEN,
                "origin",
                f"cross-origin request from {origin} refused; add it to the setting http-origins",
            )
        request.responseHeaders.setRawHeaders("Access-Control-Allow-Origin", [origin])
        request.responseHeaders.setRawHeaders("Access-Control-Expose-Headers", [_EXPOSED])
        request.responseHeaders.setRawHeaders("Vary", ["Origin"])
        if request.method != b"OPTIONS":
            return False
        request.answer(
            204,
            b"",
            headers={
                "Access-Control-Allow-Methods": _METHODS,
                "Access-Control-Allow-Headers": ", ".join(_allowed_headers(request)),
                "Access-Control-Max-Age": _MAX_AGE,
            },
        )
        return True

    def _is_own(self, host: str) -> bool:
        """Return whether ``host``, perhaps with a port, is a name of this broker."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].strip("[]").removesuffix(".").lower()
        if name in self._own_names or name.endswith(".localhost") or self._is_host(name):
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True


def _check_site(request: ApiRequest) -> None:
    """Raise ApiError for a request that another page has made without its origin.

    Such a page cannot read the response, but could cause any number of them, as images or scripts.
    A link may be followed.
    """
    site = _single(request, "sec-fetch-site")
    if site in _OTHER_SITES and _single(request, "sec-fetch-mode") != "navigate":
        message = f"{site} request refused; a page needs http-origins, and CORS for its requests"
        raise ApiError(FORBIDDEN, "origin", message)


def _allowed_headers(request: ApiRequest) -> list[str]:
    """Return the request headers that a page may send: known ones, and those of messages."""
    asked = _single(request, "access-control-request-headers") or ""
    names = [name.strip().lower() for name in asked.split(",")]
    return [*_HEADERS, *[name for name in names if name.startswith(HEADER_PREFIX)]]


def _lower_matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    matches = matcher([pattern.lower() for pattern in patterns])
    return lambda name: matches(name.lower())


def _single(request: ApiRequest, name: str) -> str | None:
    """Return a header that may be given once; raises ApiError."""
    values = request.requestHeaders.getRawHeaders(name.encode(), [])
    if len(values) > 1:
        raise ApiError(BAD_REQUEST, "invalid-request", f"{name}: expected one value")
    return values[0].decode("latin-1") if values else None
