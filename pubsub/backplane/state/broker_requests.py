"""Requests to other brokers by the shared state: each watches the keys of those that are for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater

from pubsub.backplane.state.outdated import Outdated

if TYPE_CHECKING:
    from pubsub.backplane.state.shared_state import ISharedState

# Seconds that a broker may take to answer.
_ANSWERED = 1.0
# Seconds between two looks for an answer: the first, and the longest.
_LOOK, _LONGEST_LOOK = 0.02, 0.1
_ATTEMPTS = 4
# Brokers that are known not to answer.
_SILENT = 100


class BrokerRequests:
    """Requests of one kind; ``bounded`` gives a request to the shared state a deadline."""

    def __init__(
        self, state: ISharedState, bounded: Callable[[Deferred[Any]], Deferred[Any]], clock: Any
    ) -> None:
        self._state, self._bounded, self._clock = state, bounded, clock
        # The brokers that have not answered, with the revisions of their values then.
        self._silent: dict[str, int] = {}

    async def put(self, key: str, value: bytes, seconds: int) -> bool:
        """Write a request, which is kept for ``seconds``; raises BackplaneAway.

        It replaces an earlier one of any broker. False if others replace it all the time.
        """
        revision = 0
        for _ in range(_ATTEMPTS):
            try:
                await self._bounded(self._state.put(key, value, revision, seconds))
            except Outdated as before:
                revision = before.revision
            else:
                return True
        return False

    def wait_for_answer(self) -> AnswerWait:
        """Begin to look for an answer."""
        return AnswerWait(self._clock)

    def is_silent(self, broker: str, revision: int) -> bool:
        """Return whether ``broker`` did not answer, and has given no sign of life since.

        ``revision`` is that of the value that it writes while it runs.
        """
        return self._silent.get(broker) == revision

    def note_silent(self, broker: str, revision: int) -> None:
        """``broker`` has not answered."""
        self._silent[broker] = revision
        while len(self._silent) > _SILENT:
            del self._silent[next(iter(self._silent))]


class AnswerWait:
    """The pauses between the looks for one answer."""

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._until, self._pause = clock.seconds() + _ANSWERED, _LOOK

    async def look_again(self) -> bool:
        """Return True after a pause, or False if the time is over."""
        if self._clock.seconds() >= self._until:
            return False
        await deferLater(self._clock, self._pause)
        self._pause = min(2 * self._pause, _LONGEST_LOOK)
        return True
