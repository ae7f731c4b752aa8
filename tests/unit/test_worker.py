"""``Worker``: calls in threads, and the end of the threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.worker import Worker

SECONDS = 30.0


class Reactor:
    """Keeps the calls of threads until they are run."""

    def __init__(self) -> None:
        self.calls: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()

    def callFromThread(self, call: Callable[..., object], *arguments: Any) -> None:
        self.calls.put((call, arguments))

    def seconds(self) -> float:
        return 0.0

    def run(self, number: int) -> None:
        """Run this number of calls; wait for those that have not been made yet."""
        for _ in range(number):
            call, arguments = self.calls.get(timeout=SECONDS)
            call(*arguments)


class LeavingTests(SynchronousTestCase):
    """The end of the threads"""

    def setUp(self) -> None:
        self.reactor = Reactor()
        self.worker = Worker("of a test", 2, self.reactor)
        self.addCleanup(self.worker.stop)

    def call(self) -> str:
        return "done"

    def test_threads_end_after_the_calls_before(self) -> None:
        may_end = threading.Event()
        results = [self.worker.run(lambda: (may_end.wait(SECONDS), self.call())) for _ in range(5)]
        self.worker.leave()
        may_end.set()
        self.reactor.run(5)
        assert [self.successResultOf(one) for one in results] == [(True, "done")] * 5
        self.ended()

    def test_calls_after_it_are_carried_out(self) -> None:
        first = self.worker.run(self.call)
        self.worker.leave()
        self.worker.leave()
        results = [first, *[self.worker.run(self.call) for _ in range(5)]]
        self.reactor.run(6)
        assert [self.successResultOf(one) for one in results] == ["done"] * 6
        self.ended()

    def ended(self) -> None:
        # A thread may have made no call.
        for thread in threading.enumerate():
            if thread.name == "of a test":
                thread.join(SECONDS)
        assert not any(one.name == "of a test" for one in threading.enumerate())
