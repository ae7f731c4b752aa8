"""One request to the HTTP API, on a connection of its own, on any runtime."""

from __future__ import annotations

import re
from collections.abc import Callable
from io import BytesIO
from typing import NamedTuple

from pubsub.client.client_tls import TlsOptions
from pubsub.client.client_url import ClientUrl
from pubsub.client.runtime import Cancel, Runtime, Transport

_TOKEN = re.compile(r"[\x21-\x7e]+")


class QueryReply(NamedTuple):
    """A whole reply of the API."""

    status: int
    body: bytes


class HttpQuery:
    """One request; see ``Observer``.

    ``found`` is called once, with the bytes of the reply as far as they came and the reason for
    which there are no more. More than ``most`` bytes are not taken.
    """

    def __init__(
        self,
        runtime: Runtime,
        request: bytes,
        found: Callable[[bytes, str], None],
        most: int | None = None,
    ) -> None:
        self._runtime = runtime
        self._request = request
        self._found = found
        self._most = most
        self._reply = bytearray()
        self._transport: Transport | None = None
        self._cancels: list[Cancel] = []
        self._done = False

    def ask(self, target: ClientUrl, tls: TlsOptions | None, seconds: float) -> None:
        """Connect and send the request."""
        late = f"no reply within {seconds:g} s"
        self._cancels.append(self._runtime.call_later(seconds, lambda: self.end(late)))
        connecting = self._runtime.connect(target.host, target.port, tls, self)
        if not self._done:
            self._cancels.append(connecting)

    def made(self, transport: Transport) -> None:
        """See ``Observer``."""
        if self._done:
            transport.abort()
            return
        self._transport = transport
        transport.write(self._request)

    def received(self, data: bytes) -> None:
        """See ``Observer``."""
        if self._most is not None and len(self._reply) + len(data) > self._most:
            self.end(
                f"the reply has more than {self._most} bytes; ask for fewer messages, or check the "
                "URL"
            )
            return
        self._reply += data

    def writable(self, writable: bool) -> None:
        """See ``Observer``."""

    def lost(self, why: str) -> None:
        """See ``Observer``."""
        self.end(why)

    def end(self, why: str = "") -> None:
        """Take the bytes received so far as the reply."""
        if self._done:
            return
        self._done = True
        if self._transport is not None:
            self._transport.abort()
        else:
            for cancel in self._cancels[1:]:
                cancel()
        self._cancels[0]()
        self._found(bytes(self._reply), why)


def request_bytes(
    target: ClientUrl, token: str | None, method: str, path: str, body: bytes | None = None
) -> bytes:
    """Return a request, after whose reply the connection ends."""
    host = f"[{target.host}]" if ":" in target.host else target.host
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}:{target.port}", "Connection: close"]
    if token is not None and _TOKEN.fullmatch(token):
        lines.append(f"Authorization: Bearer {token}")
    if body is not None:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + (body or b"")


class _Received:
    """A socket, as far as ``HTTPResponse`` needs one."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, mode: str) -> BytesIO:
        return BytesIO(self._raw)


def read_reply(raw: bytes) -> QueryReply | None:
    """Return the reply; None if it is not whole, or none of HTTP."""
    # Imported here, because most programs make no such query and start sooner without it.
    from http.client import HTTPException, HTTPResponse

    # It takes the end of the bytes for that of the head, and of a body without a length.
    if b"\r\n\r\n" not in raw:
        return None
    response = HTTPResponse(_Received(raw))  # type: ignore[arg-type]
    try:
        response.begin()
        if response.length is None and not response.chunked:
            return None
        body = response.read()
    except (HTTPException, OSError, ValueError, OverflowError):
        return None
    return QueryReply(response.status, body)
