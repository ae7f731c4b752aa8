"""``LimitedTurns``: a few requests at a time, and a deadline for those that wait."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from twisted.internet.defer import Deferred, DeferredSemaphore

from pubsub.backplane.state.shared_state import in_time

if TYPE_CHECKING:
    from twisted.internet.interfaces import IReactorTime

_Result = TypeVar("_Result")


class LimitedTurns:
    """At most ``number`` requests at the same time; one waits for at most ``seconds``."""

    def __init__(self, number: int, seconds: float, clock: IReactorTime) -> None:
        self._permits = DeferredSemaphore(number)
        self._seconds, self._clock = seconds, clock

    def run(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> Deferred[_Result]:
        """Do ``work`` in its turn; fails with BackplaneAway at the deadline."""
        return Deferred.fromCoroutine(self._run(work))

    async def _run(self, work: Callable[[], Coroutine[Any, Any, _Result]]) -> _Result:
        await in_time(self._permits.acquire(), self._clock, self._seconds)
        try:
            return await work()
        finally:
            self._permits.release()
