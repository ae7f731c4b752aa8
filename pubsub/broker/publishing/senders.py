"""The senders of messages that arrive together: a gateway may speak for many clients."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from itertools import chain, compress, islice, repeat
from operator import ne, sub
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.kernel import Columns, Senders


def sender_of(columns: Columns, by_index: Sequence[bytes]) -> bytes | Senders:
    """Return the sender of the messages of ``columns``, or their senders if there are several.

    ``by_index`` has that of each index.
    """
    if len(set(by_index)) == 1:
        return by_index[0]
    # Each step is a pass in C over thousands of messages.
    indexes = memoryview(columns.words(of_indexes=True)).cast("I")
    count = len(indexes)
    changes = map(ne, indexes, islice(indexes, 1, None))
    starts = [0, *compress(range(1, count), changes)]
    counts = array("I", map(sub, [*starts[1:], count], starts))
    return counts.tobytes(), tuple(map(by_index.__getitem__, map(indexes.__getitem__, starts)))


def sender_of_each(senders: Senders) -> Iterator[bytes]:
    """Return the sender of each message."""
    counts, names = senders
    return chain.from_iterable(map(repeat, names, memoryview(counts).cast("I")))
