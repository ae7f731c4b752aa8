"""``BatchRows``: what differs between messages that are handled together.

Clients that send single messages fill the history with small runs, each of which has a sender and a
time of its own. To read and deliver each of them as a batch would take several µs. So small runs
are read as one batch, which has a row for each of them. Messages of a read that only some
subscribers get are a batch with rows, too (see ``row_routing.py``).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import NamedTuple


class BatchRows(NamedTuple):
    """Rows of messages: the number of messages of each, and what its first message has.

    The messages of a row follow one another, have one topic, and differ in their payloads alone.
    ``indexes`` are those of the topics.
    """

    counts: tuple[int, ...]
    indexes: tuple[int, ...]
    offsets: tuple[int, ...]
    sequences: tuple[int, ...]
    timestamps: tuple[int, ...]
    senders: tuple[bytes, ...]

    @property
    def stop(self) -> int:
        """The offset after the last message."""
        return self.offsets[-1] + self.counts[-1]

    def numbers_of(self, first: Sequence[int], more: int) -> bytes:
        """Return the number of each message, plus ``more``, as ``encode_rows`` takes them.

        ``first`` are the offsets or the sequences of the rows.
        """
        if max(self.counts) == 1:
            return array("Q", [more + number for number in first]).tobytes()
        ranges = [
            range(more + number, more + number + count)
            for number, count in zip(first, self.counts, strict=True)
        ]
        return array("Q", chain.from_iterable(ranges)).tobytes()

    def shifted(self, number: int) -> BatchRows:
        """Return these rows with offsets that are larger by ``number``."""
        return self._replace(offsets=tuple([offset + number for offset in self.offsets]))

    def part(self, start: int, stop: int) -> BatchRows:
        """Return the rows of the messages from place ``start`` up to ``stop``."""
        found = []
        ends = accumulate(self.counts)
        for end, (count, index, offset, sequence, timestamp, sender) in zip(
            ends, zip(*self, strict=True), strict=True
        ):
            before = max(start - end + count, 0)
            left = count - before - max(end - stop, 0)
            if left > 0:
                found.append((left, index, offset + before, sequence + before, timestamp, sender))
        return BatchRows(*map(tuple, zip(*found, strict=True)))
