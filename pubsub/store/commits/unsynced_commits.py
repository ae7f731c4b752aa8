"""``UnsyncedCommits``: atomic commits that other brokers do not get before they are on disk.

The metadata of such a commit records that its messages are published. If the other brokers had the
messages and a crash lost the record, the messages would be published a second time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from twisted.internet.interfaces import IDelayedCall

_RETRY_SECONDS = 0.5


class UnsyncedCommits:
    """The commits that have begun and are not on disk.

    ``when_synced`` calls its argument with True when all input of the history so far is on disk,
    with False if it cannot be written. ``call_later`` is that of the reactor. ``released`` is
    called when a commit is on disk.
    """

    def __init__(
        self,
        when_synced: Callable[[Callable[[bool], None]], None],
        call_later: Callable[[float, Callable[[], None]], IDelayedCall],
        released: Callable[[], object],
    ) -> None:
        self._when_synced = when_synced
        self._call_later = call_later
        self._released = released
        # The first offset of each commit, the oldest first.
        self._begins: deque[int] = deque()
        # The number of commits that have ended, and of those that are on disk.
        self._ended = self._on_disk = 0
        self._retry: IDelayedCall | None = None
        self._is_closed = False

    @property
    def begins(self) -> int | None:
        """The first offset of the oldest of these commits; None without any."""
        return self._begins[0] if self._begins else None

    def begin(self, offset: int) -> None:
        """A commit begins with the message at ``offset``."""
        self._begins.append(offset)

    def end(self) -> None:
        """The commit that has begun last has all its messages."""
        self._ended = self._on_disk + len(self._begins)
        self._wait()

    def close(self) -> None:
        """End all waiting."""
        self._is_closed = True
        if self._retry is not None:
            self._retry.cancel()
            self._retry = None

    def _wait(self) -> None:
        # Not for one that has begun: all input so far may be on disk before it has a message.
        self._when_synced(partial(self._synced, self._ended))

    def _synced(self, number: int, is_on_disk: bool) -> None:
        """The first ``number`` commits are on disk, or cannot be written at present."""
        if self._is_closed or number <= self._on_disk:
            return
        if is_on_disk:
            while self._on_disk < number:
                self._begins.popleft()
                self._on_disk += 1
            self._released()
        elif self._retry is None:
            self._retry = self._call_later(_RETRY_SECONDS, self._try_again)

    def _try_again(self) -> None:
        self._retry = None
        self._wait()
