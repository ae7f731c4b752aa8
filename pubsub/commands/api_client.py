"""A small blocking client of the HTTP API, of the standard library alone.

``pubsub.client.history_client`` reads Arrow and needs the extra ``spark``; the command works
without it.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from http.client import (
    BadStatusLine,
    HTTPConnection,
    HTTPException,
    HTTPResponse,
    HTTPSConnection,
    RemoteDisconnected,
)
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from pubsub.commands.destination import ADVICE_OF_OWN_TOPICS, Destination
from pubsub.errors import ConfigurationError, PubSubError
from pubsub.wire.client_tls_files import client_context
from pubsub.wire.connect_errors import why_not
from pubsub.wire.foreign_protocols import status_problem
from pubsub.wire.url_list import split_urls

# For the connection to each address, and then for a reply.
_CONNECT_SECONDS, _SECONDS = 5.0, 30.0
_PAGE = 1000
_LINES_BYTES = 256 * 1024
_PORT = 7080
_ADVICE = {
    "bad-token": "give a valid token with --token-file or PUBSUB_TOKEN",
    "not-authorized": "give a token that permits it with --token-file or PUBSUB_TOKEN",
    "unknown-topic": "pubsub topics list shows those that exist",
    "unknown-session": "pubsub sessions lists those that are connected",
    "topic-exists": "pubsub topics rotate replaces the key",
    "no-queue-key": "pubsub topics create sets one",
    "host": "name this host in the broker's setting http-hosts",
}


class RequestFailed(PubSubError):
    """A request that failed; ``code`` is the ``error`` of the reply, empty without a reply."""

    def __init__(self, text: str, code: str = "", details: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.details = details or {}


class CutOff(RequestFailed):
    """A reply that ended before its end."""


class _Members(dict[str, Any]):
    """An object of a reply. ``foreign`` makes the error for a member that it lacks."""

    def __init__(self, members: dict[str, Any], foreign: Callable[[str], Exception]) -> None:
        super().__init__(members)
        self._foreign = foreign

    def __missing__(self, name: str) -> Any:
        raise self._foreign(f"it has no {name!r}")


class Api:
    """The HTTP API of ``destination``. Every method raises RequestFailed.

    Of several brokers, the first one that answers is used for all requests, as offsets differ
    between brokers. Requests that change something need a single one, as a broker that has taken
    such a request may have carried it out.
    """

    def __init__(self, destination: Destination) -> None:
        self._destination = destination
        self._others = [url.rstrip("/") for url in split_urls(destination.api_url())]
        self._is_one = len(self._others) == 1
        self._use(self._others.pop(0))
        self._token = destination.token()

    def _use(self, url: str) -> None:
        self._url = url
        self._parts = urlsplit(url)

    def get(self, path: str, query: Mapping[str, object] | None = None) -> Any:
        """Return the JSON body of a reply."""
        with self._request("GET", path, query) as response:
            return self._object(response)

    def post(self, path: str, content: object) -> Any:
        """Send ``content`` as JSON; return the JSON body of the reply."""
        with self._request("POST", path, body=json.dumps(content).encode()) as response:
            return self._object(response)

    def put(self, path: str, content: object) -> Any:
        """Send ``content`` as JSON with PUT; return the JSON body of the reply."""
        with self._request("PUT", path, body=json.dumps(content).encode()) as response:
            return self._object(response)

    def delete(self, path: str, query: Mapping[str, object] | None = None) -> None:
        """Send DELETE."""
        with self._request("DELETE", path, query) as response:
            if response.status != HTTPStatus.NO_CONTENT:
                raise self._foreign(f"HTTP {response.status}")

    def items(self, path: str, query: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        """Yield the items of a list, page by page."""
        asked = {**query, "limit": _PAGE}
        while True:
            page = self.get(path, asked)
            yield from page["items"]
            if page["next"] is None:
                return
            asked["after"] = page["next"]

    def lines(self, path: str, query: Mapping[str, object]) -> Iterator[dict[str, Any]]:
        """Yield the JSON object of each line of a reply."""
        with self._request("GET", path, query) as response:
            partial: list[bytes] = []
            while data := self._read(response, _LINES_BYTES):
                *ends, rest = data.split(b"\n")
                if ends:
                    ends[0] = b"".join([*partial, ends[0]])
                    partial.clear()
                    # Far quicker than a call for each line.
                    yield from self._parsed(b"[%b]" % b",".join(ends))
                partial.append(rest)
            if any(partial):
                raise self._cut_off("the last line is incomplete")
            if response.length:
                raise self._cut_off(f"{response.length} bytes are missing")

    def start_of(self, path: str, query: Mapping[str, object]) -> int:
        """Return the offset at which a reply with messages begins; these are not read."""
        with self._request("GET", path, query) as response:
            try:
                return int(response.headers["Pubsub-Start"])
            except (TypeError, ValueError):
                raise self._foreign("it has no Pubsub-Start") from None

    def bounds(self, timestamp: int | None = None) -> dict[str, Any]:
        """Return ``first``, ``next`` and, with ``timestamp`` in µs, ``offset``."""
        found: dict[str, Any] = self.get(
            "/v1/bounds", {} if timestamp is None else {"timestamp": timestamp}
        )
        return found

    def _object(self, response: HTTPResponse) -> Any:
        """Return the JSON object of a body; a member that it lacks raises RequestFailed."""
        found = self._parsed(self._read(response), self._with_members)
        if not isinstance(found, dict):
            raise self._foreign("not a JSON object")
        return found

    def _parsed(self, text: bytes, object_hook: Callable[[Any], Any] | None = None) -> Any:
        try:
            return json.loads(text, object_hook=object_hook)
        except (ValueError, RecursionError):
            raise self._foreign("not JSON") from None

    def _with_members(self, members: dict[str, Any]) -> _Members:
        return _Members(members, self._foreign)

    def _foreign(self, why: str) -> RequestFailed:
        return RequestFailed(
            f"{self._url}: the reply is not one of a broker: {why}; check the URL, which is that "
            "of the HTTP API, and the version of the broker"
        )

    def _read(self, response: HTTPResponse, most: int = 0) -> bytes:
        """Return the whole body, or what has arrived of it, up to ``most`` bytes."""
        try:
            return response.read1(most) if most else response.read()
        except (OSError, HTTPException) as error:
            raise self._cut_off(why_not(error)) from None

    def _cut_off(self, why: str) -> CutOff:
        return CutOff(f"{self._url}: the reply was cut off: {why}; try again")

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None = None,
        body: bytes | None = None,
    ) -> HTTPResponse:
        if method != "GET" and not self._is_one:
            raise RequestFailed("the request is for one broker; name it with --api or --url")
        while True:
            connection = self._connection()
            try:
                response = self._answer(connection, method, path, query, body)
                break
            except (OSError, HTTPException) as error:
                if not self._others:
                    raise RequestFailed(
                        f"{self._url}: the broker cannot be reached: {self._why_not(error)}; "
                        f"{self._destination.hint()}"
                    ) from None
            self._use(self._others.pop(0))
        self._others.clear()
        if response.status >= 300:
            raise self._error(response)
        return response

    def _answer(
        self,
        connection: HTTPConnection,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        body: bytes | None,
    ) -> HTTPResponse:
        target = self._parts.path.rstrip("/") + path
        if query:
            target += "?" + urlencode(query, doseq=True)
        headers = {} if self._token is None else {"Authorization": f"Bearer {self._token}"}
        try:
            connection.request(method, target, body=body, headers=headers)
            if isinstance(connection.sock, socket.socket):
                connection.sock.settimeout(_SECONDS)
            return connection.getresponse()
        except UnicodeError as error:
            # A host or a path that a request cannot have.
            raise RequestFailed(f"{self._url}: the URL cannot be used: {error}") from None

    def _why_not(self, error: Exception) -> str:
        """Return why a request failed; the reply of another protocol is not shown."""
        if not isinstance(error, BadStatusLine):
            return why_not(error)
        line = "" if isinstance(error, RemoteDisconnected) else str(error.args[0])
        return status_problem(line, self._parts.scheme != "http")

    def _connection(self) -> HTTPConnection:
        host, given = self._parts.hostname or "", self._parts.port
        port = _PORT if given is None else given
        match self._parts.scheme:
            case "http":
                return HTTPConnection(host, port, timeout=_CONNECT_SECONDS)
            case "https" | "http+tls":
                context = _tls_context(self._destination)
                return HTTPSConnection(host, port, timeout=_CONNECT_SECONDS, context=context)
            case other:
                raise RequestFailed(
                    f"{self._url}: the HTTP API is at http:// or https://, not {other}:"
                )

    def _error(self, response: HTTPResponse) -> RequestFailed:
        try:
            details = json.loads(self._read(response))
        except (ValueError, RecursionError):
            details = {}
        if not isinstance(details, dict):
            details = {}
        code = str(details.get("error", ""))
        text = str(details.get("message", "") or f"HTTP {response.status} {response.reason}")
        advice = _ADVICE.get(code)
        if code == "not-authorized" and str(details.get("topic", "")).startswith("$SYS/"):
            advice = ADVICE_OF_OWN_TOPICS
        return RequestFailed(
            f"{self._url}: {text}" + (f"; {advice}" if advice else ""), code, details
        )


def _tls_context(where: Destination) -> ssl.SSLContext:
    """Return the context that verifies the broker. Raises RequestFailed."""
    try:
        return client_context(*where.tls_files)
    except ConfigurationError as error:
        raise RequestFailed(str(error)) from None


def topic_path(name: str) -> str:
    """Return the path of a topic."""
    return f"/v1/topics/{quote(name, safe='')}"


def session_path(mark: str) -> str:
    """Return the path of a session."""
    return f"/v1/sessions/{quote(mark, safe='')}"
