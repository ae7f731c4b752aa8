"""Gives a process a wall clock that can be set; Python imports this at start if it is on the path.

The file named by PUBSUB_TEST_CLOCK holds the seconds by which the clock is ahead, as a double.
"""

from __future__ import annotations

import mmap
import os
import struct
import time

if "PUBSUB_TEST_CLOCK" in os.environ:
    with open(os.environ["PUBSUB_TEST_CLOCK"], "rb") as _file:
        _offset = mmap.mmap(_file.fileno(), 8, prot=mmap.PROT_READ)
    _time = time.time

    def _shifted() -> float:
        ahead: float = struct.unpack("d", _offset)[0]
        return _time() + ahead

    time.time = _shifted
    time.time_ns = lambda: int(_shifted() * 1_000_000_000)
