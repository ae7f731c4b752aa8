"""``TextTable``: finds the messages in lines of JSON."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat, takewhile

from pubsub.kernel.interpreted.columns import MAX_DATA, MIXED, Address, Columns
from pubsub.kernel.interpreted.head_table import MAX_HEADS
from pubsub.kernel.interpreted.texts import is_plain
from pubsub.kernel.layout import TextHead

LearnText = Callable[[bytes, int], "tuple[TextHead, Address] | None"]
_DIFFERENT, _INCOMPLETE = -1, -2
_KnownText = tuple[TextHead, Address]


class TextTable:
    """As ``HeadTable``, for lines whose payload ends at a quote.

    A line does not fit a head if its payload has a character that JSON escapes, is not UTF-8, or
    is longer than the head's limit.
    """

    def __init__(self, learn: LearnText) -> None:
        self._learn = learn
        self._clear()

    def _clear(self) -> None:
        self._count = 0
        self._held: list[object] = []
        self._known: dict[bytes, list[_KnownText]] = {}
        self._widths: list[int] = []

    def __len__(self) -> int:
        return self._count

    def held(self) -> list[object]:
        """See ``HeadTable.held``."""
        return self._held.copy()

    def scan(self, data: bytes, at: int = 0) -> Columns:
        """See ``HeadTable.scan``."""
        if not 0 <= at <= len(data) <= MAX_DATA:
            raise ValueError("at is outside the data, or the data is too long")
        payloads: list[bytes] = []
        indexes: list[int] = []
        places: dict[Address, int] = {}
        while at < len(data):
            found = self._find(data, at) or self._learn_at(data, at, bool(payloads))
            if found is None:
                break
            (head, address), size = found
            if size == _INCOMPLETE:
                break
            width = len(head.before)
            cut = [data[at + width : at + width + size]]
            at += width + size + len(head.after)
            if data.startswith(head.before, at):
                more, at = _cut(data, at, head)
                cut += more
            index = places.setdefault(address, len(places))
            payloads += cut
            indexes += repeat(index, len(cut))
        return Columns(payloads, indexes, list(places), at, MIXED)

    def _find(self, data: bytes, at: int) -> tuple[_KnownText, int] | None:
        """Return the head that the line at ``at`` fits, and its payload's size."""
        for width in self._widths:
            for known in self._known.get(data[at : at + width], ()):
                size = _match(data, at, known[0])
                if size != _DIFFERENT:
                    return known, size
        return None

    def _learn_at(self, data: bytes, at: int, busy: bool) -> tuple[_KnownText, int] | None:
        """Learn the head at ``at``; ``busy`` if the scan has found messages already."""
        learnt = self._learn(data, at)
        if learnt is None:
            return None
        head = learnt[0]
        if not head.after.startswith(b'"'):
            raise ValueError("the text after a payload begins with a quote")
        size = _match(data, at, head)
        if size == _DIFFERENT:
            return None
        if self._count >= MAX_HEADS:
            # Addresses must not change their meaning within one scan.
            if busy:
                return None
            self._clear()
        self._count += 1
        self._known.setdefault(head.before, []).append(learnt)
        self._held += learnt
        if len(head.before) not in self._widths:
            self._widths.append(len(head.before))
        return learnt, size


def _match(data: bytes, at: int, head: TextHead) -> int:
    """Return the size of the payload of the line at ``at``; negative if there is none."""
    before, after, limit = head
    if not data.startswith(before, at):
        return _DIFFERENT
    start = at + len(before)
    stop = data.find(b'"', start)
    if stop < 0:
        begun = data[start : start + limit + 1]
        return _INCOMPLETE if len(begun) <= limit and is_plain([begun]) else _DIFFERENT
    if stop - start > limit or not is_plain([data[start:stop]]):
        return _DIFFERENT
    if data.startswith(after, stop):
        return stop - start
    return _INCOMPLETE if after.startswith(data[stop:]) else _DIFFERENT


def _cut(data: bytes, at: int, head: TextHead) -> tuple[list[bytes], int]:
    """Return the payloads of the lines from ``at`` on that fit ``head``, and where they end."""
    before, after, limit = head
    skip, step = len(before), len(after)
    start = at
    payloads: list[bytes] = []
    while data.startswith(before, at):
        end = data.find(b'"', at + skip)
        if end < 0 or not data.startswith(after, end):
            break
        payloads.append(data[at + skip : end])
        at = end + step
    if payloads and (max(map(len, payloads)) > limit or not is_plain(payloads)):
        payloads = list(takewhile(lambda one: len(one) <= limit and is_plain([one]), payloads))
        at = start + sum(map(len, payloads)) + len(payloads) * (skip + step)
    return payloads, at
