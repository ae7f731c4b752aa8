"""The part of a reactor that a signal handler and a reload use."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.task import Clock


class Signalled:
    """The part of a reactor that a signal handler and a reload use; the time is ``clock``'s."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.clock = Clock()
        self.callLater = self.clock.callLater

    def callFromThread(self, call: Callable[[], None]) -> None:
        self.calls.append(call)
