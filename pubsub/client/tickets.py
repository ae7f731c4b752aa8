"""A ticket: the outcome of a request that takes time, without an event loop."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")


class Ticket(Generic[_Result]):
    """Has a result or an error once; those that wait for it are then called.

    ``deadline`` is when the link gives it up, None for never.
    """

    __slots__ = ("_notify", "deadline", "done", "error", "result")

    def __init__(self, deadline: float | None = None) -> None:
        self.deadline = deadline
        self.done = False
        self.result: _Result | None = None
        self.error: Exception | None = None
        self._notify: list[Callable[[], None]] = []

    def succeed(self, result: _Result) -> None:
        """Set the result, unless the ticket is done."""
        if not self.done:
            self.done, self.result = True, result
            self._tell()

    def fail(self, error: Exception) -> None:
        """Set the error, unless the ticket is done."""
        if not self.done:
            self.done, self.error = True, error
            self._tell()

    def is_over(self, now: float) -> bool:
        """Return whether the deadline has passed."""
        return self.deadline is not None and now >= self.deadline

    def when_done(self, notify: Callable[[], None]) -> None:
        """Call ``notify`` once the ticket is done."""
        self._notify.append(notify)
        if self.done:
            self._tell()

    def _tell(self) -> None:
        waiting, self._notify = self._notify, []
        for notify in waiting:
            notify()


class Deadlines:
    """The tickets with a deadline, the earliest first.

    Most come in that order; one that has waited for room before comes later than others.
    """

    def __init__(self) -> None:
        # A heap. The numbers distinguish tickets with the same deadline.
        self._tickets: list[tuple[float, int, Ticket[Any]]] = []
        self._numbers = count()

    def watch(self, ticket: Ticket[Any]) -> None:
        """Add ``ticket`` if it has a deadline."""
        if ticket.deadline is not None:
            heappush(self._tickets, (ticket.deadline, next(self._numbers), ticket))

    def earliest(self) -> float | None:
        """Return the earliest deadline of a ticket that is not done."""
        tickets = self._tickets
        while tickets and tickets[0][2].done:
            heappop(tickets)
        return tickets[0][0] if tickets else None
