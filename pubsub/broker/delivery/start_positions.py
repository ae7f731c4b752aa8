"""Positions of subscribers that continue, at this broker or from another one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeAlias


class DeliveredElsewhere(Protocol):
    """The messages that a subscriber was given at another broker."""

    def prefix(self, run: int, sequence: int, count: int) -> int:
        """Return how many of the ``count`` messages from ``sequence`` on were given to it.

        They are the first ones. ``run`` is as in ``Batch``.
        """

    @property
    def is_settled(self) -> bool:
        """True once no message that arrives here was given to it."""


@dataclass(frozen=True, slots=True)
class Resumption:
    """The start of a subscriber that was at another broker.

    It gets the messages from ``offset`` on without those that it was given there.
    """

    offset: int
    taken: DeliveredElsewhere


Position: TypeAlias = int | Resumption
"""The offset at which a topic of a subscriber continues: of the first message to deliver."""


def offset_of(position: Position) -> int:
    """Return the offset at which reading begins."""
    return position if isinstance(position, int) else position.offset


def at_offset(position: Position, offset: int) -> Position:
    """Return ``position`` with another offset."""
    return offset if isinstance(position, int) else Resumption(offset, position.taken)
