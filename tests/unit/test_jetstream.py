"""Streams that a cluster does not make."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from nats.js.api import StreamConfig
from nats.js.errors import APIError, NotFoundError
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine.jetstream import NoLeader, make_stream
from pubsub.backplane.engine.nats_work import Unusable


def make(description: str) -> None:
    """Ask for a stream, for which there are too few servers."""
    error = APIError(code=400, err_code=10005, description=description)
    js: Any = SimpleNamespace(
        stream_info=AsyncMock(side_effect=NotFoundError), add_stream=AsyncMock(side_effect=error)
    )
    asyncio.run(make_stream(js, StreamConfig(name="pubsub"), "bucket 'pubsub'", "the limits"))


class PlacementTests(SynchronousTestCase):
    def test_servers_that_are_away_are_waited_for(self) -> None:
        with pytest.raises(NoLeader, match="bucket 'pubsub'"):
            make("no suitable peers for placement, peer offline")

    def test_other_reasons_need_a_change(self) -> None:
        with pytest.raises(Unusable, match="insufficient storage; check the limits"):
            make("no suitable peers for placement, insufficient storage")
