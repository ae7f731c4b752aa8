"""Threads of the history: one that writes, a few that read, each with what it needs."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, LifoQueue
from threading import Thread
from typing import Any, TypeVar

from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.threadpool import ThreadPool

from pubsub.store.schema import open_reader

log = Logger()
READERS = 2
_Result = TypeVar("_Result")


class _Daemon(Thread):
    """A process that ends in another way than by `stop` does not wait for it."""

    daemon = True


class _Daemons(ThreadPool):
    threadFactory = _Daemon


class Worker:
    """At most ``threads`` threads that calls are made in; results come back to the reactor's."""

    def __init__(self, name: str, threads: int, reactor: Any) -> None:
        self._reactor = reactor
        self._pool = _Daemons(0, threads, name)
        self._pool.start()

    def run(self, call: Callable[[], _Result]) -> Deferred[_Result]:
        """The result of ``call``."""
        done: Deferred[_Result] = deferToThreadPool(self._reactor, self._pool, call)
        return done

    def stop(self) -> None:
        """Wait for the calls under way."""
        self._pool.stop()


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
