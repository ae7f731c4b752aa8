"""Fixtures: brokers that run for one test and must end without an error, and a NATS server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker import HOST, Broker, Start, listen
from tests.integration.command import settings, url
from tests.integration.nats_server import NatsServer, nats_server


@pytest.fixture
def broker(start: Start) -> Broker:
    """Return a broker with one cafe and one nsd listener and no options."""
    return start(*listen("cafe", "nsd"))


@pytest.fixture
def served(start: Start) -> Broker:
    """Return a broker with the HTTP API as well."""
    return start(*listen("cafe", "nsd"), f"--admin-port=tcp:0:interface={HOST}")


@pytest.fixture
def env(served: Broker, tmp_path: Path) -> dict[str, str]:
    """Return an environment with the cafe listener and the API of ``served``."""
    return settings(url(served, "cafe"), tmp_path, PUBSUB_API=url(served, "http"))


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """Return a NATS server with JetStream."""
    with nats_server(tmp_path) as made:
        yield made
