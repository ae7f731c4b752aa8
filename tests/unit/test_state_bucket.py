"""The bucket of NATS, whose client may return less than it should."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

from nats.js.errors import NotFoundError
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.engine.state_bucket import StateBucket


class _Client:
    """A connection to an engine that has lost the consumer."""

    def __init__(self) -> None:
        self.is_closed = False

    def jetstream(self, timeout: float) -> Any:
        source = SimpleNamespace(
            # nats-py: a status of a temporary error, and then nothing in time.
            fetch=AsyncMock(return_value=[]),
            consumer_info=self._info,
        )
        return SimpleNamespace(pull_subscribe=AsyncMock(return_value=source))

    async def _info(self) -> None:
        self.is_closed = True
        raise NotFoundError


class StateBucketTests(SynchronousTestCase):
    def test_a_pull_without_messages(self) -> None:
        """The bucket is watched again; the connection, which has other work, goes on."""
        bucket, away = StateBucket(1, lambda call: call(), str), []
        bucket.watchers.append(SimpleNamespace(state_away=lambda: away.append(True)))
        with (
            patch.object(bucket, "prepare", AsyncMock()),
            patch("pubsub.backplane.engine.state_bucket.asyncio.sleep", AsyncMock()),
        ):
            asyncio.run(bucket.keep(_Client()))  # type: ignore[arg-type]
        assert away == [True]
