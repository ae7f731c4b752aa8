"""The policies for slow subscribers: the treatment of messages that they do not take."""

from __future__ import annotations

from dataclasses import dataclass, replace

AUTO, PAUSE, DROP, DISCONNECT = "auto", "pause", "drop", "disconnect"
# The high-water mark, unless a quarter of the byte limit is less.
_HIGH_WATER_MARK = 1024 * 1024


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
