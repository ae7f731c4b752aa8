"""Scanning and encoding of frames in plain Python; it defines how ``compiled.pyx`` behaves.

A read brings frames of one kind: a head, which tells the length of the payload and the address that
the message goes to, and the payload. ``HeadTable.scan`` turns the read into ``Columns``, a row for
each message, and ``FrameEncoder.encode`` turns columns into the frames of another wire. Neither
knows a protocol: a protocol describes its frames by ``Head`` objects.

Consecutive messages with one head are cut by one call for up to 128 of them, and messages of one
index and size are joined by one call. Every other message costs some steps of the interpreter.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from itertools import accumulate, groupby, pairwise, repeat
from struct import Struct
from typing import Any, cast

from pubsub.kernel.layout import Head, LengthField

_Shape = tuple[int, tuple[LengthField, ...]]
Address = Hashable
Learn = Callable[[bytes, int], "tuple[Head, Address] | None"]
MAX_DATA = 0x7FFFFFFF
MAX_HEADS = 16_384
# Heads with the length of their payload included, of one table or one encoder.
_MAX_LENGTHS = 4096
_MIXED = -1
# Frames cut by one call, and the number from which that is faster than one by one.
_MOST_CUT = 128
_LEAST_CUT = 8


class Columns:
    """Messages in the order in which they were published, in columns.

    ``index`` is a small number that stands for an address or a topic; after a scan ``addresses``
    has the address of each index. ``count`` messages have ``nbytes`` bytes of payload together,
    the largest ``largest``. ``end`` is the offset behind the last frame scanned.
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
    )

    def __init__(
        self,
        payloads: list[bytes],
        indexes: list[int],
        addresses: list[Any],
        end: int,
        size: int = _MIXED,
    ) -> None:
        self._payloads = payloads
        self._indexes = indexes
        self.addresses = addresses
        self.end = end
        self.count = count = len(payloads)
        if size != _MIXED and count:
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
    def unpack(cls, data: bytes, sizes: bytes, indexes: bytes) -> Columns:
        """Return columns from what ``pack`` returned; ``indexes`` may be empty if all are 0.

        Raises ValueError if the three do not fit together.
        """
        lengths = array("I", sizes)
        ends = [0, *accumulate(lengths)]
        if ends[-1] != len(data):
            raise ValueError("the sizes and the data differ in length")
        payloads = [data[start:stop] for start, stop in pairwise(ends)]
        return cls.of(payloads, array("I", indexes) if indexes else None)

    @classmethod
    def equal(cls, data: bytes, size: int, count: int) -> Columns:
        """Return ``count`` messages of index 0 that have ``size`` bytes of ``data`` each.

        Raises ValueError if ``data`` has another length.
        """
        if size < 0 or count < 0 or size * count != len(data):
            raise ValueError("the size and the data differ in length")
        if not size:
            return cls.of([b""] * count)
        return cls.of(_cut(data, 0, b"", size) if count > 1 else [data] * count)

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
        """Add what ``totals`` returns to ``tallies``: int64 count and int64 bytes for each index.

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
            found.append((index, Columns(payloads, [0] * len(payloads), addresses, self.end)))
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
        if self.smallest == self.largest:
            sizes = array("I", [self.largest]) * self.count
        else:
            sizes = array("I", self.sizes())
        return b"".join(self._payloads), sizes.tobytes(), array("I", self._indexes).tobytes()

    def only_index(self) -> int:
        """Return the index that all messages have, or -1."""
        indexes = self._indexes
        return indexes[0] if indexes and indexes.count(indexes[0]) == len(indexes) else -1


class HeadTable:
    """The heads that the frames of a listener's clients begin with, and their addresses.

    ``learn(data, at)`` is called for a frame whose head is not known. It returns the head and its
    address, a hashable object of the caller's, or None if the frame is not a message or its head
    is not complete. At most ``MAX_HEADS`` heads are known; then the table begins again.
    """

    def __init__(self, learn: Learn) -> None:
        self._learn = learn
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        # From the bytes of a head, its length included, to the address and the payload's size.
        self._known: dict[bytes, tuple[Address, int]] = {}
        self._heads: dict[_Shape, dict[bytes, list[tuple[Head, Address]]]] = {}
        self._widths: list[int] = []

    def __len__(self) -> int:
        return self._count

    def scan(self, data: bytes, at: int = 0) -> Columns:
        """Return the messages whose frames follow one another from ``at`` on.

        They end at the end of ``data``, at an incomplete frame, or at one that is not a message
        according to ``learn``.
        """
        end = len(data)
        if not 0 <= at <= end or end > MAX_DATA:
            raise ValueError("at is outside the data, or the data is too long")
        payloads: list[bytes] = []
        indexes: list[int] = []
        places: dict[Address, int] = {}
        known, widths = self._known, self._widths
        uniform = _MIXED - 1
        while at < end:
            for width in widths:
                head = data[at : at + width]
                frame = known.get(head)
                if frame is not None:
                    break
            else:
                head = self._find(data, at) or self._learn_at(data, at, bool(payloads))
                if not head:
                    break
                known = self._known
                frame = known[head]
            # A slice at the end of the data may be a shorter head.
            width = len(head)
            address, size = frame
            stop = at + width + size
            if stop == end and not payloads:
                # One message in a read, as most that come slowly are.
                return Columns.one(data[at + width :], address, end)
            if stop > end:
                break
            if size != uniform:
                uniform = size if uniform < _MIXED else _MIXED
            index = places.setdefault(address, len(places))
            if data.startswith(head, stop):
                found = _cut(data, at, head, size)
                payloads += found
                indexes += repeat(index, len(found))
                at += len(found) * (width + size)
            else:
                payloads.append(data[at + width : stop])
                indexes.append(index)
                at = stop
        return Columns(payloads, indexes, list(places), at, max(uniform, _MIXED))

    def _find(self, data: bytes, at: int) -> bytes:
        """Return the head at ``at`` if it is one of those learnt, with another length so far."""
        for (width, fields), heads in self._heads.items():
            head = data[at : at + width]
            if len(head) < width:
                continue
            for learnt, address in heads.get(_without_lengths(head, fields), ()):
                size = _size_after(learnt, head)
                if size is not None:
                    if len(self._known) >= _MAX_LENGTHS:
                        self._known.clear()
                    self._known[head] = (address, size)
                    return head
        return b""

    def _learn_at(self, data: bytes, at: int, busy: bool) -> bytes:
        """Learn the head at ``at``; ``busy`` if the scan has found messages already."""
        found = self._learn(data, at)
        if found is None:
            return b""
        head, address = found
        _check(head)
        if _size_after(head, data[at : at + len(head.data)]) is None:
            return b""
        if self._count >= MAX_HEADS:
            # Addresses must not change their meaning within one scan.
            if busy:
                return b""
            self._clear()
        self._count += 1
        heads = self._heads.setdefault((len(head.data), head.fields), {})
        heads.setdefault(head.data, []).append((head, address))
        if len(head.data) not in self._widths:
            self._widths.append(len(head.data))
        return self._find(data, at)


class FrameEncoder:
    """Writes columns as frames. ``heads[index]`` has the heads of the messages of an index.

    Of several, the first is used whose bounds the payload is within; a message that none fits, or
    whose index has no heads, is left out. ``variable_size`` bytes at ``variable_at`` of each head
    are given for each call.
    """

    def __init__(
        self, heads: list[tuple[Head, ...]], variable_at: int = 0, variable_size: int = 0
    ) -> None:
        for own in heads:
            for head in own:
                _check(head)
                if variable_at < 0 or variable_at + variable_size > len(head.data):
                    raise ValueError("the variable bytes are outside a head")
        self._heads = heads
        self._at, self._size = variable_at, variable_size
        # The parts of a head around the variable bytes, by index and payload size.
        self._made: dict[tuple[int, int], tuple[bytes, bytes] | None] = {}

    def encode(self, columns: Columns, variable: bytes = b"") -> tuple[bytes, int]:
        """Return the frames, and the number of messages that they hold."""
        if len(variable) != self._size:
            raise ValueError("the variable bytes have another length")
        if columns.count == 1:
            key = columns.indexes()[0], columns.nbytes
            around = self._made.get(key) or self._around(key)
            if around is None:
                return b"", 0
            return around[0] + variable + around[1] + columns.payloads()[0], 1
        payloads, index = columns.payloads(), columns.only_index()
        if index >= 0 and columns.smallest == columns.largest:
            around = self._around((index, columns.largest))
            if around is None:
                return b"", 0
            return variable.join(around).join((b"", *payloads)), len(payloads)
        keys = zip(columns.indexes(), columns.sizes(), strict=True)
        heads = list(map(_Heads(self._made, self._around, variable).__getitem__, keys))
        if None in heads:
            payloads = [p for p, head in zip(payloads, heads, strict=True) if head is not None]
            heads = [head for head in heads if head is not None]
        parts: list[bytes] = [b""] * (2 * len(payloads))
        parts[0::2], parts[1::2] = cast("list[bytes]", heads), payloads
        return b"".join(parts), len(payloads)

    def _around(self, key: tuple[int, int]) -> tuple[bytes, bytes] | None:
        """Return what stands around the variable bytes before a payload; None if nothing fits."""
        if len(self._made) >= _MAX_LENGTHS:
            self._made.clear()
        index, size = key
        around = None
        for head in self._heads[index] if index < len(self._heads) else ():
            if head.least <= size <= min(head.limit, MAX_DATA):
                data = head.encode(size)
                around = data[: self._at], data[self._at + self._size :]
                break
        self._made[key] = around
        return around


class _Heads(dict[tuple[int, int], "bytes | None"]):
    """Heads with their variable bytes, by index and size, made when first used."""

    def __init__(
        self,
        made: dict[tuple[int, int], tuple[bytes, bytes] | None],
        make: Callable[[tuple[int, int]], tuple[bytes, bytes] | None],
        variable: bytes,
    ) -> None:
        super().__init__()
        self._made = made
        self._make = make
        self._variable = variable

    def __missing__(self, key: tuple[int, int]) -> bytes | None:
        around = self._made.get(key) or self._make(key)
        head = None if around is None else self._variable.join(around)
        self[key] = head
        return head


def _check(head: Head) -> None:
    """Raise ValueError for a head whose fields do not fit it."""
    before = 0
    if not 1 <= len(head.fields) <= 2:
        raise ValueError(f"a head has 1 or 2 length fields, not {len(head.fields)}")
    for field in head.fields:
        if field.at < before or not 1 <= field.width <= 8:
            raise ValueError("length fields are in ascending order, of 1 to 8 bytes")
        before = field.at + field.width
    if before > len(head.data):
        raise ValueError("a length field is outside its head")
    if head.least < 0:
        raise ValueError("the least length of a payload is negative")


def _size_after(head: Head, data: bytes) -> int | None:
    """Return the payload's length in ``data``, which is ``head`` but for its length fields."""
    sizes = {field.decode(data, 0) for field in head.fields}
    size = sizes.pop()
    fits = head.least <= size <= min(head.limit, MAX_DATA)
    return size if fits and not sizes else None


def _without_lengths(head: bytes, fields: tuple[LengthField, ...]) -> bytes:
    for field in fields:
        stop = field.at + field.width
        head = head[: field.at] + bytes(field.width) + head[stop:]
    return head


@lru_cache(maxsize=1024)
def _cutter(before: int, size: int, count: int) -> Struct:
    return Struct(f"{before}x{size}s" * count)


def _cut(data: bytes, at: int, head: bytes, size: int) -> list[bytes]:
    """Return the payloads of the complete frames from ``at`` on that begin with ``head``."""
    payloads: list[bytes] = []
    step = len(head) + size
    most = _MOST_CUT
    while (count := min((len(data) - at) // step, most)) >= _LEAST_CUT:
        most = count // 4
        # Comparing the last frame first spares most attempts that would fail.
        if data.startswith(head, at + (count - 1) * step):
            cut = _cutter(len(head), size, count).unpack_from(data, at)
            # Cutting skipped the heads; they are equal if joining gives the same bytes.
            if data.startswith(head.join((b"", *cut)), at):
                payloads += cut
                at += count * step
                most = count
    stop = at + step
    while stop <= len(data) and data.startswith(head, at):
        payloads.append(data[stop - size : stop])
        at, stop = stop, stop + step
    return payloads
