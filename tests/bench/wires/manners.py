"""What some brokers do that ours does not, and the generator has to know of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Manners:
    """Each is about a connection. Most brokers have none of it."""

    greeting: int = 0
    """So many bytes of the hello must be answered before the rest of it is sent."""
    late: bytes = b""
    """What each client is sent once, seconds after it connected."""
    answer: bytes = b""
    """What it answers to that."""
    talkative: bool = False
    """Publishers are sent things that are neither answers nor errors."""


PLAIN = Manners()
