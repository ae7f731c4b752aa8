"""Waiting for a condition that no event reports, such as one in another process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


def until(condition: Callable[[], object], what: str, seconds: float = 60.0) -> None:
    """Poll ``condition``; after ``seconds``, which only a hang reaches, fail with ``what``."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        pause.wait(0.02)
