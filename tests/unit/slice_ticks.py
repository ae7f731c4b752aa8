"""Ticks of the reactor."""

from __future__ import annotations

from collections.abc import Callable


class Ticks:
    """Runs calls at the end of a tick; those that they add are left to the next one."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def waiting_for(self, call: Callable[[], object]) -> None:
        """Run ``call`` at the end of the tick."""
        self.waiting.append(call)

    def turn(self) -> None:
        """End a tick."""
        waiting, self.waiting = self.waiting, []
        for call in waiting:
            call()
