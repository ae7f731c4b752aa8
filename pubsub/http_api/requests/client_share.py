"""The share that a request counts towards, where clients divide a resource (see ``Shares``)."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from twisted.web.http_headers import Headers

from pubsub.errors import BadToken
from pubsub.wire.peer_address import network_of

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener

_SCHEME = b"bearer "


def bearer_token(header: bytes) -> bytes | None:
    """Return the token in a header Authorization; None for another scheme."""
    return header[len(_SCHEME) :].strip() if header.lower().startswith(_SCHEME) else None


def client_of(headers: Headers, listener: Listener, host: str) -> Hashable:
    """Return the client of a request: the subject of its token, else its address, ``host``.

    A token that is not known yet is not verified for this.
    """
    header = headers.getRawHeaders(b"authorization")
    raw = None if header is None else bearer_token(header[-1])
    if raw is not None and listener.tokens.known(raw):
        try:
            return ("token", listener.tokens.check(raw, listener.wall.system()).subject)
        except BadToken:
            # It has expired.
            pass
    return ("address", network_of(host))
