"""Backpressure on a commit: it waits for what any publisher would have to wait for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from pubsub.errors import RateLimited

if TYPE_CHECKING:
    from pubsub.broker.publisher import Publisher
    from pubsub.broker.service import BrokerService
    from pubsub.broker.topics import Topic

SECONDS = 20.0
"""How long a commit waits before its client is to try again."""


class _Waiter:
    """Something that is held (see ``Publishing``) until everything lets go of it."""

    publisher: Publisher | None = None

    def __init__(self) -> None:
        self._holds: set[object] = set()
        self._free: Deferred[None] | None = None

    def hold(self, reason: object) -> None:
        self._holds.add(reason)

    def release(self, reason: object) -> None:
        self._holds.discard(reason)
        if not self._holds and self._free is not None and not self._free.called:
            self._free.callback(None)

    def freed(self) -> Deferred[None]:
        self._free = Deferred()
        if not self._holds:
            self._free.callback(None)
        return self._free


async def until_free(broker: BrokerService, topics: Iterable[Topic]) -> None:
    """Wait while a topic, the memory or the history holds publishers back; raises RateLimited."""
    ends = broker.seconds() + SECONDS
    while True:
        waiter = _Waiter()
        for topic in topics:
            if topic.blocked():
                topic.wait(waiter)
        if broker.memory.full:
            broker.memory.wait(waiter)
        if broker.store.gate.shut:
            broker.store.gate.wait(waiter)
        freed = waiter.freed()
        if freed.called:
            return
        late = broker.clock.callLater(max(ends - broker.seconds(), 0.0), freed.cancel)
        try:
            await freed
        except Exception:
            raise RateLimited("a subscriber, the memory bound or the history holds this") from None
        finally:
            if late.active():
                late.cancel()
