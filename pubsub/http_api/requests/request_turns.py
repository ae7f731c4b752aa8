"""The turns of requests: a tick handles few of them, of all connections together.

A request takes some 0.1 to 0.3 ms, and thousands of connections may have one at the same time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.listeners.listener import Listener

# Frames that a request counts as (see ``FrameTurns``), and bytes of heads that count as one: a
# kilobyte of short headers takes 0.7 ms.
_REQUEST_FRAMES, _FRAME_BYTES = 10, 128


class RequestTurns:
    """The connections of one listener that wait for their turn, in order."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_running = False

    @property
    def are_over(self) -> bool:
        """Whether no further request is to be handled in this tick."""
        return self._listener.frame_turns.are_over

    def count(self) -> bool:
        """Count a request; return whether it was the last of the connection in this tick."""
        return self._listener.frame_turns.count(_REQUEST_FRAMES) or self._is_running

    def count_bytes(self, nbytes: int) -> None:
        """Count bytes of heads."""
        self._listener.frame_turns.count(nbytes // _FRAME_BYTES)

    def wait(self, call: Callable[[], None]) -> None:
        """Call ``call``, which handles a request, in a later tick."""
        if not self._waiting and not self._is_running:
            self._listener.clock.callLater(0, self._run)
        self._waiting.append(call)

    def _run(self) -> None:
        waiting = self._waiting
        self._is_running = True
        try:
            while waiting and not self.are_over:
                waiting.popleft()()
        finally:
            self._is_running = False
            if waiting:
                self._listener.clock.callLater(0, self._run)
