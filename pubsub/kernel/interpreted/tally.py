"""``Tally``: a count of messages and of their bytes.

The figures of messages are added by one call into the kernel (``LinkedTally.count`` and
``add_to_each``), as additions to attributes take longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pubsub.kernel.interpreted.columns import Address, Columns


class Counted(Protocol):
    """An object whose class is derived from ``Tally``."""

    messages: int
    nbytes: int


class Tally:
    """The base of objects that count ``messages`` and their ``nbytes``, each less than 2**63."""

    __slots__ = ("messages", "nbytes")

    def __init__(self) -> None:
        self.messages = self.nbytes = 0


class LinkedTally(Tally):
    """A tally of messages that are also counted in ``total``, and in the tally that is linked."""

    __slots__ = ("other", "source", "total")

    def __init__(self, total: Tally) -> None:
        super().__init__()
        self.total = total
        self.other = Tally()
        self.source: tuple[object, Address, bytes, str] | None = None
        """That of the columns that a queue took last, since another tally was linked, with their
        sender and protocol."""

    def link(self, other: Tally) -> None:
        """Have ``count_linked`` count in ``other`` as well, and no more in the one before."""
        self.other = other
        self.source = None

    def count(self, columns: Columns) -> None:
        """Count messages, and the bytes of their payloads, here and in ``total``."""
        for tally in (self, self.total):
            tally.messages += columns.count
            tally.nbytes += columns.nbytes

    def count_linked(self, columns: Columns) -> None:
        """Do as ``count``, also for the linked tally."""
        self.other.messages += columns.count
        self.other.nbytes += columns.nbytes
        self.count(columns)


def add_to_each(
    tallies: Sequence[Counted], messages: int, nbytes: int, totals: Sequence[Counted]
) -> None:
    """Count ``messages`` with ``nbytes`` for each of ``tallies``, and their sum in each of
    ``totals``.

    ``tallies`` and ``totals`` are tuples.
    """
    for tally in tallies:
        tally.messages += messages
        tally.nbytes += nbytes
    for total in totals:
        total.messages += messages * len(tallies)
        total.nbytes += nbytes * len(tallies)
