"""The client of the HTTP API, as the commands make it."""

from __future__ import annotations

from pubsub.commands.api_client import Api
from pubsub.commands.destination import Destination


def at(url: str, **files: str) -> Api:
    """Return the client of the API at ``url``."""
    ca, cert, key = map(files.get, ("tls_ca", "tls_cert", "tls_key"))
    return Api(Destination(url, url, None, None, tls_ca=ca, tls_cert=cert, tls_key=key, given=True))
