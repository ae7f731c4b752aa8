"""A bench whose slices a test carries out."""

from __future__ import annotations

from collections.abc import Callable

from tests.unit.fakes import Bench


class SteppedBench(Bench):
    """A bench that leaves what is begun at the end of a tick to the next one, as a reactor does."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] = []
        super().__init__()

    def _at_tick_end(self, call: Callable[[], None]) -> None:
        self._waiting.append(call)

    def turn(self) -> None:
        """End the reactor tick."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()
        super().turn()
