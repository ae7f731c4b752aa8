"""Threads of the history: one that writes, a few that read, each with what it needs."""

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
    """At most ``threads`` threads that calls are made in; results come back to the reactor's.

    Twisted's pool does as much, and takes twice the processor time, which shows where commits are
    small.
    """

    def __init__(self, name: str, threads: int, reactor: Any) -> None:
        self._name = name
        self._most = threads
        self._reactor = reactor
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: list[Thread] = []

    def run(self, call: Callable[[], _Result]) -> Deferred[_Result]:
        """The result of ``call``."""
        done: Deferred[_Result] = Deferred()
        self.hand_over(call, done.callback, done.errback)
        return done

    def hand_over(
        self,
        call: Callable[[], _Result],
        done: Callable[[_Result], object],
        failed: Callable[[Failure], object],
    ) -> None:
        """Have the reactor call ``done`` with what ``call`` returns, or ``failed``."""
        self._calls.put((call, done, failed))
        if len(self._threads) < self._most:
            # A process that ends in another way than by `stop` does not wait for it.
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
                # Not to be kept alive by a thread that waits.
                del result
            del given, call, done, failed

    def stop(self) -> None:
        """Wait for the calls under way."""
        # What comes too late starts no thread any more.
        self._most = 0
        for _ in self._threads:
            self._calls.put(None)
        for thread in self._threads:
            thread.join()


class Readers:
    """Threads that read the file at ``path``, and as many connections."""

    def __init__(self, path: Path, reactor: Any) -> None:
        self._path = path
        self._worker = Worker("history-reader", READERS, reactor)
        self._connections: LifoQueue[sqlite3.Connection] = LifoQueue()

    def run(self, call: Callable[[sqlite3.Connection], _Result]) -> Deferred[_Result]:
        """The result of ``call``, which is given a connection."""
        return self._worker.run(partial(self._with_connection, call))

    def _with_connection(self, call: Callable[[sqlite3.Connection], _Result]) -> _Result:
        try:
            connection = self._connections.get_nowait()
        except Empty:
            connection = open_reader(self._path)
        try:
            result = call(connection)
        except BaseException:
            # Whatever state it is in, the next one is new.
            connection.close()
            raise
        self._connections.put(connection)
        return result

    def stop(self) -> None:
        """Wait for the reads under way, and close."""
        self._worker.stop()
        with suppress(Empty):
            while True:
                self._connections.get_nowait().close()


def complain(failure: Failure) -> None:
    """Log what went wrong where nobody waits for it."""
    log.error("history: housekeeping: {reason}", reason=failure.getErrorMessage())
