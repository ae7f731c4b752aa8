"""The client of the HTTP API, as the commands make it."""

from __future__ import annotations

from pubsub.commands.api_client import Api
from pubsub.commands.destination import Destination


def at(url: str, **files: str) -> Api:
    """Return the client of the API at ``url``."""
    return Api(
        Destination(
            url, url, None, None, files.get("tls_ca"), files.get("tls_cert"), None, given=True
        )
    )
