"""The endpoints of sessions: a list, one of them, and its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.clients.connection_marks import mark_of, mark_text
from pubsub.http_api.requests.api_error import NOT_FOUND, ApiError
from pubsub.http_api.requests.paging import PAGING, answer_page, page_request, pattern
from pubsub.http_api.requests.parameters import Parameters, invalid, name_in_path
from pubsub.http_api.requests.request_access import ADMIN, request_access
from pubsub.management.connections import (
    STATES,
    ListedConnection,
    connection_of,
    connection_row,
    connections_after,
    session_filter,
)
from pubsub.management.listing import fill, to_json

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.slices import Work
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.http_api.requests.request_access import RequestAccess
    from pubsub.management.listing import ListPage

SESSIONS = b"/v1/sessions/"
"""The prefix of the path of a session; its mark follows."""
_REASON = "administrator"


class SessionHandler:
    """The endpoints /v1/sessions and below."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    async def list(self, request: ApiRequest) -> None:
        """GET /v1/sessions"""
        parameters = Parameters.of_url(request, *PAGING, "protocol", "client", "state")
        self._access(request)
        asked = page_request(parameters)
        if asked.after and mark_of(asked.after) is None:
            raise invalid("after: expected the mark of a session")
        row_of = session_filter(
            parameters.text("protocol") if "protocol" in parameters else None,
            parameters.word("state", *STATES) if "state" in parameters else None,
            [one for name in ("client", "match") if (one := pattern(parameters, name))],
        )

        def rows(page: ListPage) -> Work:
            found = connections_after(self._listener.clients, asked.after)
            return fill(page, found, row_of, _key_of)

        await answer_page(request, self._listener, asked, rows)

    async def one(self, request: ApiRequest) -> None:
        """GET /v1/sessions/MARK"""
        Parameters.of_url(request)
        self._access(request)
        request.answer(200, to_json(connection_row(self._session(request))) + b"\n")

    async def disconnect(self, request: ApiRequest) -> None:
        """DELETE /v1/sessions/MARK"""
        parameters = Parameters.of_url(request, "reason")
        access = self._access(request)
        reason = parameters.text("reason", "")
        if not reason.isprintable():
            raise invalid("reason: expected printable text")
        session = self._session(request)
        self._listener.audit.record(
            "disconnect",
            mark=mark_text(session.mark),
            protocol=session.listener.event_protocol,
            session_client=session.label,
            reason=reason,
            subject=access.owner or "",
            client=request.label,
        )
        session.dismiss(f"{_REASON}: {reason}" if reason else _REASON)
        request.answer(204, b"")

    def _access(self, request: ApiRequest) -> RequestAccess:
        access = request_access(request, self._listener)
        access.require(ADMIN)
        return access

    def _session(self, request: ApiRequest) -> ListedConnection:
        mark = name_in_path(request, SESSIONS)
        session = connection_of(self._listener.clients, mark)
        if session is None:
            raise ApiError(NOT_FOUND, "unknown-session", f"no session {mark!r}; it may have ended")
        return session


def _key_of(session: ListedConnection | None) -> str:
    return "" if session is None else mark_text(session.mark)
