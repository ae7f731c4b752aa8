"""The client of the HTTP API, as the commands make it."""

from __future__ import annotations

from pubsub.commands.api_client import Api
from pubsub.commands.destination import Destination


def at(url: str, **files: str) -> Api:
    """Return the client of the API at ``url``."""
    own = {name: files.get(name) for name in ("tls_ca", "tls_cert", "tls_key")}
    return Api(Destination(url, url, None, None, given=True, **own))
