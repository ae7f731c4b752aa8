"""Requests that a proxy on the broker's machine has forwarded.

The connection is the proxy's, and so is its address. The client is on another machine unless the
proxy says otherwise in the PROXY header (``haproxy:`` endpoints): names in headers of the request
are claims, which anyone on this machine could make.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pubsub.broker.credentials.identity import ANONYMOUS, SOCKET, Identity
from pubsub.wire.peer_address import is_local

if TYPE_CHECKING:
    from pubsub.http_api.requests.api_request import ApiRequest

# Headers that proxies add to the requests that they forward.
_FORWARDED = (
    b"forwarded",
    b"via",
    b"x-forwarded-for",
    b"x-forwarded-host",
    b"x-forwarded-proto",
    b"x-real-ip",
)
# The address of a client at no known address: no network but the one of all addresses has it.
_UNKNOWN = "0.0.0.0"


def is_from_here(request: ApiRequest) -> bool:
    """Return whether the client is on this machine, and no proxy has forwarded its request."""
    return is_local(request.client) and not _is_forwarded(request)


def address_of(request: ApiRequest) -> str:
    """Return the address of the client for access rules."""
    return _UNKNOWN if _is_masked(request) else request.address


def proved_identity(request: ApiRequest) -> Identity:
    """Return the identity that the client has proved by its connection, and not in the request.

    The user id of a proxy is not the client's. A certificate is different: an operator gives one to
    a proxy so that it has the rights of the name.
    """
    identity = request.channel.identity
    if not _is_masked(request):
        return identity
    if identity.proof in (ANONYMOUS, SOCKET):
        return Identity(host=_UNKNOWN)
    return identity.at(_UNKNOWN)


def _is_masked(request: ApiRequest) -> bool:
    """Return whether the connection is from here, but the request is not."""
    return is_local(request.client) and _is_forwarded(request)


def _is_forwarded(request: ApiRequest) -> bool:
    """Return whether a proxy has forwarded the request.

    nginx adds no header by default, but forwards with HTTP/1.0.
    """
    if request.clientproto == b"HTTP/1.0":
        return True
    return any(map(request.requestHeaders.hasHeader, _FORWARDED))
