"""``Parcel``: whole blocks of a range of the history, for readers that use columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from pubsub.store.records.block import Block

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

    @property
    def nbytes(self) -> int:
        """The bytes of all payloads of the blocks, which are in memory as long as the parcel."""
        return sum([len(block.payloads) for block, _ in self.blocks])

    def divided(self, nbytes: int) -> Iterator[Parcel]:
        """Yield the parcel in parts of about ``nbytes``, if it has more than twice as many.

        A block can be that large, as a batch that is written exactly once is one. The messages of a
        block are taken to be of one size.
        """
        if self.nbytes <= 2 * nbytes:
            yield self
            return
        at = self.start
        for block, names in self.blocks:
            low, high = max(block.base, self.start), min(block.stop, self.stop)
            parts = max(min(-(-len(block.payloads) // nbytes), high - low), 1)
            for part in range(1, parts + 1):
                end = low + (high - low) * part // parts
                yield Parcel(at, end, self.first, ((block, names),))
                at = end
        yield Parcel(at, self.stop, self.first, (), self.damaged)
