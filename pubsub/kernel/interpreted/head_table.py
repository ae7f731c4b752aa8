"""``HeadTable``: finds the messages in a read."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import TYPE_CHECKING

from pubsub.kernel.interpreted.columns import MAX_DATA, MIXED, Address, Columns
from pubsub.kernel.interpreted.frame_cutting import cut
from pubsub.kernel.interpreted.head_checks import MAX_LENGTHS, check_head
from pubsub.kernel.layout import Head, LengthField

if TYPE_CHECKING:
    from pubsub.kernel.interpreted.column_queue import ColumnQueue
    from pubsub.kernel.interpreted.tally import LinkedTally

_Shape = tuple[int, tuple[LengthField, ...]]
Learn = Callable[[bytes, int], "tuple[Head, Address] | None"]
MAX_HEADS = 131_072


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
        self._held: list[object] = []
        # Another object after each `_clear`, before which addresses may have had another meaning.
        self._generation = object()
        # From the bytes of a head, its length included, to the address and the payload's size.
        self._known: dict[bytes, tuple[Address, int]] = {}
        self._heads: dict[_Shape, dict[bytes, list[tuple[Head, Address]]]] = {}
        self._widths: list[int] = []

    def __len__(self) -> int:
        return self._count

    def held(self) -> list[object]:
        """Return the heads and addresses: with them the table can be freed a little at a time."""
        return self._held.copy()

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
        uniform = MIXED - 1
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
                return self._one(data, at + width, address)
            if stop > end:
                break
            if size != uniform:
                uniform = size if uniform < MIXED else MIXED
            index = places.setdefault(address, len(places))
            if data.startswith(head, stop):
                found = cut(data, at, head, size)
                payloads += found
                indexes += repeat(index, len(found))
                at += len(found) * (width + size)
            else:
                payloads.append(data[at + width : stop])
                indexes.append(index)
                at = stop
        columns = Columns(payloads, indexes, list(places), at, max(uniform, MIXED))
        return self._sourced(columns)

    def put_alike(self, data: bytes, queue: ColumnQueue, tally: LinkedTally) -> bool:
        """Put ``data`` into ``queue`` if it is one message like those that ``tally`` counted last.

        It has a known head, and the address that this table found for the columns that a queue took
        last with ``tally``, since that was linked with its topic. Their sender and protocol are its
        own. Otherwise, and if ``ColumnQueue.put`` returns False, this does so, and does nothing.
        """
        if tally.source is None:
            return False
        generation, expected, sender, protocol = tally.source
        if generation is not self._generation:
            return False
        known = self._known
        heads = (data[:width] for width in self._widths)
        head = next((head for head in heads if head in known), b"") or self._find(data, 0)
        address, size = known.get(head, (None, 0))
        if not head or address != expected or len(head) + size != len(data):
            return False
        return queue.put(self._one(data, len(head), address), sender, protocol, tally)

    def _one(self, data: bytes, at: int, address: Address) -> Columns:
        """Return the message whose payload is all of ``data`` from ``at`` on."""
        return self._sourced(Columns.one(data[at:], address, len(data)))

    def _sourced(self, columns: Columns) -> Columns:
        if len(columns.addresses) == 1:
            columns.source = (self._generation, columns.addresses[0])
        return columns

    def _find(self, data: bytes, at: int) -> bytes:
        """Return the head at ``at`` if it is one of those learnt, with another length so far."""
        for (width, fields), heads in self._heads.items():
            head = data[at : at + width]
            if len(head) < width:
                continue
            for learnt, address in heads.get(_without_lengths(head, fields), ()):
                size = _size_after(learnt, head)
                if size is not None:
                    if len(self._known) >= MAX_LENGTHS:
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
        check_head(head)
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
        self._held += (head, address)
        if len(head.data) not in self._widths:
            self._widths.append(len(head.data))
        return self._find(data, at)


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
