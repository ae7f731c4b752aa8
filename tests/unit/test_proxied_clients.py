"""Clients behind a proxy: limits for their address, and events."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from functools import partial
from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.protocols.haproxy._wrapper import HAProxyWrappingFactory
from twisted.trial.unittest import SynchronousTestCase

from pubsub.wire.proxy_protocol import use_proxied_streams
from tests.unit.proxy_headers import header
from tests.unit.streams import Client, House, Stream
from tests.unit.web import WebHouse, WebStream

PROTOCOLS = ("cafe", "nsd", "rheos", "spot")
PROXY = "192.0.2.1"
PORTS = struct.pack("!HH", 4000, 7070)


def header_of(last: int) -> bytes:
    """Return the header of a client at 198.51.100.``last``."""
    return header(addresses=bytes((198, 51, 100, last, 192, 0, 2, 1)) + PORTS)


def behind(refuse: Callable[[str, str], object]) -> Callable[[Any, Stream, Clock], Client]:
    """Return a function that connects the proxy: see ``House.attach``."""

    def attach(factory: Any, stream: Stream, clock: Clock) -> Client:
        wrapping = HAProxyWrappingFactory(factory)
        use_proxied_streams(wrapping, refuse)
        made: Any = wrapping.buildProtocol(None)
        return Client(made, stream, clock)

    return attach


class LimitTests(SynchronousTestCase):
    """``max-connections-per-address``"""

    def check(self, listener: Any, connect: Callable[[], Client]) -> None:
        """Connect clients of two addresses, each of which may have one connection."""
        clients = [connect() for _ in range(3)]
        assert not any(client.closed for client in clients)
        for client, last in zip(clients, (7, 8, 7), strict=True):
            # In two reads, as from a proxy that writes it in pieces.
            client.send(header_of(last)[:9])
            client.send(header_of(last)[9:])
        assert [client.closed for client in clients] == [False, False, True]
        assert listener.counters.refusals == {(listener.event_protocol, "limit-reached"): 1}
        clients[0].stream.lose()
        again = connect()
        again.send(header_of(7))
        assert not again.closed
        # One that the proxy has given up before its header.
        connect().stream.lose()
        for client in (*clients[1:], again):
            client.stream.lose()
        assert listener.quota.open == 0
        listener.quota.admit("198.51.100.7")

    def test_it_is_for_the_address_in_the_header(self) -> None:
        for name in PROTOCOLS:
            house = House({name: {"max-connections-per-address": 1}})
            house.attach = behind(house.listeners[name].refuse)
            self.check(house.listeners[name], partial(house.connect, name, PROXY))

    def test_http(self) -> None:
        house = WebHouse(max_connections_per_address=1)
        attach = behind(house.listener.refuse)

        def connect() -> Client:
            stream = WebStream(house.clock, IPv4Address("TCP", PROXY, 40_000))
            return attach(house.factory, stream, house.clock)

        self.check(house.listener, connect)


class EventTests(SynchronousTestCase):
    """The events of a connection"""

    def test_they_have_the_address_in_the_header(self) -> None:
        house = House({"nsd": {}}, top={"events": True})
        house.attach = behind(house.listeners["nsd"].refuse)
        seen: list[dict[str, Any]] = []
        events: Any = house.listeners["nsd"].events
        events._publish = lambda payloads: seen.extend(map(json.loads, payloads))
        client = house.connect("nsd", PROXY)
        house.turn()
        assert seen == []
        client.send(header_of(7))
        house.turn()
        client.stream.lose()
        house.turn()
        house.connect("nsd", PROXY).stream.lose()
        house.turn()
        found = [(event["event"], event["client"]) for event in seen]
        assert found == [(event, "198.51.100.7:4000") for event in ("connect", "disconnect")]
