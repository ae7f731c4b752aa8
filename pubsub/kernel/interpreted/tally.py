"""``Tally``: a count of messages and of their bytes.

The figures of messages are added by one call into the kernel (``Columns.add_to`` and
``add_to_each``), as additions to attributes take longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Counted(Protocol):
    """An object whose class is derived from ``Tally``."""

    messages: int
    nbytes: int


class Tally:
    """The base of objects that count ``messages`` and their ``nbytes``, each less than 2**63."""

    __slots__ = ("messages", "nbytes")

    def __init__(self) -> None:
        self.messages = self.nbytes = 0


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
