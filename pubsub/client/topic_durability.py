"""The durability of topics, as the HTTP API of the broker shows it.

It is requested once for each topic, and kept. Of several brokers, the next one is asked if one does
not answer. If it cannot be determined it is None, and is
requested again after a while.
"""

from __future__ import annotations

import json
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, NamedTuple
from urllib.parse import quote

from pubsub.client.client_tls import TlsOptions
from pubsub.client.client_url import ClientUrl
from pubsub.client.runtime import Cancel, Runtime, Transport
from pubsub.client.tickets import Ticket

_MAX_TOPICS = 1024
_MAX_REPLY = 64 * 1024
_OK, _NOT_FOUND = 200, 404
# Seconds until the next query: about a topic that does not exist yet, and after a failure.
_UNTIL_CREATED, _UNTIL_RETRY = 1.0, 60.0
_TOKEN = re.compile(r"[\x21-\x7e]+")


class _KnownDurability(NamedTuple):
    """``until`` is when it is asked for again, None for never."""

    durability: str | None
    until: float | None


class TopicDurability:
    """Asks the API at one of ``targets``. ``token`` returns the token to present, or None.

    A broker that does not answer is given up after ``seconds``.
    """

    def __init__(
        self,
        runtime: Runtime,
        targets: Sequence[ClientUrl],
        tls: TlsOptions,
        token: Callable[[], str | None],
        seconds: float,
    ) -> None:
        self._runtime = runtime
        self._targets = targets
        # The index of the broker to ask.
        self._at = 0
        self._tls = tls if targets[0].tls else None
        self._token = token
        self._seconds = seconds
        self._known: OrderedDict[str, _KnownDurability] = OrderedDict()
        self._asked: dict[str, _DurabilityQuery] = {}
        self._closed = False

    def of(self, topic: str) -> Ticket[str | None]:
        """Return a ticket with ``none``, ``async`` or ``sync``; None if that is not known."""
        ticket: Ticket[str | None] = Ticket()
        found = self._known.get(topic)
        if found is not None and (found.until is None or self._runtime.now() < found.until):
            self._known.move_to_end(topic)
            ticket.succeed(found.durability)
            return ticket
        if topic in self._asked:
            self._asked[topic].tickets.append(ticket)
            return ticket
        self._ask(topic, [ticket], len(self._targets))
        return ticket

    def _ask(self, topic: str, tickets: list[Ticket[str | None]], brokers: int) -> None:
        """Ask up to ``brokers`` brokers, one after the other."""
        at = self._at
        target = self._targets[at]
        query = self._asked[topic] = _DurabilityQuery(
            self._runtime,
            self._request(target, topic),
            lambda raw: self._answered(topic, at, raw, brokers - 1),
        )
        query.tickets += tickets
        query.ask(target, self._tls, self._seconds)

    def _answered(self, topic: str, at: int, raw: bytes, left: int) -> None:
        status, durability = _read(raw)
        if status or not left or self._closed:
            self._found(topic, status, durability)
            return
        if at == self._at:
            # Another query may have gone on already.
            self._at = (at + 1) % len(self._targets)
        self._ask(topic, self._asked[topic].tickets, left)

    def close(self) -> None:
        """Give up all queries."""
        self._closed = True
        for query in list(self._asked.values()):
            query.end()

    def _request(self, target: ClientUrl, topic: str) -> bytes:
        token = self._token()
        host = f"[{target.host}]" if ":" in target.host else target.host
        lines = [
            f"GET /v1/topics/{quote(topic, safe='')} HTTP/1.1",
            f"Host: {host}:{target.port}",
            "Connection: close",
        ]
        if token is not None and _TOKEN.fullmatch(token):
            lines.append(f"Authorization: Bearer {token}")
        return "\r\n".join([*lines, "", ""]).encode()

    def _found(self, topic: str, status: int, durability: str | None) -> None:
        until = None
        if durability is None:
            pause = _UNTIL_CREATED if status == _NOT_FOUND else _UNTIL_RETRY
            until = self._runtime.now() + pause
        self._known[topic] = _KnownDurability(durability, until)
        self._known.move_to_end(topic)
        if len(self._known) > _MAX_TOPICS:
            self._known.popitem(last=False)
        for ticket in self._asked.pop(topic).tickets:
            ticket.succeed(durability)


class _DurabilityQuery:
    """One request on a connection of its own; see ``Observer``.

    ``found`` is called once, with the bytes of the reply as far as they came.
    """

    def __init__(self, runtime: Runtime, request: bytes, found: Callable[[bytes], None]) -> None:
        self._runtime = runtime
        self.tickets: list[Ticket[str | None]] = []
        """Those of the callers, each of which may give up its own."""
        self._request = request
        self._found = found
        self._reply = bytearray()
        self._transport: Transport | None = None
        self._cancels: list[Cancel] = []
        self._done = False

    def ask(self, target: ClientUrl, tls: TlsOptions | None, seconds: float) -> None:
        """Connect and send the request."""
        self._cancels.append(self._runtime.call_later(seconds, self.end))
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
        self._reply += data
        if len(self._reply) > _MAX_REPLY:
            self.end()

    def writable(self, writable: bool) -> None:
        """See ``Observer``."""

    def lost(self, why: str) -> None:
        """See ``Observer``."""
        self.end()

    def end(self) -> None:
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
        self._found(bytes(self._reply))


class _Received:
    """A socket, as far as ``HTTPResponse`` needs one."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def makefile(self, mode: str) -> BytesIO:
        return BytesIO(self._raw)


def _read(raw: bytes) -> tuple[int, str | None]:
    """Return the status and the durability of a reply; 0 and None if it is none."""
    # Imported here, because most programs make no such query and start sooner without it.
    from http.client import HTTPException, HTTPResponse

    response = HTTPResponse(_Received(raw))  # type: ignore[arg-type]
    try:
        response.begin()
        found: Any = json.loads(response.read()) if response.status == _OK else {}
    except (HTTPException, OSError, ValueError, RecursionError):
        return 0, None
    durability = found.get("durability") if isinstance(found, dict) else None
    return response.status, durability if isinstance(durability, str) else None
