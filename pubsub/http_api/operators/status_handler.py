"""The endpoints of the state of the broker: status, listeners, the store, refusals, audit, health.

Tokens need ``metrics`` for responses that name no client, and ``admin`` for the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.clients.connection_marks import mark_of, mark_text
from pubsub.broker.clients.peers import peers_of
from pubsub.http_api.operators.status_follower import EVENTS, LINES, StatusFeed
from pubsub.http_api.requests.api_error import UNAVAILABLE
from pubsub.http_api.requests.paging import PAGING, answer_page, page_request
from pubsub.http_api.requests.parameters import Parameters, invalid
from pubsub.http_api.requests.request_access import ADMIN, METRICS, request_access
from pubsub.management.listeners import listener_rows
from pubsub.management.listing import PageRequest, Row, fill, to_json
from pubsub.management.refusals import refusal_rows
from pubsub.management.slow_subscribers import slow_row, slow_sessions
from pubsub.management.status import status_of
from pubsub.management.subscriptions import SubscriptionList, is_key, subscription_row

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pubsub.broker.audit_log.recent_records import AuditRecord
    from pubsub.broker.clients.peers import Peer
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.management.connections import ListedConnection
    from pubsub.management.subscriptions import ListedSubscription

Keyed = tuple[str, Row]
# Damaged ranges of the history that are shown.
_RANGES = 100


class StatusHandler:
    """The endpoints for the state of the broker, except topics and sessions."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._feed = StatusFeed(listener)
        self._subscriptions = SubscriptionList(listener.clients, listener.topics)

    async def status(self, request: ApiRequest) -> None:
        """GET /v1/status"""
        parameters = Parameters.of_url(request, "follow", "format")
        access = request_access(request, self._listener)
        access.require(METRICS)
        listener = self._listener
        if parameters.flag("follow"):
            await self._feed.follow(request, access, parameters.word("format", EVENTS, LINES))
            return
        if "format" in parameters:
            raise invalid("format: only with follow=1")
        request.answer(200, to_json(status_of(listener.statistics, listener.readiness)) + b"\n")

    async def store(self, request: ApiRequest) -> None:
        """GET /v1/store"""
        Parameters.of_url(request)
        request_access(request, self._listener).require(METRICS)
        store = self._listener.store
        figures = self._listener.statistics.snapshot()["store"]
        shown = {
            **figures,
            "epoch": store.epoch,
            "trouble": store.trouble,
            "summary": store.summary,
            "damaged": [
                {"first": start, "last": stop - 1} for start, stop in store.damaged()[:_RANGES]
            ],
            "retention": self._listener.configuration.content.get("broker", {}).get("retention"),
        }
        request.answer(200, to_json(shown) + b"\n")

    # Lists

    async def listeners(self, request: ApiRequest) -> None:
        """GET /v1/listeners"""
        asked = self._asked(request, METRICS)
        found = listener_rows(self._listener.readiness)
        await self._answer(request, asked, (one for one in found if one[0] > asked.after))

    async def refusals(self, request: ApiRequest) -> None:
        """GET /v1/refusals"""
        asked = self._asked(request, METRICS)
        listener = self._listener
        is_admin = request_access(request, listener).is_admin
        rows = refusal_rows(listener.counters, is_admin)
        await self._answer(request, asked, [one for one in rows if one[0] > asked.after])

    async def peers(self, request: ApiRequest) -> None:
        """GET /v1/peers"""
        asked = self._asked(request, METRICS)
        rows = [(one.endpoint, _peer_row(one)) for one in peers_of(self._listener.shared)]
        rows.sort(key=lambda one: one[0])
        await self._answer(request, asked, [one for one in rows if one[0] > asked.after])

    async def audit(self, request: ApiRequest) -> None:
        """GET /v1/audit"""
        asked = self._asked(request, ADMIN)
        if asked.after and not asked.after.isdecimal():
            raise invalid("after: expected the number of a record")
        found = self._listener.audit.recent.before(int(asked.after) if asked.after else None)
        await self._answer(request, asked, map(_record_row, found))

    async def _answer(
        self, request: ApiRequest, asked: PageRequest, found: Iterable[Keyed]
    ) -> None:
        """Answer with a page of ``found``, which are keys and rows."""

        def row_of(one: Keyed) -> Row | None:
            return one[1] if any(map(asked.matches, _texts(one[1]))) else None

        await answer_page(
            request,
            self._listener,
            asked,
            lambda page: fill(page, found, row_of, lambda one: one[0]),
        )

    async def slow(self, request: ApiRequest) -> None:
        """GET /v1/slow"""
        asked = self._asked(request, ADMIN)
        if asked.after and mark_of(asked.after) is None:
            raise invalid("after: expected the mark of a session")
        listener = self._listener
        found = slow_sessions(listener.clients, listener.router, listener.cursors, asked.after)

        def row_of(one: ListedConnection | None) -> Row | None:
            return slow_row(one) if one is not None and asked.matches(one.label) else None

        await answer_page(
            request,
            listener,
            asked,
            lambda page: fill(
                page, found, row_of, lambda one: "" if one is None else mark_text(one.mark)
            ),
        )

    async def subscriptions(self, request: ApiRequest) -> None:
        """GET /v1/subscriptions"""
        parameters = Parameters.of_url(request, *PAGING, "topic", "mark")
        request_access(request, self._listener).require(ADMIN)
        asked = page_request(parameters)
        if asked.after and not is_key(asked.after):
            raise invalid("after: expected the mark of a session and a topic")
        topic = parameters.text("topic") if "topic" in parameters else None
        mark = parameters.text("mark") if "mark" in parameters else None
        found = self._subscriptions.after(asked.after, mark, topic)

        def row_of(one: ListedSubscription | None) -> Row | None:
            return subscription_row(one) if one and asked.matches(one.topic.name) else None

        await answer_page(
            request,
            self._listener,
            asked,
            lambda page: fill(page, found, row_of, lambda one: "" if one is None else one.key),
        )

    def _asked(self, request: ApiRequest, action: str) -> PageRequest:
        parameters = Parameters.of_url(request, *PAGING)
        request_access(request, self._listener).require(action)
        return page_request(parameters)

    # Health, which needs no token

    async def healthz(self, request: ApiRequest) -> None:
        """GET /healthz: the process answers."""
        request.answer(200, b"ok\n", "text/plain; charset=utf-8")

    async def readyz(self, request: ApiRequest) -> None:
        """GET /readyz: the broker serves."""
        kinds = sorted({one.kind for one in self._listener.readiness.obstacles()})
        text = f"not ready: {', '.join(kinds)}\n" if kinds else "ready\n"
        if self._listener.readiness.backplane() is not None:
            text += "the backplane is away\n"
        status = UNAVAILABLE if kinds else 200
        request.answer(status, text.encode(), "text/plain; charset=utf-8")


def _peer_row(peer: Peer) -> Row:
    return {
        "name": peer.endpoint,
        "state": peer.state,
        "topics": peer.topic_count,
    }


def _record_row(record: AuditRecord) -> Keyed:
    row = {
        **record.fields,
        "number": record.number,
        "timestamp": record.timestamp,
        "event": record.event,
    }
    return str(record.number), row


def _texts(row: Row) -> Iterable[str]:
    return (value for value in row.values() if isinstance(value, str))
