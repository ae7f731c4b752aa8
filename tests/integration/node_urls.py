"""URLs of the brokers of a cluster."""

from __future__ import annotations

from tests.integration.broker import HOST
from tests.integration.places import Place


def url(place: Place) -> str:
    return f"http://{HOST}:{place.broker.port('http')}"
