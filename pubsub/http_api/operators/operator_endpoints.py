"""Endpoints for operators: draining, and the configuration that is in effect."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from twisted.logger import Logger

from pubsub.http_api.requests.api_error import CONFLICT, NOT_FOUND, ApiError
from pubsub.http_api.requests.parameters import Parameters
from pubsub.http_api.requests.request_access import ADMIN, request_access

if TYPE_CHECKING:
    from pubsub.broker.delivery.drainage import Drained
    from pubsub.broker.listeners.listener import Listener
    from pubsub.http_api.requests.api_request import ApiRequest

log = Logger()


class OperatorEndpoints:
    """``/v1/drain`` and ``/v1/configuration``; both need the permission ``admin``."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    async def configuration(self, request: ApiRequest) -> None:
        """GET /v1/configuration"""
        Parameters.of_url(request)
        request_access(request, self._listener).require(ADMIN)
        _answer(request, 200, self._listener.configuration.content)

    async def drain(self, request: ApiRequest) -> None:
        """POST /v1/drain: answer, and begin to drain when the answer is on its way."""
        access = request_access(request, self._listener)
        access.require(ADMIN)
        parameters = Parameters.of_body(request, "listener", "keep_running")
        name = parameters.text("listener", "")
        keeps = parameters.flag("keep_running") or bool(name)
        drainage = self._listener.drainage
        if not keeps and drainage.stop is None:
            message = "this broker is part of another program, which stops it; give keep_running"
            raise ApiError(CONFLICT, "embedded", message)
        drained = self._select(name)
        self._listener.audit.record(
            "drain",
            listener=name,
            keep_running=keeps,
            subject=access.owner or "",
            client=request.label,
        )
        # In a later turn, so that the answer is sent before the connection is drained.
        self._listener.clock.callLater(0, self._begin, drained, name, keeps)
        shown = [{"protocol": one.event_protocol, "endpoint": one.endpoint} for one in drained]
        _answer(
            request, 202, {"drained": shown, "stops": not keeps, "stop_timeout": drainage.seconds}
        )

    def _select(self, name: str) -> list[Drained]:
        """Return the listeners to drain: those of this name, else all but that of the request."""
        listeners = self._listener.drainage.listeners
        if not name:
            return [one for one in listeners if one is not self._listener]
        found = [one for one in listeners if name in _names(one)]
        if not found:
            known = ", ".join(dict.fromkeys(one.event_protocol for one in listeners))
            message = f"no listener {name!r}; there are {known}"
            raise ApiError(NOT_FOUND, "unknown-listener", message)
        return found

    def _begin(self, drained: list[Drained], name: str, keeps: bool) -> None:
        drainage = self._listener.drainage
        shown = (
            ", ".join(f"{one.event_protocol} {one.endpoint}" for one in drained) or "no listener"
        )
        log.info("draining by request: {listeners}", listeners=shown)
        if not name:
            drainage.draining, drainage.keeps_running = True, keeps
        if not keeps and drainage.stop is not None:
            drainage.stop()
            return
        for one in drained:
            # It may have been removed by a reload since.
            if one in drainage.listeners:
                drainage.remove(one)


def _names(listener: Drained) -> tuple[str, ...]:
    shown = listener.event_protocol
    return shown, listener.endpoint, f"{shown} {listener.endpoint}", f"{shown}={listener.endpoint}"


def _answer(request: ApiRequest, status: int, content: object) -> None:
    request.answer(status, json.dumps(content).encode(), "application/json")
