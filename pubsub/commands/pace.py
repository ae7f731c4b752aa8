"""Messages at a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

_Item = TypeVar("_Item")
_SLICES_PER_SECOND = 20


async def paced(
    source: AsyncIterator[list[_Item]],
    rate: float | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[list[_Item]]:
    """Yield the messages of ``source``, no more than ``rate`` a second from the first one on.

    None is no limit. A pause of the source is not made up for.
    """
    if rate is None:
        async for items in source:
            yield items
        return
    most = max(int(rate / _SLICES_PER_SECOND), 1)
    due = clock()
    async for items in source:
        for start in range(0, len(items), most):
            due = max(due, clock() - 1 / _SLICES_PER_SECOND)
            if (wait := due - clock()) > 0:
                await sleep(wait)
            part = items[start : start + most]
            yield part
            due += len(part) / rate
