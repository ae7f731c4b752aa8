"""The times of a link: deadlines, keep-alive, and the pauses between attempts to connect."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Timing:
    """All in seconds. A pause is between half of its length and all of it."""

    connect: float = 10.0
    """For the transport and its TLS handshake, and again for the handshake of the protocol."""
    keepalive: float = 60.0
    """Silence after which the broker is pinged; after as much again the connection is lost.

    A broker that holds a publisher back for a slow subscriber is silent for less than both."""
    first_pause: float = 0.1
    longest_pause: float = 10.0
    settled: float = 5.0
    """After a connection of at least this duration, the next pause is a first one."""
    goodbye: float = 2.0
    """For the last bytes of a link that is closed."""
    exit: float = 5.0
    """Without a confirmation, for the messages of a client that is open when the program ends."""

    def pause(self, attempt: int, random: Callable[[], float]) -> float:
        """Return the pause before attempt ``attempt``, from 1; ``random`` returns 0 to 1."""
        longest = min(self.longest_pause, self.first_pause * 2.0 ** min(attempt - 1, 30))
        return longest * (1 + random()) / 2
