"""``NatsState``: shared state in a key-value bucket of JetStream."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from twisted.internet.defer import Deferred, fail
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.backplane.engine.nats_work import Away
from pubsub.backplane.state.shared_state import HEADER_BYTES, ISharedState
from pubsub.errors import BackplaneAway

if TYPE_CHECKING:
    from pubsub.backplane.engine.nats_connection import NatsConnection
    from pubsub.backplane.state.shared_state import StateEntry, StateWatcher


@implementer(ISharedState)
class NatsState:
    """The bucket of the engine that ``connection`` is connected to, as the reactor sees it.

    ``limit`` returns the bytes of the largest message that the engine takes.
    """

    def __init__(self, connection: NatsConnection, limit: Callable[[], int]) -> None:
        self._connection = connection
        self._limit = limit
        self._changes = 0

    def open(self, watcher: StateWatcher) -> None:
        """See ``ISharedState``."""
        self._connection.state.watchers.append(watcher)

    def get(self, key: str) -> Deferred[StateEntry | None]:
        """See ``ISharedState``."""
        session = self._connection.state
        if not session.is_there:
            return fail(BackplaneAway("the engine is away"))
        return self._connection.run(lambda: session.get(key)).addErrback(_away)

    def put(self, key: str, value: bytes, expected: int, seconds: int) -> Deferred[int]:
        """See ``ISharedState``."""
        self._changes += 1
        session = self._connection.state
        if not session.is_there:
            return fail(BackplaneAway("the engine is away"))
        done = self._connection.run(lambda: session.put(key, value, expected, seconds))
        return done.addErrback(_away)

    def max_bytes(self) -> int:
        """See ``ISharedState``."""
        return max(self._limit() - HEADER_BYTES, 0)

    def figures(self) -> Mapping[str, float]:
        """See ``ISharedState``."""
        return {"state_changes": self._changes}


def _away(failure: Failure) -> NoReturn:
    failure.trap(Away)
    raise BackplaneAway(str(failure.value)) from None
