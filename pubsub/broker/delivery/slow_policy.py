"""The policies for slow subscribers: the treatment of messages that they do not take.

``SlowPolicy`` decides, and ``Outbox`` carries the decisions out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum, auto

HOLDER_MARK = 64 * 1024
"""Outboxes with more bytes than this can be evicted to free memory."""
AUTO, PAUSE, DROP, DISCONNECT = "auto", "pause", "drop", "disconnect"
# The high-water mark, unless a quarter of the byte limit is less.
_HIGH_WATER_MARK = 1024 * 1024


class Decision(Enum):
    """The treatment of a message, or of a subscriber that is overdue."""

    QUEUE = auto()
    HOLD_PUBLISHERS = auto()
    """The message is queued, and its topics hold their publishers."""
    FALL_BEHIND = auto()
    """The queue is freed, and the subscriber continues from the history."""
    DROP = auto()
    DISCONNECT = auto()


@dataclass(frozen=True, slots=True)
class SlowPolicy:
    """A listener's policy: an action, and limits in bytes and seconds.

    - ``auto``: above the high-water mark, or after ``seconds`` as a slow subscriber, the
      subscriber's queue is freed, and it continues from the history
      (see ``Cursor``). Messages of topics that are not stored are dropped while it does, and above
      ``nbytes``. It is evicted after ``catch_up_seconds`` (zero: never).
    - ``pause``: above the high-water mark its topics hold their publishers until the queue is sent.
      Above ``nbytes``, or after ``seconds`` as a slow subscriber, it is evicted.
    - ``drop``: messages that would exceed ``nbytes`` are dropped for it, and counted.
    - ``disconnect``: no publisher is held; above ``nbytes``, or after ``seconds`` as a slow
      subscriber, it is evicted.
    """

    action: str = AUTO
    nbytes: int = 64 * 1024 * 1024
    seconds: float = 30.0
    catch_up_seconds: float = 0.0

    @property
    def high_water_mark(self) -> int:
        """Queued bytes above which ``auto`` and ``pause`` act."""
        return min(_HIGH_WATER_MARK, self.nbytes // 4)

    @property
    def for_forwarding(self) -> SlowPolicy:
        """The policy for messages that are forwarded to the broker that hosts their topic.

        They are not in this broker's history: with ``auto`` their publishers are held.
        """
        return replace(self, action=PAUSE) if self.action == AUTO else self

    def decide(
        self,
        waiting: int,
        held_back: int,
        is_memory_full: bool,
        has_stored_topic: Callable[[], bool],
    ) -> Decision:
        """Return the treatment of a message with which ``waiting`` bytes wait for a subscriber.

        The subscriber does not read the history. The broker itself has held ``held_back`` of these
        bytes back: the subscriber is not slow because of them, but they take memory.
        """
        slow = waiting if is_memory_full else waiting - held_back
        if self.action == AUTO and self._is_too_much(slow, is_memory_full, has_stored_topic):
            return Decision.FALL_BEHIND
        if slow > self.nbytes:
            return Decision.DROP if self.action in (AUTO, DROP) else Decision.DISCONNECT
        if waiting > self.high_water_mark and self.action == PAUSE:
            return Decision.HOLD_PUBLISHERS
        return Decision.QUEUE

    def _is_too_much(
        self, waiting: int, is_memory_full: bool, has_stored_topic: Callable[[], bool]
    ) -> bool:
        if is_memory_full and waiting > HOLDER_MARK:
            return True
        # The history does not help with other topics; their messages may take ``nbytes``.
        return waiting > self.high_water_mark and has_stored_topic()

    def is_overdue(self, seconds: float, has_queue: bool) -> bool:
        """Return whether a subscriber has been slow for too long, with or without a queue."""
        if self.action == DROP or (self.action == AUTO and not has_queue):
            return False
        return seconds > self.seconds

    @property
    def when_overdue(self) -> Decision:
        """The treatment of a subscriber that is overdue."""
        return Decision.FALL_BEHIND if self.action == AUTO else Decision.DISCONNECT
