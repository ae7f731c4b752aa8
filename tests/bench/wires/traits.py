"""Properties of some brokers that the generator must handle."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

PollRequest: TypeAlias = Callable[[str, int], bytes]
"""Makes a client's request for the messages after a number."""


@dataclass(frozen=True)
class BrokerTraits:
    """The properties of a connection. Most brokers have none of them."""

    greeting: int = 0
    """Number of bytes of the hello that must be answered before the rest is sent."""
    late_frame: bytes = b""
    """A frame that each client receives once, seconds after it connected."""
    late_reply: bytes = b""
    """The reply of the client to the late frame."""
    unsolicited: bool = False
    """True if publishers receive data that is neither a reply nor an error."""
    poll_request: PollRequest | None = None
    """Makes the polling request, if subscribers must poll for messages."""


NO_TRAITS = BrokerTraits()
