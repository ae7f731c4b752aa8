"""The endpoint GET /v1/ws: the upgrade of a connection to a WebSocket (RFC 6455, section 4).

The checks of Host and Origin have been made for the request, as for every other one.
"""

from __future__ import annotations

import logging
from http.client import SWITCHING_PROTOCOLS
from typing import TYPE_CHECKING

from websockets.datastructures import Headers
from websockets.exceptions import InvalidHeader, InvalidUpgrade
from websockets.http11 import Request
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from pubsub.http_api.requests.api_error import BAD_REQUEST, UPGRADE_REQUIRED, ApiError
from pubsub.http_api.requests.parameters import Parameters
from pubsub.http_api.websocket.websocket_client import WebSocketClient
from pubsub.http_api.websocket.websocket_frames import SUBPROTOCOL

if TYPE_CHECKING:
    from pubsub.http_api.requests.api_request import ApiRequest
    from pubsub.http_api.websocket.websocket_requests import RequestContext

# The session counts and reports the errors of clients.
_QUIET = logging.getLogger("pubsub.http_api.websocket")
_QUIET.disabled = True


class WebSockets:
    """Upgrades the connections of one listener. Compression is never agreed on."""

    def __init__(self, context: RequestContext) -> None:
        self._context = context

    async def upgrade(self, request: ApiRequest) -> None:
        """GET /v1/ws"""
        # A token in the URL would be in the logs of proxies.
        Parameters.of_url(request)
        protocol = ServerProtocol(subprotocols=[Subprotocol(SUBPROTOCOL)], logger=_QUIET)
        response = protocol.accept(_request_of(request))
        if response.status_code != SWITCHING_PROTOCOLS:
            raise _refusal(protocol.handshake_exc)
        session = WebSocketClient(self._context, request, _QUIET)
        # Replaces the response that twisted.web would write.
        request.channel.stream.write(response.serialize())
        session.begin()


def _request_of(request: ApiRequest) -> Request:
    headers = Headers()
    for raw, values in request.requestHeaders.getAllRawHeaders():
        for value in values:
            try:
                headers[raw.decode("latin-1")] = value.decode()
            except InvalidHeader as problem:
                # A control character, which twisted.web accepts.
                raise _refusal(problem) from None
    method, version = request.method.decode("latin-1"), request.clientproto.decode("latin-1")
    return Request(request.path.decode("latin-1"), headers, method, version)


def _refusal(problem: Exception | None) -> ApiError:
    if isinstance(problem, InvalidUpgrade):
        message = f"this endpoint is for WebSockets of the subprotocol {SUBPROTOCOL}"
        error = ApiError(UPGRADE_REQUIRED, "upgrade", message)
        error.upgrade = "websocket"
        return error
    message = f"the handshake of the WebSocket is refused: {problem}"
    return ApiError(BAD_REQUEST, "invalid-request", message)
