"""The survivors of a long run of the garbage collector are left out of the next ones.

A full run visits all objects, half a microsecond each: 0.1 s with 100,000 topics, in which no
message is handled. It is due whenever a quarter as many have come and stayed, as topics, sessions
and connections do. Objects that are left out are still freed when nothing refers to them. Only
cycles among them are not, and an ended connection is one. So after many of those a run visits all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable

from twisted.application.service import Service

# Seconds of a run that is long, and ended connections after which all objects are visited. These
# take up to 20 MB.
_LONG, _ENDED = 0.005, 10_000
_OLDEST = 2


class FrozenGrowth(Service):
    """Freezes what survives a long run; ``ended`` returns the number of ended connections."""

    def __init__(self, ended: Callable[[], int], seconds: Callable[[], float]) -> None:
        self._ended = ended
        self._seconds = seconds
        self._since = 0.0
        # The ended connections when objects were first left out; None while none are.
        self._ended_before: int | None = None

    def startService(self) -> None:
        """See IService."""
        super().startService()  # type: ignore[no-untyped-call]
        gc.callbacks.append(self._on_run)

    def stopService(self) -> None:
        """See IService."""
        gc.callbacks.remove(self._on_run)
        gc.unfreeze()
        super().stopService()  # type: ignore[no-untyped-call]

    def _on_run(self, phase: str, info: dict[str, int]) -> None:
        if info["generation"] != _OLDEST:
            return
        if phase == "start":
            if self._ended_before is not None and self._ended() - self._ended_before >= _ENDED:
                self._ended_before = None
                gc.unfreeze()
            self._since = self._seconds()
        elif self._seconds() - self._since > _LONG:
            gc.freeze()
            if self._ended_before is None:
                self._ended_before = self._ended()
