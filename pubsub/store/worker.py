"""``Worker``: a few threads that run calls of the history."""

from __future__ import annotations

import errno
from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

READERS = 2
"""Threads that read the log."""
_Result = TypeVar("_Result")
_ThreadCall = tuple[Callable[[], Any], Callable[[Any], object], Callable[[Failure], object]]


class Worker:
    """Runs calls in at most ``threads`` threads; results are handled in the reactor thread.

    Twisted's thread pool does the same, but takes one and a half times the processor time for each
    call, which is noticeable when commits are small.
    """

    def __init__(self, name: str, threads: int, reactor: Any) -> None:
        self._name = name
        self._max_threads = threads
        self._reactor = reactor
        self._calls: SimpleQueue[_ThreadCall | None] = SimpleQueue()
        self._threads: list[Thread] = []
        self._is_leaving = False
        self.pending = 0
        """Calls whose results the reactor thread has not handled."""
        self._progress = 0.0

    @property
    def waiting_seconds(self) -> float:
        """The time for which there are calls and none of them has ended."""
        seconds: float = self._reactor.seconds() - self._progress if self.pending else 0.0
        return seconds

    def run(self, call: Callable[[], _Result]) -> Deferred[_Result]:
        """Run ``call`` in a thread; return a Deferred of its result."""
        done: Deferred[_Result] = Deferred()
        self.hand_over(call, done.callback, done.errback)
        return done

    def hand_over(
        self,
        call: Callable[[], _Result],
        done: Callable[[_Result], object],
        failed: Callable[[Failure], object],
    ) -> None:
        """Run ``call`` in a thread, then ``done`` with its result or ``failed`` in the reactor.

        ``failed`` gets an OSError if there is no thread, and none can be started.
        """
        if not self.pending:
            self._progress = self._reactor.seconds()
        self.pending += 1
        if len(self._threads) < self._max_threads:
            try:
                self._start_thread()
            except (RuntimeError, MemoryError):
                if not self._threads:
                    error = OSError(errno.EAGAIN, "no thread can be started")
                    self._reactor.callFromThread(self._handle, failed, Failure(error))
                    return
        self._calls.put((call, done, failed))
        if self._is_leaving:
            self._dismiss()

    def _start_thread(self) -> None:
        # As a daemon, the thread does not keep a process alive that ends without `stop`.
        thread = Thread(target=self._work, name=self._name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def leave(self) -> None:
        """End the threads when they have nothing to do, without waiting for them.

        Calls may follow: each has a thread that ends with it.
        """
        self._is_leaving = True
        self._dismiss()

    def _dismiss(self) -> None:
        for _ in self._threads:
            self._calls.put(None)
        self._threads.clear()

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            call, done, failed = given
            try:
                result = call()
            except BaseException:
                self._reactor.callFromThread(self._handle, failed, Failure())
            else:
                self._reactor.callFromThread(self._handle, done, result)
                # A thread that waits for the next call must not keep the last one alive.
                del result
            del given, call, done, failed

    def _handle(self, call: Callable[[Any], object], result: Any) -> None:
        self.pending -= 1
        self._progress = self._reactor.seconds()
        call(result)

    def stop(self) -> None:
        """Wait for the calls under way. Calls after that are not run."""
        self._max_threads = 0
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()


def run_alone(name: str, call: Callable[[], _Result], reactor: Any) -> Deferred[_Result]:
    """Run ``call`` in a thread of its own; one that never ends keeps no other waiting."""
    worker = Worker(name, 1, reactor)
    worker.leave()
    return worker.run(call)
