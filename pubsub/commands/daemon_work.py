"""Work that blocks, for a command that has an event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

_Result = TypeVar("_Result")


async def in_daemon_thread(work: Callable[[], _Result]) -> _Result:
    """Return the result of ``work``, which is called in another thread. Raises its error.

    Ctrl-C does not wait for it, nor does the end of the command. Both wait for the threads of
    asyncio's executor, and a broker that does not answer would hold them up.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[_Result] = loop.create_future()

    def tell(report: Callable[[Any], None], value: object) -> None:
        # Nobody waits after Ctrl-C, and the loop is closed once the command has ended.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if outcome.done() else report(value))

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            tell(outcome.set_exception, error)
        else:
            tell(outcome.set_result, result)

    threading.Thread(target=run, name="work", daemon=True).start()
    return await outcome
