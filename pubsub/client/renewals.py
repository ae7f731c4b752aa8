"""The subscriptions that the broker cannot renew at present, and the pauses between attempts."""

from __future__ import annotations

from collections.abc import Callable

from pubsub.client.link_timing import Timing
from pubsub.wire.client_events import Interest


class Renewals:
    """Subscriptions of one connection that are requested again, as often as they are refused.

    The pauses are those between attempts to connect.
    """

    def __init__(self, timing: Timing, random: Callable[[], float]) -> None:
        self.due_at: float | None = None
        """When ``take`` should be called, if at all."""
        self._timing = timing
        self._random = random
        # The reasons of the last refusals.
        self._reasons: dict[Interest, str] = {}
        # Those that wait for the end of the pause; the others were requested again.
        self._waiting: dict[Interest, None] = {}
        self._attempt = 0

    def put_off(self, interest: Interest, reason: str, now: float) -> bool:
        """Have ``interest`` requested again; return whether there was no other refusal yet."""
        is_first = not self._reasons
        self._reasons[interest] = reason
        self._waiting[interest] = None
        if self.due_at is None:
            self._attempt += 1
            self.due_at = now + self._timing.pause(self._attempt, self._random)
        return is_first

    def take(self, now: float) -> list[Interest]:
        """Return the subscriptions to request now."""
        if self.due_at is None or now < self.due_at:
            return []
        taken, self.due_at = list(self._waiting), None
        self._waiting.clear()
        return taken

    def settle(self, interest: Interest) -> str | None:
        """Forget ``interest``, which was answered; return why it was refused before, if it was."""
        self._waiting.pop(interest, None)
        reason = self._reasons.pop(interest, None)
        if not self._reasons:
            self.clear()
        return reason

    def clear(self) -> None:
        """Forget all subscriptions: the connection has ended."""
        self._reasons.clear()
        self._waiting.clear()
        self.due_at, self._attempt = None, 0
