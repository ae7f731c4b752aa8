"""Requests of a client to the HTTP API, beside its connections for messages."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from pubsub.client.client_errors import ClientClosed, ConnectFailed, RequestRefused
from pubsub.client.client_tls import TlsOptions
from pubsub.client.client_url import ClientUrl
from pubsub.client.http_batches import MALFORMED, value_of
from pubsub.client.http_query import HttpQuery, QueryReply, read_reply, request_bytes
from pubsub.client.messages import Message
from pubsub.client.runtime import Runtime
from pubsub.client.tickets import Ticket
from pubsub.wire.foreign_protocols import FIRST_BYTES, reply_problem

_ERRORS = 300
_STATUS = b"HTTP/1."
# Of a reply, which is held until it is whole.
_MOST_BYTES = 256 * 1024**2
# Seconds that a reply may name.
_LONGEST = 1e6
_PASSING = (408, 429, 500, 502, 503, 504)
ApiParameters = Sequence[tuple[str, object]]
"""The parameters of a request."""


class ApiRequests:
    """Sends requests to the API at ``target``, each on a connection of its own.

    ``token`` returns the token to present, or None. A request is given up after ``seconds``.
    """

    def __init__(
        self,
        runtime: Runtime,
        target: ClientUrl,
        tls: TlsOptions,
        token: Callable[[], str | None],
        seconds: float,
    ) -> None:
        self.target = target
        self._runtime = runtime
        self._tls = tls if target.tls else None
        self._token = token
        self._seconds = seconds
        self._asked: set[HttpQuery] = set()
        # Why no reply is waited for any more.
        self._closed = ""

    def close(self, why: str) -> None:
        """Give up all requests: each of them raises ClientClosed with the text ``why``."""
        self._closed = why
        for query in tuple(self._asked):
            query.end()

    async def call(
        self,
        method: str,
        path: str,
        query: ApiParameters = (),
        body: Mapping[str, object] | None = None,
        seconds: float | None = None,
    ) -> QueryReply:
        """Return the reply. Raises RequestRefused, or ConnectFailed if none has come.

        Raises ClientClosed after ``close``.
        """
        if self._closed:
            raise ClientClosed(self._closed)
        if query:
            path = f"{path}?{urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        request = request_bytes(self.target, self._token(), method, path, data)
        ticket: Ticket[tuple[bytes, str]] = Ticket()
        one = HttpQuery(
            self._runtime, request, lambda raw, why: ticket.succeed((raw, why)), _MOST_BYTES
        )
        self._asked.add(one)
        one.ask(self.target, self._tls, seconds or self._seconds)
        try:
            await self._runtime.wait_for(ticket)
        finally:
            self._asked.discard(one)
            # Of a caller that is cancelled.
            one.end()
        assert ticket.result is not None
        raw, why = ticket.result
        reply = read_reply(raw)
        if reply is None:
            if self._closed:
                raise ClientClosed(self._closed)
            raise ConnectFailed(f"{self.target}: {self._trouble(raw) or why}")
        if reply.status >= _ERRORS:
            raise self._refusal(reply)
        return reply

    def _trouble(self, raw: bytes) -> str:
        """Return why ``raw`` is none of HTTP; empty if it may be the beginning of a reply."""
        if not raw or _STATUS.startswith(raw[: len(_STATUS)]):
            return ""
        problem = reply_problem(raw[:FIRST_BYTES], "http", self.target.tls)
        return problem or "the reply is not one of HTTP; check the URL"

    async def json(
        self, method: str, path: str, body: Mapping[str, object] | None = None
    ) -> dict[str, Any]:
        """Return the JSON object of a reply. Raises the errors of ``call``."""
        reply = await self.call(method, path, body=body)
        try:
            found = json.loads(reply.body or b"{}")
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self.foreign()
        return found

    def messages_of(self, reply: QueryReply) -> list[Message]:
        """Return the messages of a reply in lines. Raises ConnectFailed."""
        try:
            rows = [json.loads(line) for line in reply.body.splitlines()]
            return [_message(row) for row in rows if "damaged" not in row]
        except MALFORMED:
            raise self.foreign() from None

    def _refusal(self, reply: QueryReply) -> RequestRefused:
        try:
            details = json.loads(reply.body)
        except (ValueError, RecursionError):
            details = {}
        if not isinstance(details, dict):
            details = {}
        text = details.get("message") or "the reply has no reason"
        return RequestRefused(f"{self.target}: {text} (HTTP {reply.status})", reply.status, details)

    def foreign(self) -> ConnectFailed:
        """Return the error for a reply that is none of a broker."""
        return ConnectFailed(f"{self.target}: the reply is not one of a broker; check the URL")


def seconds_in(found: Mapping[str, object]) -> float:
    """Return the member ``seconds`` of a reply; 0 if it is none."""
    seconds = found.get("seconds")
    # A boolean is an int in Python, but not in JSON.
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return 0.0
    return float(seconds) if 0 < seconds < _LONGEST else 0.0


def is_passing(error: Exception) -> bool:
    """Return whether the same request may succeed later."""
    if isinstance(error, RequestRefused):
        return error.status in _PASSING
    return isinstance(error, ConnectFailed) and not error.refused


def _message(row: Any) -> Message:
    headers = {str(one["key"]): value_of(one) for one in row.get("headers", ())}
    return Message(
        str(row["topic"]), value_of(row), base64.b64decode(row["key"]), int(row["timestamp"]),
        int(row["offset"]), headers,
    )  # fmt: skip
