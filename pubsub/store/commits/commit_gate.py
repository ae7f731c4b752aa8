"""``CommitGate``: the bytes of messages that are not on disk, and the gate that they shut."""

from __future__ import annotations

from pubsub.broker.publishing.publisher_gates import Gate

MAX_UNWRITTEN = 24 * 1024**2
"""Bytes that are not written, from which on publishers are held."""
MAX_UNSYNCED = 96 * 1024**2
"""The highest limit of bytes that are not on disk."""
# The gate opens when there are so many bytes less than at the limit, so that publishers wait
# seldom, and not for each message.
_LESS = 12 * 1024**2


def unsynced_limit(max_memory: int) -> int:
    """Return how many bytes may be not on disk, with this ``max-memory`` (0: no bound).

    With more of them a pause of the disk holds publishers less often.
    """
    if not max_memory:
        return MAX_UNSYNCED
    return min(max(max_memory // 16, MAX_UNWRITTEN), MAX_UNSYNCED)


class CommitGate(Gate):
    """Counts bytes. The caller shuts the gate at the limits.

    ``most`` is the number of bytes that are not on disk, written or not, from which on publishers
    are held.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most
        self.unwritten = 0
        """Bytes that are collected, or being written."""
        self.unsynced = 0
        """Bytes that are not on disk, with those that are not written."""

    def wrote(self, nbytes: int) -> None:
        """So many bytes are written."""
        self.unwritten -= nbytes
        self._open_below_limits()

    def synced(self, nbytes: int) -> None:
        """So many bytes are on disk."""
        self.unsynced -= nbytes
        self._open_below_limits()

    def _open_below_limits(self) -> None:
        if (
            self.shut
            and self.unwritten <= MAX_UNWRITTEN - _LESS
            and self.unsynced <= self.most - _LESS
        ):
            self.open()
