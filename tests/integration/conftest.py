"""Fixtures: brokers that run for one test and must end without an error."""

from __future__ import annotations

import pytest

from tests.integration.broker import Broker, Start, listen


@pytest.fixture
def broker(start: Start) -> Broker:
    """Return a broker with one cafe and one nsd listener and no options."""
    return start(*listen("cafe", "nsd"))
