"""Clients of the library with several brokers in memory: one at each port of a host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pubsub.client.base_client import Client
from pubsub.client.client_options import read_options
from pubsub.client.client_tls import TlsOptions
from pubsub.client.runtime import Cancel, Observer
from tests.unit.client_runtime import MemoryRuntime, MemoryStream
from tests.unit.streams import House


class SeveralBrokers(MemoryRuntime):
    """Connects to the broker of ``houses`` at the port of a URL.

    ``tried`` has the ports of all attempts. Those in ``down`` refuse connections, and those in
    ``silent`` accept them and never answer.
    """

    def __init__(self, houses: Mapping[int, House]) -> None:
        super().__init__(next(iter(houses.values())))
        self.houses = houses
        self.tried: list[int] = []
        self.refusing: set[int] = set()
        self.silent: set[int] = set()
        self.at: dict[int, list[MemoryStream]] = {port: [] for port in houses}

    def connect(self, host: str, port: int, tls: TlsOptions | None, observer: Observer) -> Cancel:
        def arrive() -> None:
            self.tried.append(port)
            if port in self.refusing:
                observer.lost("connection refused")
            else:
                stream = MemoryStream(self.houses[port], host, observer)
                stream.reading = port not in self.silent
                self.streams.append(stream)
                self.at[port].append(stream)
                observer.made(stream)

        return self.call_later(0, arrive)

    def settle(self) -> None:
        """End ticks and transfer output until nothing changes."""
        moved = True
        while moved:
            self.house.clock.advance(0.05)
            for house in self.houses.values():
                house.pump(3)
            moved = sum(stream.carry() for stream in self.streams) > 0

    def kill(self, port: int) -> None:
        """Have the broker at ``port`` go away."""
        self.refusing.add(port)
        for stream in self.at[port]:
            stream.snap()
        self.settle()

    def client_of(self, protocol: str, *ports: int, **options: Any) -> Client:
        """Return a client with the URLs of these ports."""
        urls = [f"{protocol}://{protocol}:{port}" for port in ports]
        return Client(self, read_options(urls, **options))
