"""A peer of spot that says that it is a broker, and what it gets."""

from __future__ import annotations

from collections.abc import Iterator

from pubsub.protocols.spot.broker_commands import HistoryPage, decode_broker_command
from pubsub.protocols.spot.zmtp import FrameLimits, Unit, decode
from tests.unit.brokers import GREETING, ready

_LIMITS = FrameLimits(frame=2**20, frames=10_000)
_BODY = ready(b"DEALER")[66:] + b"\x06X-Node\0\0\0\x0f" + b"7" * 15
NODE = GREETING + bytes([4, len(_BODY)]) + _BODY
"""The greeting and READY of the peer."""


def units(data: bytes) -> Iterator[Unit]:
    """Yield the messages and commands in ``data``."""
    at = 0
    while at < len(data):
        unit = decode(data, at, _LIMITS, None)
        assert isinstance(unit, Unit)
        yield unit
        at = unit.end


def pages(data: bytes) -> list[HistoryPage]:
    """Return the pages in ``data``."""
    found = [decode_broker_command(one.frames) for one in units(data)]
    return [one for one in found if isinstance(one, HistoryPage)]
