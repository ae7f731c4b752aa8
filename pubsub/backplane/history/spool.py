"""The messages that a broker's own history has, and the shared stream has not. Sans-IO."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

SYNC_SECONDS = 5.0
"""The longest time that an acknowledgment waits for the engine."""
# Messages up to this many bytes are one entry.
_GRAIN = 64 * 1024


@dataclass(frozen=True, slots=True)
class SharedLimits:
    """Bytes that the stream does not have: publishers wait from ``held`` on, up to ``spool``."""

    spool: int
    held: int


class _Entry(NamedTuple):
    end: int
    messages: int
    nbytes: int


class Spool:
    """Counts messages and their bytes by the offset after them."""

    def __init__(self) -> None:
        self._entries: deque[_Entry] = deque()
        self.messages = self.nbytes = 0
        self.end = 0
        """The offset after the last message that was added."""

    def add(self, end: int, messages: int, nbytes: int) -> None:
        """Add messages before the offset ``end``."""
        self.end = end
        self.messages += messages
        self.nbytes += nbytes
        if self._entries and self._entries[-1].nbytes + nbytes <= _GRAIN:
            last = self._entries.pop()
            messages, nbytes = messages + last.messages, nbytes + last.nbytes
        self._entries.append(_Entry(end, messages, nbytes))

    def add_older(self, end: int, messages: int, nbytes: int) -> None:
        """Add messages that were there before all others."""
        if messages:
            self.end = max(self.end, end)
            self.messages += messages
            self.nbytes += nbytes
            self._entries.appendleft(_Entry(end, messages, nbytes))

    def free(self, offset: int) -> None:
        """The messages before ``offset`` are in the stream."""
        while self._entries and self._entries[0].end <= offset:
            entry = self._entries.popleft()
            self.messages -= entry.messages
            self.nbytes -= entry.nbytes


class _WaitingAppend(NamedTuple):
    end: int
    deadline: float
    call: Callable[[bool], None]


class Waiters:
    """Calls that wait until the stream has the messages before an offset, in order.

    ``clock`` is the reactor.
    """

    def __init__(self, clock: Any) -> None:
        self._clock = clock
        self._waiting: deque[_WaitingAppend] = deque()
        self._timer: Any = None
        self._reached = 0
        self._ended = False

    def after(self, end: int, call: Callable[[bool], None]) -> Callable[[bool], None]:
        """Return a call that has ``call`` wait for the messages before ``end``, if it gets True."""
        deadline = self._clock.seconds() + SYNC_SECONDS

        def stored(ok: bool) -> None:
            if not ok or self._ended:
                call(False)
            elif not self._waiting and self._reached >= end:
                call(True)
            else:
                self._waiting.append(_WaitingAppend(end, deadline, call))
                if self._timer is None:
                    self._expire_later(deadline)

        return stored

    @property
    def settled(self) -> int:
        """The offset before which the stream has everything."""
        return self._reached

    def reached(self, offset: int) -> None:
        """Make the calls whose messages are before ``offset``."""
        self._reached = max(self._reached, offset)
        while self._waiting and self._waiting[0].end <= offset:
            self._waiting.popleft().call(True)

    def _expire_later(self, deadline: float) -> None:
        seconds = max(deadline - self._clock.seconds(), 0)
        self._timer = self._clock.callLater(seconds, self._expire)

    def _expire(self) -> None:
        """Make the calls whose time is over."""
        self._timer = None
        now = self._clock.seconds()
        while self._waiting and self._waiting[0].deadline <= now:
            self._waiting.popleft().call(False)
        if self._waiting and self._timer is None:
            self._expire_later(self._waiting[0].deadline)

    def end(self) -> None:
        """Make all calls: the broker ends."""
        self._ended = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._waiting:
            self._waiting.popleft().call(False)
