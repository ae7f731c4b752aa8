"""The rounds of upkeep: steps in a thread, one after another, also after failures."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from threading import current_thread, main_thread
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.trial.unittest import TestCase

from pubsub.store.upkeep import upkeep
from pubsub.store.upkeep.upkeep import Rounds, Upkeep
from tests.unit.streams import logged

REACTOR: Any = reactor


class Steps:
    """Stands for the upkeep: each step has one of ``results``; ``done`` fires after the last."""

    def __init__(self, *results: bool | Exception) -> None:
        self.results = list(results)
        self.times: list[int] = []
        self.done: Deferred[None] = Deferred()

    def step(self, now: int) -> bool:
        assert current_thread() is not main_thread()
        self.times.append(now)
        result = self.results.pop(0)
        if not self.results:
            REACTOR.callFromThread(self.done.callback, None)
        if isinstance(result, Exception):
            raise result
        return result

    def close(self) -> None:
        pass


class QuickReactor:
    """The reactor, with ``delays`` that it notes instead of waiting."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.seconds = REACTOR.seconds
        self.callFromThread = REACTOR.callFromThread

    def callLater(self, seconds: float, call: Callable[[], None]) -> IDelayedCall:
        self.delays.append(seconds)
        later: IDelayedCall = REACTOR.callLater(0, call)
        return later


class RoundsTests(TestCase):
    """Rounds"""

    def setUp(self) -> None:
        self.reactor = QuickReactor()
        self.now = 0

    def time(self) -> int:
        """Return another time for each step."""
        self.now += 1
        return self.now

    async def run_steps(self, *results: bool | Exception) -> list[float]:
        """Do these steps, and return the pauses before them."""
        steps = Steps(*results)
        rounds = Rounds(self.reactor, cast(Upkeep, steps), self.time)
        await steps.done
        rounds.stop()
        assert steps.times == list(range(1, len(results) + 1))
        return self.reactor.delays[: len(results)]

    async def test_the_next_step_follows_soon_if_there_is_more_to_do(self) -> None:
        pauses = await self.run_steps(False, True, True, False, False)
        soon, later = upkeep._STEP_SECONDS, upkeep.ROUND_SECONDS
        assert pauses == [later, later, soon, soon, later]

    async def test_a_failure_is_tried_again_later(self) -> None:
        lines = logged(self)
        pauses = await self.run_steps(OSError(5, "broken"), sqlite3.OperationalError("full"), False)
        assert pauses == [upkeep.ROUND_SECONDS, upkeep._RETRY_SECONDS, upkeep._RETRY_SECONDS]
        again = "history: maintenance failed and is tried again:"
        assert lines == [f"{again} [Errno 5] broken", f"{again} full"]

    async def test_a_defect_is_logged_with_its_traceback(self) -> None:
        await self.run_steps(ValueError("unexpected"), False)
        assert len(self.flushLoggedErrors(ValueError)) == 1  # type: ignore[no-untyped-call]

    async def test_no_step_follows_the_end(self) -> None:
        steps = Steps(True)
        rounds = Rounds(self.reactor, cast(Upkeep, steps), self.time)
        await steps.done
        rounds.stop()
        ended: Deferred[None] = Deferred()
        # Behind the result of the step.
        REACTOR.callFromThread(ended.callback, None)
        await ended
        assert (len(steps.times), len(self.reactor.delays)) == (1, 1)
