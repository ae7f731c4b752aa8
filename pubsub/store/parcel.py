"""``Parcel``: whole blocks of a range of the history, for readers that use columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from pubsub.store.block import Block

Piece = tuple[Block, frozenset[str]]
"""A block, and the topics of which its messages are to be read."""


@dataclass(frozen=True, slots=True)
class Parcel:
    """Blocks that hold the messages from ``start`` to before ``stop``, in order.

    Each block comes with its topics that were requested and have not expired. A block may extend
    beyond the range. ``damaged`` is a range of offsets (start, stop) after the last block that
    cannot be read; ``first`` is the first offset of the history.
    """

    start: int
    stop: int
    first: int
    blocks: tuple[Piece, ...] = ()
    damaged: tuple[int, int] | None = None

    def of(self, wanted: Callable[[str], bool]) -> Parcel:
        """Return the parcel with only the topics for which ``wanted`` returns True."""
        kept = [(block, frozenset(filter(wanted, names))) for block, names in self.blocks]
        return replace(self, blocks=tuple([piece for piece in kept if piece[1]]))
