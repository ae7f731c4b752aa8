"""A broker with every protocol, and clients that publish over each of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pubsub.client.blocking import Client, connect
from tests.integration.broker import HOST, Broker, Start, listen
from tests.integration.cluster import free_port
from tests.integration.fast_client import make_secret, make_token

TOPICS = {
    "cafe": "cafe/7",
    "nsd": "orders",
    "rheos": "measurements",
    "spot": "prices",
    "fast": "billing",
}
"""The topic of each protocol's traffic."""
TICK = 0.05


class EveryProtocol:
    """A broker with all protocols and a secret, at a port of the API that it keeps.

    Without a token the API shows nothing; ``token`` has all permissions.
    """

    def __init__(self, start: Start, directory: Path) -> None:
        self._start = start
        self._store = directory / "history"
        self.secret = make_secret(directory / "secret")
        self.token = make_token(self.secret).decode()
        self.port = free_port()
        self.broker = self.begin()

    @property
    def url(self) -> str:
        """The address of the dashboard."""
        return f"http://{HOST}:{self.port}/"

    def begin(self) -> Broker:
        """Start the broker, again if it was killed."""
        self.broker = self._start(
            *listen(*TOPICS),
            f"--admin-port=tcp:{self.port}:interface={HOST}",
            f"--secret-file={self.secret}",
            f"--store=log:{self._store}",
            "--grant=*",
        )
        return self.broker

    def connect(self, protocol: str, name: str) -> Client:
        """Return a client over this protocol."""
        token = self.token if protocol == "fast" else None
        url = f"{protocol}://{HOST}:{self.broker.port(protocol)}"
        return connect(url, client_id=name, token=token)


@contextmanager
def publishers(broker: EveryProtocol) -> Iterator[dict[str, Client]]:
    """Yield a client for each protocol, by its name."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(broker.connect(name, f"{name}-publisher")) for name in TOPICS
        }


@contextmanager
def waves(broker: EveryProtocol) -> Iterator[None]:
    """Publish over every protocol meanwhile, sometimes more and sometimes less."""
    ended = threading.Event()
    with publishers(broker) as clients:
        thread = threading.Thread(target=_publish_waves, args=(clients, ended))
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _publish_waves(clients: dict[str, Client], ended: threading.Event) -> None:
    tick = 0
    while not ended.wait(TICK):
        tick += 1
        for number, (name, client) in enumerate(clients.items()):
            many = round(12 / (number + 1) * (1.3 + math.sin(tick * TICK / (4 + number) + number)))
            client.publish_many(TOPICS[name], [reading(tick + n) for n in range(many)])


def reading(number: int) -> bytes:
    """Return a payload of JSON."""
    celsius = 20 + 4 * math.sin(number / 40)
    return (
        b'{"device": %d, "celsius": %.2f, "tags": ["hall", "north"], "at": {"x": 1.5, "y": %d}}'
        % (number % 40, celsius, number)
    )
