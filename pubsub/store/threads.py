"""Threads of the history: one that writes, a few that read, and the connections of these."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, LifoQueue, SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from pubsub.store.schema import open_reader

log = Logger()
READERS = 2
_Result = TypeVar("_Result")
_Call = tuple[Callable[[], Any], Callable[[Any], object], Callable[[Failure], object]]


class Worker:
    """Runs calls in at most ``threads`` threads; results are handled in the reactor thread.

    Twisted's thread pool does the same, but takes twice the processor time for each call, which is
    noticeable when commits are small.
    """

    def __init__(self, name: str, threads: int, reactor: Any) -> None:
        self._name = name
        self._max_threads = threads
        self._reactor = reactor
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[Thread] = []

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
        """Run ``call`` in a thread, then ``done`` with its result or ``failed`` in the reactor."""
        self._calls.put((call, done, failed))
        if len(self._threads) < self._max_threads:
            # As a daemon, the thread does not keep a process alive that ends without `stop`.
            thread = Thread(target=self._work, name=self._name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while (given := self._calls.get()) is not None:
            call, done, failed = given
            try:
                result = call()
            except BaseException:
                self._reactor.callFromThread(failed, Failure())
            else:
                self._reactor.callFromThread(done, result)
                # A thread that waits for the next call must not keep it alive.
                del result
            del given, call, done, failed

    def stop(self) -> None:
        """Wait for the calls under way. Calls after that are not run."""
        self._max_threads = 0
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()


class ReaderPool:
    """Threads that read the file at ``path``, with as many connections."""

    def __init__(self, path: Path, reactor: Any) -> None:
        self._path = path
        self._worker = Worker("history-reader", READERS, reactor)
        self._connections: LifoQueue[sqlite3.Connection] = LifoQueue()

    def run(self, call: Callable[[sqlite3.Connection], _Result]) -> Deferred[_Result]:
        """Run ``call`` with a connection in a thread; return a Deferred of its result."""
        return self._worker.run(partial(self._with_connection, call))

    def _with_connection(self, call: Callable[[sqlite3.Connection], _Result]) -> _Result:
        try:
            connection = self._connections.get_nowait()
        except Empty:
            connection = open_reader(self._path)
        try:
            result = call(connection)
        except BaseException:
            # The connection may be in any state.
            connection.close()
            raise
        self._connections.put(connection)
        return result

    def stop(self) -> None:
        """Wait for the reads under way and close the connections."""
        self._worker.stop()
        with suppress(Empty):
            while True:
                self._connections.get_nowait().close()


def log_failure(failure: Failure) -> None:
    """Log the failure of a task that no client waits for."""
    log.error(
        "history: maintenance failed and is tried again: {reason}", reason=failure.getErrorMessage()
    )
