"""``Columns``: the messages of a read or of a batch."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any

from pubsub.kernel.interpreted.frame_cutting import cut

Address = Hashable
MAX_DATA = 0x7FFFFFFF
MIXED = -1
"""The size of messages that have several."""


class Columns:
    """Messages in the order in which they were published, in columns.

    ``index`` is a small number that stands for an address or a topic; after a scan ``addresses``
    has the address of each index. ``count`` messages have ``nbytes`` bytes of payload together,
    the largest ``largest``. ``end`` is the offset behind the last frame scanned. ``source`` is set
    by a table that found messages of one address: the generation of the table, and that address.
    """

    __slots__ = (
        "_indexes",
        "_payloads",
        "addresses",
        "count",
        "end",
        "largest",
        "nbytes",
        "smallest",
        "source",
    )

    def __init__(
        self,
        payloads: list[bytes],
        indexes: list[int],
        addresses: list[Any],
        end: int,
        size: int = MIXED,
    ) -> None:
        self._payloads = payloads
        self._indexes = indexes
        self.addresses = addresses
        self.end = end
        self.source: tuple[object, Address] | None = None
        self.count = count = len(payloads)
        if size != MIXED and count:
            # The caller knows that all payloads have this size.
            self.nbytes = size * count
            self.largest = self.smallest = size
            return
        sizes = tuple(map(len, payloads))
        self.nbytes = sum(sizes)
        self.largest = max(sizes, default=0)
        self.smallest = min(sizes, default=0)

    def __eq__(self, other: object) -> bool:
        """Return whether the messages and their indexes are the same."""
        return isinstance(other, Columns) and self.pack() == other.pack()

    @classmethod
    def one(cls, payload: bytes, address: Address = 0, end: int = 0) -> Columns:
        """Return columns of one message."""
        made = cls.__new__(cls)
        made._payloads = [payload]
        made._indexes = [0]
        made.addresses = [address]
        made.end = end
        made.source = None
        made.count = 1
        made.nbytes = made.largest = made.smallest = len(payload)
        return made

    @classmethod
    def of(
        cls,
        payloads: list[bytes],
        indexes: Sequence[int] | None = None,
        addresses: list[Any] | None = None,
    ) -> Columns:
        """Return columns of ``payloads``, all of index 0 unless ``indexes`` are given.

        Raises ValueError if they have more than ``MAX_DATA`` bytes.
        """
        places = [0] * len(payloads) if indexes is None else list(indexes)
        if len(places) != len(payloads):
            raise ValueError("indexes and payloads differ in number")
        made = cls(
            payloads.copy(),
            places,
            [0] if addresses is None else addresses,
            sum(map(len, payloads)),
        )
        if made.nbytes > MAX_DATA:
            raise ValueError("too many bytes for one batch")
        return made

    @classmethod
    def gather(cls, payloads: list[bytes]) -> Columns:
        """Return columns of ``payloads``, all of index 0, that refer to them.

        Their bytes are copied only when they are needed in one piece, so not by an encoder. Raises
        ValueError as ``of`` does.
        """
        return cls.of(payloads)

    @classmethod
    def unpack(
        cls, data: bytes, sizes: bytes, indexes: bytes, at: int = 0, stop: int | None = None
    ) -> Columns:
        """Return columns from the result of ``pack``; ``indexes`` may be empty if all are 0.

        The payloads are ``data[at:stop]``. Raises ValueError if the three do not fit together.
        """
        data = _part(data, at, stop)
        lengths = array("I", sizes)
        ends = [0, *accumulate(lengths)]
        if ends[-1] != len(data):
            raise ValueError("the sizes and the data differ in length")
        payloads = [data[start:stop] for start, stop in pairwise(ends)]
        return cls.of(payloads, array("I", indexes) if indexes else None)

    @classmethod
    def equal(
        cls, data: bytes, size: int, count: int, at: int = 0, stop: int | None = None
    ) -> Columns:
        """Return ``count`` messages of index 0 that have ``size`` bytes of ``data[at:stop]`` each.

        Raises ValueError if that has another length.
        """
        data = _part(data, at, stop)
        bounded = 0 <= size <= MAX_DATA and 0 <= count <= MAX_DATA
        if not bounded or size * count != len(data):
            raise ValueError("the size and the data differ in length")
        if not size:
            return cls.of([b""] * count)
        return cls.of(cut(data, 0, b"", size) if count > 1 else [data] * count)

    @staticmethod
    def joined(parts: list[bytes | Columns]) -> bytes:
        """Return ``parts`` in one: bytes, and the payloads of columns."""
        return b"".join(
            [b"".join(part._payloads) if isinstance(part, Columns) else part for part in parts]
        )

    def totals(self) -> list[tuple[int, int, int]]:
        """Return index, number of messages and payload bytes of each index, in order."""
        if not any(self._indexes):
            return [(0, self.count, self.nbytes)] if self.count else []
        totals: dict[int, tuple[int, int]] = {}
        for index, payload in zip(self._indexes, self._payloads, strict=True):
            count, nbytes = totals.get(index, (0, 0))
            totals[index] = (count + 1, nbytes + len(payload))
        return [(index, *totals[index]) for index in sorted(totals)]

    def add_totals(self, tallies: bytearray) -> None:
        """Add the result of ``totals`` to ``tallies``: int64 count and int64 bytes for each index.

        Raises ValueError if an index has no place there; nothing has been added then.
        """
        totals = self.totals()
        if totals and totals[-1][0] >= len(tallies) // 16:
            raise ValueError("an index has no tally")
        with memoryview(tallies) as view, view.cast("q") as sums:
            for index, count, nbytes in totals:
                sums[2 * index] += count
                sums[2 * index + 1] += nbytes

    @staticmethod
    def count_each(sizes: bytes, indexes: bytes) -> list[tuple[int, int, int]]:
        """Return index, number of messages and bytes of each index, in order.

        ``sizes`` and ``indexes`` are as ``pack`` returns them. Raises ValueError if they differ in
        number, or if an index is larger than four times that number and 256.
        """
        lengths, places = array("I", sizes), array("I", indexes)
        if len(lengths) != len(places):
            raise ValueError("indexes and sizes differ in number")
        if max(places, default=0) > 4 * len(lengths) + 256:
            raise ValueError("an index is too large")
        totals: dict[int, tuple[int, int]] = {}
        for index, size in zip(places, lengths, strict=True):
            count, nbytes = totals.get(index, (0, 0))
            totals[index] = (count + 1, nbytes + size)
        return [(index, *totals[index]) for index in sorted(totals)]

    def sizes(self) -> list[int]:
        """Return the length of each payload."""
        return list(map(len, self._payloads))

    def indexes(self) -> list[int]:
        """Return the index of each message."""
        return self._indexes.copy()

    def payloads(self) -> list[bytes]:
        """Return each payload."""
        return self._payloads.copy()

    def slice(self, start: int, stop: int) -> Columns:
        """Return the messages from position ``start`` up to ``stop``."""
        start = max(start, 0)
        stop = max(stop, 0)
        payloads, indexes = self._payloads[start:stop], self._indexes[start:stop]
        return Columns(payloads, indexes, self.addresses, self.end)

    def runs(self) -> list[tuple[int, Columns]]:
        """Return consecutive messages of one index, with that index, as columns of index 0."""
        found: list[tuple[int, Columns]] = []
        start = 0
        for index, same in groupby(self._indexes):
            stop = start + len(list(same))
            payloads = self._payloads[start:stop]
            addresses = self.addresses[index : index + 1]
            made = Columns(payloads, [0] * len(payloads), addresses, self.end)
            made.source = self.source
            found.append((index, made))
            start = stop
        return found

    def remap(self, indexes: list[int]) -> Columns:
        """Return the messages with ``indexes[index]`` as index; those that get -1 are left out."""
        found = [indexes[index] for index in self._indexes]
        if -1 not in indexes:
            return Columns(self._payloads, found, self.addresses, self.end)
        left = [place for place, index in enumerate(found) if index >= 0]
        payloads = [self._payloads[place] for place in left]
        return Columns(payloads, [found[place] for place in left], self.addresses, self.end)

    def pack(self) -> tuple[bytes, bytes, bytes]:
        """Return all payloads joined, their lengths and the indexes (u32, native byte order)."""
        return b"".join(self._payloads), self.words(), self.words(of_indexes=True)

    def words(self, of_indexes: bool = False) -> bytes:
        """Return the lengths of the payloads, or the indexes (u32, native byte order)."""
        if of_indexes:
            return array("I", self._indexes).tobytes()
        if self.smallest == self.largest:
            return (array("I", [self.largest]) * self.count).tobytes()
        return array("I", self.sizes()).tobytes()

    def only_index(self) -> int:
        """Return the index that all messages have, or -1."""
        indexes = self._indexes
        return indexes[0] if indexes and indexes.count(indexes[0]) == len(indexes) else -1


def _part(data: bytes, at: int, stop: int | None) -> bytes:
    """Return ``data[at:stop]``; raises ValueError if it is outside of ``data``."""
    end = len(data) if stop is None else stop
    if not 0 <= at <= end <= len(data):
        raise ValueError("the payloads are outside the data")
    return data[at:end]
