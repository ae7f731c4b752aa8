"""Messages at a rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable

_SLICES_PER_SECOND = 20


async def paced(
    source: AsyncIterator[list[bytes]],
    rate: float | None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
) -> AsyncIterator[list[bytes]]:
    """Yield the messages of ``source``, no more than ``rate`` a second from the first one on.

    None is no limit. A pause of the source is not made up for.
    """
    if rate is None:
        async for payloads in source:
            yield payloads
        return
    most = max(int(rate / _SLICES_PER_SECOND), 1)
    due = clock()
    async for payloads in source:
        for start in range(0, len(payloads), most):
            due = max(due, clock() - 1 / _SLICES_PER_SECOND)
            if (wait := due - clock()) > 0:
                await sleep(wait)
            part = payloads[start : start + most]
            yield part
            due += len(part) / rate
