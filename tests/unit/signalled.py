"""The part of a reactor that a signal handler uses."""

from __future__ import annotations

from collections.abc import Callable


class Signalled:
    """The part of a reactor that a signal handler uses."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def callFromThread(self, call: Callable[[], None]) -> None:
        self.calls.append(call)
