"""nsd: batches that were read from the history, as the messages of responses (nsd §4). Sans-IO."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from dataclasses import replace
from itertools import chain
from sys import maxsize
from typing import TYPE_CHECKING, TypeAlias

from pubsub.broker.routing.batch import Batch, indexed_by
from pubsub.kernel import RowField, encode_rows
from pubsub.protocols.nsd.codec import NAME, messages, text

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget
    from pubsub.broker.routing.batch_rows import BatchRows

_FROM, _WHEN, _BODY = b'{"_class":"Message","from":', b',"when":', b',"body":"'
_END = b'"},'


def encode_batch(batch: Batch) -> bytes:
    """Return the batch's messages as JSON objects with commas between them (nsd §4)."""
    encoded = None
    if batch.rows is not None:
        encoded = _encode_joined(batch, batch.rows)
    elif batch.protocol != NAME or batch.headers is None:
        sender = text(batch.sender.decode(errors="replace"))
        row = _FROM + sender + _WHEN, RowField.NUMBER, _BODY, RowField.TEXT, _END
        encoded = encode_rows(batch.columns, row, None, batch.offset + 1)
    if encoded is None:
        return b",".join(chain.from_iterable(map(messages, batch.parts())))
    return encoded[0][:-1]


def _encode_joined(batch: Batch, rows: BatchRows) -> tuple[bytes, int] | None:
    """Return the messages, each with a comma, and their number; None if a body is not text."""
    names: list[bytes | None] | None = None
    columns, sender = batch.columns, rows.senders[0]
    written: bytes | RowField = text(sender.decode(errors="replace"))
    if rows.senders.count(sender) < len(rows.senders):
        columns, senders = indexed_by(columns, rows.senders, rows.counts)
        names = [text(one.decode(errors="replace")) for one in senders]
        written = RowField.NAME
    row = _FROM, written, _WHEN, RowField.NUMBER, _BODY, RowField.TEXT, _END
    return encode_rows(columns, row, names, rows.numbers_of(rows.offsets, 1))


# The first offset of a batch, its number of messages, their timestamp, the shift, and the offsets
# of its rows.
_Key: TypeAlias = tuple[int, int, int, int, bytes]
# Beside the bytes of an encoded batch and those of the offsets.
_ENTRY_BYTES = 256


class EncodedBatches:
    """The encoded batches that were read last, within ``nbytes``: many clients read the same.

    They count in ``memory`` as a cache.
    """

    def __init__(self, nbytes: int, memory: MemoryBudget) -> None:
        self._limit = nbytes
        self._encoded: OrderedDict[_Key, bytes] = OrderedDict()
        self._account = memory.cache(maxsize, self._encoded.clear)

    def encode(self, batch: Batch, shift: int = 0) -> bytes:
        """As ``encode_batch``, for a batch that was read from the history.

        The numbers of the messages are larger by ``shift``.
        """
        rows = batch.rows
        offsets = b"" if rows is None else array("q", rows.offsets).tobytes()
        key = batch.offset, batch.count, batch.timestamp, shift, offsets
        found = self._encoded.get(key)
        if found is None:
            if shift:
                moved = None if rows is None else rows.shifted(shift)
                batch = replace(batch, offset=batch.offset + shift, rows=moved)
            found = self._encoded[key] = encode_batch(batch)
            # At the bound of the memory this empties the cache.
            self._account.charge(len(found) + len(offsets) + _ENTRY_BYTES)
            while self._account.nbytes > self._limit:
                first, data = self._encoded.popitem(last=False)
                self._account.charge(-len(data) - len(first[-1]) - _ENTRY_BYTES)
        return found
