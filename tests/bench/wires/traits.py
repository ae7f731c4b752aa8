"""What some brokers do that ours does not, and the generator has to know of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

PollRequest: TypeAlias = Callable[[str, int], bytes]
"""The request of a client for what comes after a number."""


@dataclass(frozen=True)
class BrokerTraits:
    """Each is about a connection. Most brokers have none of it."""

    greeting: int = 0
    """So many bytes of the hello must be answered before the rest of it is sent."""
    late_frame: bytes = b""
    """What each client is sent once, seconds after it connected."""
    late_reply: bytes = b""
    """What it answers to that."""
    unsolicited: bool = False
    """Publishers are sent things that are neither answers nor errors."""
    poll_request: PollRequest | None = None
    """How subscribers ask for messages, where they are sent none unasked."""


NO_TRAITS = BrokerTraits()
