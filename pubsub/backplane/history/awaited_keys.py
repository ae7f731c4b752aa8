"""``AwaitedKeys``: queue keys that reach this broker later than messages of their topics.

Messages come through the stream, and queue keys through the shared state. A broker that is new, or
was away, reads both at the same time; and of a topic that was just made, the message can be first.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any

from twisted.internet.task import deferLater

from pubsub.backplane.history.replica_stream import StreamAway
from pubsub.backplane.state.entry_format import MalformedEntry
from pubsub.backplane.topics.topic_entry import decode, key_of
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.backplane.state.shared_state import ISharedState
    from pubsub.broker.credentials.queue_keys import QueueKeys

# Seconds for which a key is waited for, between two looks, and for which a topic without one is not
# waited for again.
_PATIENCE, _LOOK, _PAUSE = 5.0, 0.05, 60.0
_MICROSECONDS = 10**6
# Topics that are remembered to have no key.
_ABSENT = 10_000

KeyWait = Callable[["Deferred[Any]"], Awaitable[Any]]


class AwaitedKeys:
    """Waits for ``keys``. ``clock`` is the reactor, ``now`` the time of the system in seconds."""

    def __init__(self, keys: QueueKeys, clock: Any, now: Callable[[], float] = time.time) -> None:
        self._keys = keys
        self._clock = clock
        self._now = now
        self._state: ISharedState | None = None
        self._is_complete: Callable[[], bool]
        # When the shared state had no key for a topic.
        self._absent: dict[str, float] = {}

    def follow(self, state: ISharedState, is_complete: Callable[[], bool]) -> None:
        """The keys come from ``state``; ``is_complete`` returns whether all of them are here."""
        self._state, self._is_complete = state, is_complete

    async def arrive(self, names: Collection[str], timestamp: int, wait: KeyWait) -> None:
        """Return when the keys of the topics are here, or when there are none to wait for.

        The topics have keys at the origin of messages with this ``timestamp`` (µs). ``wait`` waits
        for a Deferred. Raises StreamAway to begin again later.
        """
        if self._state is not None:
            for name in names:
                if self._lacks(name) and self._absent.get(name, 0.0) < _end_of(timestamp):
                    await self._arrive(name, _end_of(timestamp), wait)

    def _lacks(self, name: str) -> bool:
        return self._keys.proof(name) == b""

    async def _arrive(self, name: str, shared: float, wait: KeyWait) -> None:
        """Wait for a key that its broker has shared by the time ``shared``, if there is one."""
        deadline = self._clock.seconds() + _PATIENCE
        if self._now() - self._absent.get(name, 0.0) < _PAUSE:
            shared = 0.0
        while self._lacks(name):
            is_late = self._clock.seconds() >= deadline
            is_there = self._is_complete() and await self._is_shared(name, wait)
            if self._is_complete() and not is_there and (is_late or self._now() >= shared):
                self._forget_some()
                self._absent[name] = self._now()
                return
            if is_late:
                raise StreamAway("the shared state has not given the queue keys of its topics yet")
            await wait(deferLater(self._clock, _LOOK))

    async def _is_shared(self, name: str, wait: KeyWait) -> bool:
        assert self._state is not None
        try:
            found = await wait(self._state.get(key_of(name)))
            return found is not None and decode(found.value).key != b""
        except BackplaneAway as error:
            raise StreamAway(f"the shared state: {error}") from None
        except MalformedEntry:
            return False

    def _forget_some(self) -> None:
        if len(self._absent) >= _ABSENT:
            self._absent.clear()


def _end_of(timestamp: int) -> float:
    """Return the time by which the broker that has published then has shared the topic's key."""
    return timestamp / _MICROSECONDS + _PATIENCE
