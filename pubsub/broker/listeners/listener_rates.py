"""The rate limits of a listener: of each connection, and of all of them together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pubsub.broker.publishing.rate_limits import Rate, RateLimiter


class ListenerRates:
    """The rates of these ``settings``, in messages and payload bytes a second.

    ``seconds`` returns the time of a monotonic clock.
    """

    def __init__(self, settings: Mapping[str, Any], seconds: Callable[[], float]) -> None:
        self._seconds = seconds
        self._common_rate = Rate()
        self.common: RateLimiter | None = None
        """The limit that all connections share; None without one."""
        self.reconfigure(settings)

    def reconfigure(self, settings: Mapping[str, Any]) -> None:
        """Use these settings for new connections, and for the rates that all connections share."""
        self._own_rate = Rate(settings["rate-messages"], settings["rate-bytes"])
        common = Rate(settings["listener-rate-messages"], settings["listener-rate-bytes"])
        if common != self._common_rate:
            self._common_rate = common
            self.common = common.limiter(self._seconds)

    def limiters(self) -> tuple[RateLimiter, ...]:
        """Return the limits of a new connection: its own, and the shared one."""
        limiters = (self._own_rate.limiter(self._seconds), self.common)
        return tuple(limiter for limiter in limiters if limiter is not None)
