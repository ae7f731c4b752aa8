"""Flow control: requests wait for backpressure as any publisher does, responses for the disk."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from pubsub.broker.publishing.held_request import HeldRequest
from pubsub.errors import RateLimited

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore

WAIT_SECONDS = 20.0
"""Seconds that a request waits before its client gets the answer to try again."""


def all_stored(store: IStore) -> Deferred[bool]:
    """Fire with True when everything so far is stored as a ``sync`` topic needs it; else False."""
    done: Deferred[bool] = Deferred()
    store.when_stored(done.callback)
    return done


async def wait_for_backpressure(
    listener: Listener, topics: Iterable[Topic], ends: float | None = None
) -> None:
    """Wait while a topic, the memory bound, the history or the backplane holds publishers.

    Raises RateLimited at the time ``ends``, by default after WAIT_SECONDS.
    """
    clock, memory, gate = listener.clock, listener.memory, listener.store.gate
    if ends is None:
        ends = clock.seconds() + WAIT_SECONDS
    while True:
        waiter = HeldRequest()
        for topic in topics:
            if topic.blocked():
                topic.wait(waiter)
        if memory.full:
            memory.wait(waiter)
        if gate.shut:
            gate.wait(waiter)
        if listener.router.gate.shut:
            listener.router.gate.wait(waiter)
        forwarding = listener.router.forwarding
        if forwarding is not None and forwarding.gate.shut:
            forwarding.gate.wait(waiter)
        released = waiter.released()
        if released.called:
            return
        timeout = clock.callLater(max(ends - clock.seconds(), 0.0), released.cancel)
        try:
            await released
        except Exception:
            raise RateLimited(
                "a slow subscriber, the memory bound, the history or the backplane holds publishers"
            ) from None
        finally:
            if timeout.active():
                timeout.cancel()
        # Not within the call that released it, such as the end of a topic.
        turn: Deferred[None] = Deferred()
        listener.at_tick_end(partial(turn.callback, None))
        await turn
