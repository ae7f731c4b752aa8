"""``Ceiling``: the offset on disk that all messages stay below which were shown to readers.

After a power loss the log continues at the ceiling, so that no offset that a reader has seen ever
comes to mean another message.
"""

from __future__ import annotations

import math
import time

# The ceiling is this many offsets ahead, more if they were used up within seconds.
_AHEAD, _MOST_AHEAD = 2**14, 2**26
_QUICK_SECONDS = 4


class Ceiling:
    """The ceiling of a log. Each record has the ``next`` one, which a sync makes the ceiling."""

    def __init__(self) -> None:
        self.on_disk = self.next = 0
        self._ahead = _AHEAD
        self._raised = -math.inf

    def set(self, offset: int) -> None:
        """Begin or end at ``offset``."""
        self.on_disk = self.next = offset

    def raise_beyond(self, stop: int) -> None:
        """Raise the next ceiling above ``stop``."""
        now = time.monotonic()
        quick = now - self._raised < _QUICK_SECONDS
        self._raised = now
        self._ahead = min(self._ahead * 2, _MOST_AHEAD) if quick else max(self._ahead // 2, _AHEAD)
        self.next = max(self.next, stop + self._ahead)

    def raise_early(self, stop: int) -> None:
        """Raise the next ceiling if ``stop`` is near it.

        The next sync for another reason brings it to the disk, before a message waits for that.
        """
        if stop > self.next - self._ahead // 2:
            self.raise_beyond(stop)

    def synced(self, ceiling: int) -> None:
        """A record with ``ceiling`` is on disk."""
        self.on_disk = max(self.on_disk, ceiling)
