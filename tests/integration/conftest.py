"""Fixtures: brokers that run for one test and must end without an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.broker import Broker, Start, brokers, listen


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start brokers with options of the test; see ``brokers``."""
    with brokers(tmp_path) as starter:
        yield starter


@pytest.fixture
def broker(start: Start) -> Broker:
    """Return a broker with one cafe and one nsd listener and no options."""
    return start(*listen("cafe", "nsd"))
