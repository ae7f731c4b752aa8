"""The durability of topics, as the HTTP API of the broker shows it.

It is requested once for each topic, and kept. Of several brokers, the next one is asked if one does
not answer. If it cannot be determined it is None, and is requested again after a while.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from pubsub.client.client_tls import TlsOptions
from pubsub.client.client_url import ClientUrl
from pubsub.client.http_query import HttpQuery, read_reply, request_bytes
from pubsub.client.runtime import Runtime
from pubsub.client.tickets import Ticket

_MAX_TOPICS = 1024
_MAX_REPLY = 64 * 1024
_OK, _NOT_FOUND = 200, 404
# Seconds until the next query: about a topic that does not exist yet, and after a failure.
_UNTIL_CREATED, _UNTIL_RETRY = 1.0, 60.0


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
        self._asked: dict[str, HttpQuery] = {}
        # Those of the callers, each of which may give up its own.
        self._tickets: dict[str, list[Ticket[str | None]]] = {}
        self._closed = False

    def of(self, topic: str) -> Ticket[str | None]:
        """Return a ticket with ``none``, ``async`` or ``sync``; None if that is not known."""
        ticket: Ticket[str | None] = Ticket()
        found = self._known.get(topic)
        if found is not None and (found.until is None or self._runtime.now() < found.until):
            self._known.move_to_end(topic)
            ticket.succeed(found.durability)
            return ticket
        if topic in self._tickets:
            self._tickets[topic].append(ticket)
            return ticket
        self._tickets[topic] = [ticket]
        self._ask(topic, len(self._targets))
        return ticket

    def _ask(self, topic: str, brokers: int) -> None:
        """Ask up to ``brokers`` brokers, one after the other."""
        at = self._at
        target = self._targets[at]
        path = f"/v1/topics/{quote(topic, safe='')}"
        request = request_bytes(target, self._token(), "GET", path)
        query = self._asked[topic] = HttpQuery(
            self._runtime,
            request,
            lambda raw, why: self._answered(topic, at, raw, brokers - 1),
            _MAX_REPLY,
        )
        query.ask(target, self._tls, self._seconds)

    def _answered(self, topic: str, at: int, raw: bytes, left: int) -> None:
        status, durability = _read(raw)
        if status or not left or self._closed:
            self._found(topic, status, durability)
            return
        if at == self._at:
            # Another query may have gone on already.
            self._at = (at + 1) % len(self._targets)
        self._ask(topic, left)

    def close(self) -> None:
        """Give up all queries."""
        self._closed = True
        for query in list(self._asked.values()):
            query.end()

    def _found(self, topic: str, status: int, durability: str | None) -> None:
        until = None
        if durability is None:
            pause = _UNTIL_CREATED if status == _NOT_FOUND else _UNTIL_RETRY
            until = self._runtime.now() + pause
        self._known[topic] = _KnownDurability(durability, until)
        self._known.move_to_end(topic)
        if len(self._known) > _MAX_TOPICS:
            self._known.popitem(last=False)
        del self._asked[topic]
        for ticket in self._tickets.pop(topic):
            ticket.succeed(durability)


def _read(raw: bytes) -> tuple[int, str | None]:
    """Return the status and the durability of a reply; 0 and None if it is none."""
    reply = read_reply(raw)
    if reply is None:
        return 0, None
    try:
        found: Any = json.loads(reply.body) if reply.status == _OK else {}
    except (ValueError, RecursionError):
        return 0, None
    durability = found.get("durability") if isinstance(found, dict) else None
    return reply.status, durability if isinstance(durability, str) else None
