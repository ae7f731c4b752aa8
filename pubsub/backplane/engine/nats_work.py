"""The work that the broker's side and ``NatsConnection`` hand over to each other."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

_Result = TypeVar("_Result")


class Unusable(Exception):
    """The engine answers and cannot be used, also after more attempts."""


class Away(Exception):
    """The connection has ended before the engine has answered."""


class Outbound(NamedTuple):
    """A message for the engine; ``number`` are the messages of ``topic`` in it."""

    topic: str
    subject: str
    data: bytes
    number: int


class Change(NamedTuple):
    """A subscription that begins or ends. With ``replaced``, another one takes its place."""

    subject: str
    begins: bool
    replaced: bool = False


class Watcher(Protocol):
    """Observes the connection."""

    def connected(self, server: str, limit: int) -> None: ...

    def away(self, reason: str, silence: float = 0.0) -> None: ...

    def unusable(self, reason: str) -> None: ...

    def complained(self, reason: str, lasting: bool = False) -> None:
        """The engine or nats-py reports an error that does not end the connection.

        A ``lasting`` one needs a change of settings.
        """

    def cut_off(self, is_cut_off: bool) -> None:
        """Whether the server lacks most others of its cluster; called again and again."""

    def arrived(self) -> None:
        """There is something to ``take``."""

    def more(self) -> None:
        """There is still something; called by ``take``."""

    def sent(self, nbytes: int) -> None:
        """This number of bytes waits no longer."""

    def lost(self, counts: Counter[str]) -> None:
        """These numbers of messages, by topic, were not sent."""

    def overflowed(self, counts: Counter[str]) -> None:
        """These numbers of messages, by topic, arrived and were dropped: too many were waiting."""


def together(messages: Sequence[Outbound], limit: int) -> list[tuple[str, list[bytes], int]]:
    """Put consecutive messages of one subject together, up to ``limit`` bytes, in their order.

    Return the subject, the bytes of each, and their number.
    """
    found = []
    subject, parts, nbytes = "", list[bytes](), 0
    for one in messages:
        if parts and (one.subject != subject or nbytes + len(one.data) > limit):
            found.append((subject, parts, nbytes))
            parts, nbytes = [], 0
        subject = one.subject
        parts.append(one.data)
        nbytes += len(one.data)
    if parts:
        found.append((subject, parts, nbytes))
    return found


def nbytes_of(messages: Sequence[Outbound]) -> int:
    """Return the bytes of all messages."""
    return sum([len(one.data) for one in messages])


async def reported(
    make: Callable[[], Coroutine[Any, Any, _Result]],
    done: Deferred[_Result],
    call: Callable[..., object],
) -> None:
    """Run the coroutine of ``make``, and have ``call`` fire ``done`` with the result."""
    try:
        result = await make()
    except Exception as error:
        call(done.errback, error)
    except BaseException:
        call(done.errback, Away("the connection to the engine has ended"))
        raise
    else:
        call(done.callback, result)


async def first_end(*running: Coroutine[Any, Any, object]) -> Exception | None:
    """Run all until one of them ends; return the error of the first that has one."""
    tasks = [asyncio.ensure_future(one) for one in running]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    return next((one for one in results if isinstance(one, Exception)), None)
