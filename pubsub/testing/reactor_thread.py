"""The thread of the reactor in a test process, and calls of functions in it from other threads.

A reactor that runs already is used. Otherwise one daemon thread runs it from the first use to the
end of the process.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from twisted.internet.defer import maybeDeferred
from twisted.internet.error import ReactorNotRunning
from twisted.python import threadable
from twisted.python.failure import Failure

from pubsub.errors import StartError

SECONDS = 30.0
"""Seconds that a call in the reactor may take, which only a blocked reactor exceeds."""
_lock = threading.Lock()
# The process that the thread was started in: a child that was forked has no such thread.
_started_by: int | None = None


def global_reactor() -> Any:
    """Return the reactor; the first use installs the default one, if there is none yet."""
    from twisted.internet import reactor

    return reactor


def runs_here() -> bool:
    """Return whether the reactor runs in this thread, which must not wait for it then."""
    return bool(global_reactor().running) and threadable.isInIOThread()


def runs_elsewhere() -> bool:
    """Return whether the reactor runs in another thread, which does not notice calls here."""
    return bool(global_reactor().running) and not threadable.isInIOThread()


def call_in_reactor(function: Callable[[], Any], seconds: float = SECONDS) -> Any:
    """Return the result of ``function``, called in the reactor, which runs in another thread.

    If the result is a Deferred, its own result is returned.

    Starts the thread if the reactor does not run. Raises the function's error, and StartError
    if it cannot be called.
    """
    _ensure_running()
    done: Future[Any] = Future()

    def call() -> None:
        deferred = maybeDeferred(function)
        deferred.addCallbacks(done.set_result, lambda failure: _fail(done, failure))

    global_reactor().callFromThread(call)
    try:
        return done.result(seconds)
    except TimeoutError:
        if done.done():
            raise
        raise StartError(
            f"the reactor did not answer for {seconds:g} s; is a test blocking it?"
        ) from None


def _fail(done: Future[Any], failure: Failure) -> None:
    error = failure.value
    done.set_exception(error if error is not None else RuntimeError("failed"))


def _ensure_running() -> None:
    """Run the reactor in a thread, unless it runs; raises StartError."""
    global _started_by
    with _lock:
        if _started_by is not None and _started_by != os.getpid():
            raise StartError(
                "the reactor's thread belongs to the parent process; use the parent's broker, or "
                "start the child with spawn instead of fork"
            )
        reactor = global_reactor()
        if reactor.running:
            if threadable.isInIOThread():
                raise StartError(
                    "the reactor runs in this thread, which would wait for itself; make the test "
                    "a coroutine"
                )
            return
        if _started_by is not None:
            raise StartError("the reactor was stopped; it cannot run again in this process")
        _start(reactor)
        _started_by = os.getpid()


def _start(reactor: Any) -> None:
    running, failed = threading.Event(), list[BaseException]()

    def run() -> None:
        try:
            reactor.callWhenRunning(running.set)
            reactor.run(installSignalHandlers=False)
        except BaseException as error:
            failed.append(error)
            running.set()

    thread = threading.Thread(target=run, name="reactor of pubsub.testing", daemon=True)
    thread.start()
    if not running.wait(SECONDS) or failed:
        reason = type(failed[0]).__name__ if failed else "no answer"
        raise StartError(f"the reactor cannot run in a thread: {reason}")
    # Joined before the interpreter removes modules that the thread uses.
    atexit.register(_end, reactor, thread)


def _end(reactor: Any, thread: threading.Thread) -> None:
    def stop() -> None:
        try:
            reactor.stop()
        except ReactorNotRunning:
            return

    if os.getpid() == _started_by:
        reactor.callFromThread(stop)
        thread.join(5)
