"""A house with a spot listener."""

from __future__ import annotations

from tests.unit.brokers import ready
from tests.unit.streams import Client, House


def house(**settings: object) -> House:
    """Return a broker with one spot listener."""
    return House({"spot": {name.replace("_", "-"): value for name, value in settings.items()}})


def join(house: House, kind: bytes = b"DEALER", *requests: bytes) -> Client:
    """Return a client that has sent a handshake and ``requests``."""
    client = house.connect("spot")
    client.send(ready(kind) + b"".join(requests))
    house.turn()
    client.take()
    return client
