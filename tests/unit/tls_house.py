"""A house that serves over TLS."""

from __future__ import annotations

import ssl

from tests.unit import cafe_wire as wire
from tests.unit.streams import Client, House
from tests.unit.tls_streams import V13, over_tls

CAFE = {"cafe": {"channels": "1:shared"}}


def serve(version: ssl.TLSVersion = V13, **settings: object) -> House:
    """Return a broker with a cafe listener over TLS."""
    own = {name.replace("_", "-"): value for name, value in settings.items()}
    house = House({"cafe": {**CAFE["cafe"], **own}})
    house.attach = over_tls(version)
    house.start()
    return house


def publisher(house: House) -> Client:
    """Return a client that has done cafe's handshake."""
    client = house.connect("cafe")
    client.send(wire.hs_pub(1))
    house.pump(3)
    assert len(client.take()) == len(wire.ack(0))
    return client
