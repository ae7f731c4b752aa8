"""``NsdSession``: where the subscriptions of a client of nsd go on."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

from pubsub.wire.client_events import Interest

NsdAddress = tuple[str, int]
"""The host and the port of a broker."""


@dataclass(slots=True)
class ReadPosition:
    """The progress in a topic: the ``when`` of the last message read, and the broker's epoch.

    ``home`` is the address of the broker.
    """

    after: int
    epoch: str
    home: NsdAddress


@dataclass(slots=True)
class NsdSession:
    """The positions from which the next connection continues; ``own`` is in its identities."""

    positions: dict[Interest, ReadPosition] = field(default_factory=dict)
    own: str = field(default_factory=lambda: secrets.token_hex(8))
