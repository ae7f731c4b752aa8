"""``Tally``: how many messages there were, and how many bytes.

Counting is a call into the kernel: two additions to attributes take several times as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pubsub.kernel.interpreted.columns import Columns


class Counted(Protocol):
    """An object whose class is derived from ``Tally``."""

    messages: int
    nbytes: int


class Tally:
    """The base of what counts ``messages`` and their ``nbytes``, each less than 2**63."""

    __slots__ = ("messages", "nbytes")

    def __init__(self) -> None:
        self.messages = self.nbytes = 0

    def add(self, columns: Columns) -> None:
        """Count the messages of ``columns`` and the bytes of their payloads."""
        self.messages += columns.count
        self.nbytes += columns.nbytes


def add_to_each(tallies: Sequence[Counted], total: Tally, messages: int, nbytes: int) -> None:
    """Count ``messages`` with ``nbytes`` for each of ``tallies``, and for all of them in ``total``.

    ``tallies`` is a tuple.
    """
    for tally in tallies:
        tally.messages += messages
        tally.nbytes += nbytes
    total.messages += messages * len(tallies)
    total.nbytes += nbytes * len(tallies)
