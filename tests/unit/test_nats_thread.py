"""``NatsThread``: subjects that are wanted while a connection is made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.nats_thread import Change, NatsThread


class _Client:
    """A connection to the engine; ``meanwhile`` is called before the next flush ends."""

    def __init__(self) -> None:
        self.subscribed: list[str] = []
        self.meanwhile: Callable[[], object] = lambda: None

    async def subscribe(self, subject: str, cb: object) -> SimpleNamespace:
        self.subscribed.append(subject)
        return SimpleNamespace(unsubscribe=lambda: self._end(subject))

    async def _end(self, subject: str) -> None:
        self.subscribed.remove(subject)

    async def flush(self, timeout: int) -> None:
        meanwhile, self.meanwhile = self.meanwhile, lambda: None
        meanwhile()


class ConnectingTests(SynchronousTestCase):
    """Changes of subscriptions before the connection can be used"""

    def setUp(self) -> None:
        options = cast(Any, SimpleNamespace(servers=SimpleNamespace(urls=["nats://engine:4222"])))
        self.thread = NatsThread(options, cast(Any, None), lambda *_: None)
        self.client: Any = _Client()
        self.change("first", True)

    def change(self, subject: str, begins: bool) -> None:
        self.thread._take_work([Change(subject, begins)], [])

    def subscribe_all(self) -> None:
        async def run() -> None:
            await self.thread._subscribe_all(self.client)
            while self.thread._changes:
                await self.thread._change(self.client, self.thread._changes.popleft())

        asyncio.run(run())

    def test_a_subject_added_during_the_flush(self) -> None:
        self.client.meanwhile = lambda: self.change("second", True)
        self.subscribe_all()
        assert self.client.subscribed == ["first", "second"]

    def test_a_subject_removed_during_the_flush(self) -> None:
        self.change("second", True)
        self.client.meanwhile = lambda: self.change("first", False)
        self.subscribe_all()
        assert self.client.subscribed == ["second"]
