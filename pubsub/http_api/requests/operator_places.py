"""Places for the requests of operators while clients use all memory, or all connections."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pubsub.http_api.requests.request_target import origin_form

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener

PLACE_SECONDS = 5.0
"""Seconds in which the request of a connection with a place begins to arrive, and those of its end
unless it is fast (see ``arrival_seconds``)."""
# Places at a time. Clients that stay, such as followers, can be all that ``spares_next`` admits.
_PLACES = 16


class OperatorPlaces:
    """Admits further connections at these bounds, for one request of an operator each.

    ``is_for_operators`` returns whether the endpoint with this path answers such requests.
    """

    def __init__(self, listener: Listener, is_for_operators: Callable[[bytes], bool]) -> None:
        self._listener = listener
        self._is_for_operators = is_for_operators
        self._taken: set[object] = set()

    def take(self, connection: object) -> bool:
        """Return whether a new connection needs a place, and has got one."""
        memory, quota = self._listener.memory, self._listener.quota
        is_needed = quota.full or (memory.full and not quota.spares_next)
        if not is_needed or len(self._taken) >= _PLACES:
            return False
        self._taken.add(connection)
        return True

    def give_back(self, connection: object) -> None:
        """The connection has ended, or it needs no place."""
        self._taken.discard(connection)

    def is_taken_by(self, connection: object) -> bool:
        """Return whether the connection has a place."""
        return connection in self._taken

    def check(self) -> None:
        """Raise MemoryExhausted or LimitReached if a connection with a place still needs it."""
        self._listener.memory.check()
        self._listener.quota.check_total()

    def serves(self, target: bytes) -> bool:
        """Return whether a request with this target is one of an operator."""
        return self._is_for_operators(origin_form(target)[0].partition(b"?")[0])
