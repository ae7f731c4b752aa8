"""SIGHUP before the broker can reload: it is remembered, and does not end the process.

This module imports nothing of the broker, so that it works while the rest is being imported.
"""

from __future__ import annotations

import signal
from types import FrameType


class EarlyReload:
    """Whether SIGHUP came before its handler was there."""

    def __init__(self) -> None:
        self._came = False

    def watch(self) -> None:
        """Remember SIGHUP from now on, unless it is ignored or has a handler."""
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, self._signalled)

    def take(self) -> bool:
        """Return whether it came since the last call."""
        came, self._came = self._came, False
        return came

    def _signalled(self, number: int, frame: FrameType | None) -> None:
        self._came = True


early_reload = EarlyReload()
"""That of this process."""
