"""An asyncio event loop in a thread, for programs without one.

A thread, rather than sockets that are served within the calls of the program: the connection is
kept alive, made again and read from also while the program does something else. One loop serves
all blocking clients of the process. A process that was forked has none of its parent's threads and
starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import inspect
import os
import sys
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

from pubsub.client.client_errors import ClientClosed
from pubsub.client.runtime import Ending

_Result = TypeVar("_Result")
_Arguments = TypeVarTuple("_Arguments")


class _Loop(asyncio.SelectorEventLoop):
    """Resolves names also at the end of the program, for the messages that are sent then."""

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*_Arguments], _Result], *args: *_Arguments
    ) -> asyncio.Future[_Result]:
        """See ``asyncio.AbstractEventLoop``."""
        try:
            return super().run_in_executor(executor, func, *args)
        except RuntimeError:
            # There are no threads any more when atexit calls, and nothing else for this one to do.
            done: asyncio.Future[_Result] = self.create_future()
            try:
                done.set_result(func(*args))
            except Exception as error:
                done.set_exception(error)
            return done


class LoopThread:
    """A daemon thread with a loop; ``run`` may be called by any other thread."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = _Loop()
        self._thread = threading.Thread(target=self._serve, name="pubsub-client", daemon=True)
        self._thread.start()
        self.at_end: set[Ending] = set()
        """Called when the program ends, in the loop."""
        self._ends: set[asyncio.Task[None]] = set()
        self._ending = False
        atexit.register(self._end)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            # The caller of ``run`` gets it; the clients of others go on.
            with contextlib.suppress(SystemExit, KeyboardInterrupt):
                self._loop.run_forever()

    @property
    def is_of_parent(self) -> bool:
        """True in a process that was forked, which does not have the thread."""
        return self.pid != os.getpid()

    @property
    def is_over(self) -> bool:
        """True if the thread does not run: in a process that was forked, or at its very end.

        Python runs no daemon thread while it removes its modules, which calls ``__del__``.
        """
        return self.is_of_parent or sys.is_finalizing()

    def check_caller(self) -> None:
        """Raise an error if the caller must not wait for the loop.

        It is ClientClosed if the loop does not run, in a process that was forked or at the end of
        the program; and RuntimeError in the thread itself, such as in ``on_event``: the loop would
        wait for itself.
        """
        if self.is_of_parent:
            raise ClientClosed("the client belongs to the process that was forked; connect again")
        if self.is_over:
            raise ClientClosed("the program has ended")
        if threading.current_thread() is self._thread:
            raise RuntimeError("a blocking client cannot be used in on_event and call")

    def run(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Return the result of ``work``. Raises its error.

        An exception in the calling thread, such as KeyboardInterrupt, cancels ``work``. Raises the
        errors of ``check_caller`` too.
        """
        try:
            self.check_caller()
        except BaseException:
            work.close()
            raise
        try:
            future = asyncio.run_coroutine_threadsafe(work, self._loop)
        except BaseException:
            # Interrupted, before the loop had it or behind that.
            self._loop.call_soon_threadsafe(_close_unless_begun, work)
            raise
        try:
            return future.result()
        except BaseException:
            with contextlib.suppress(RuntimeError):
                future.cancel()
            raise

    def abandon(self, end: Ending) -> None:
        """Run ``end``, of ``at_end``, in the loop. The end of the program waits for it."""
        self._loop.call_soon_threadsafe(self._begin, end)

    def _begin(self, end: Ending) -> None:
        task = self._loop.create_task(end())
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    def _end(self) -> None:
        """The program ends: run ``at_end``. Ctrl-C cancels it."""
        if self.is_of_parent or not (self.at_end or self._ends):
            return
        try:
            self.run(self._wait_for_ends())
        except KeyboardInterrupt:
            with contextlib.suppress(KeyboardInterrupt):
                self.run(self._wait_for_ends(cancel=True))

    async def _wait_for_ends(self, cancel: bool = False) -> None:
        if not self._ending:
            self._ending = True
            for end in self.at_end:
                self._begin(end)
            # A task that was cancelled before it began would do nothing.
            await asyncio.sleep(0)
        for one in self._ends if cancel else ():
            one.cancel()
        if self._ends:
            await asyncio.wait(self._ends)


def _close_unless_begun(work: Coroutine[Any, Any, Any]) -> None:
    # A program may have given something else to ``call``.
    if inspect.iscoroutine(work) and inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
        work.close()


_lock = threading.Lock()
_current: LoopThread | None = None


def loop_thread() -> LoopThread:
    """Return the process's loop. Raises ClientClosed at the very end of the program."""
    global _current
    if sys.is_finalizing():
        raise ClientClosed("the program has ended")
    with _lock:
        if _current is None or _current.is_of_parent:
            _current = LoopThread()
        return _current


def _forget_lock() -> None:
    """In a forked process: the lock may have been held by a thread that does not exist here."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)
