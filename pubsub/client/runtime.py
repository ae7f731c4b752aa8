"""The interface of the client's event loop. There are two: asyncio's, and Twisted's reactor.

The client's coroutines await nothing but ``Waiter`` objects, so that either loop can drive them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Protocol

from pubsub.client.client_tls import TlsOptions
from pubsub.client.tickets import Ticket

Cancel = Callable[[], object]
Ending = Callable[[], Coroutine[Any, Any, None]]


class Waiter(Protocol):
    """One wait of one coroutine: ``awaitable`` is done some time after ``wake``."""

    @property
    def awaitable(self) -> Awaitable[None]: ...

    def wake(self) -> None:
        """Let the coroutine continue, but not within this call. Further calls do nothing."""


class Transport(Protocol):
    """A stream. ``write`` never blocks; the observer is called when too many bytes wait."""

    def write(self, data: bytes) -> None: ...

    def close(self) -> None:
        """Close when everything is written."""

    def abort(self) -> None:
        """Close now."""

    def set_reading(self, reading: bool) -> None:
        """Read on, or stop reading."""


class Observer(Protocol):
    """Receives the reports of an attempt to connect, and then of the stream."""

    def made(self, transport: Transport) -> None:
        """The stream is there, TLS included."""

    def received(self, data: bytes) -> None: ...

    def writable(self, writable: bool) -> None:
        """The transport takes more, or should not be given more."""

    def lost(self, why: str) -> None:
        """The attempt failed, or the stream has ended. Nothing is called after it."""


class Runtime(ABC):
    """An event loop."""

    callback_errors: tuple[type[BaseException], ...] = (Exception, SystemExit)
    """The errors of the program's callbacks that do not reach the loop."""

    def check_caller(self) -> None:
        """Raise RuntimeError if the caller does not run in this loop."""
        # Here it is not known: the reactor's thread is that of the last reactor that was run.
        return

    @abstractmethod
    def now(self) -> float:
        """Return seconds of a clock that is never set."""

    @abstractmethod
    def call_later(self, seconds: float, function: Callable[[], None]) -> Cancel:
        """Call ``function`` later; the result cancels that."""

    @abstractmethod
    def call_from_any_thread(self, function: Callable[[], None]) -> None:
        """Call ``function`` in the loop, unless that has ended."""

    @abstractmethod
    def waiter(self) -> Waiter:
        """Return a new waiter."""

    @abstractmethod
    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run ``work``, for which nothing waits."""

    async def wait_for(self, ticket: Ticket[Any]) -> None:
        """Return when ``ticket`` is done. Several may wait for one."""
        if not ticket.done:
            waiter = self.waiter()
            ticket.when_done(waiter.wake)
            await waiter.awaitable

    async def pause(self) -> None:
        """Return after the other work of the loop that is due."""
        waiter = self.waiter()
        self.call_later(0, waiter.wake)
        await waiter.awaitable

    def at_end(self, end: Ending) -> Cancel:
        """Run ``end`` when the program ends, if the loop knows; the result cancels that."""
        return lambda: None

    @abstractmethod
    def connect(self, host: str, port: int, tls: TlsOptions | None, observer: Observer) -> Cancel:
        """Connect; the result gives the attempt up, without a call of the observer."""
