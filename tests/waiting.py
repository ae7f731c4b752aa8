"""Waiting for what happens by itself in another process, and no line tells of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Ask again and again; ``seconds`` is what only something that hangs takes."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        pause.wait(0.02)
