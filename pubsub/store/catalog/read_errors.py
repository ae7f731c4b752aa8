"""``ReadErrors``: the parts of segments that the disk does not give, in memory only.

A disk may fail a read once and give the same bytes later, so nothing about an error is stored.
While errors of a segment are new, the read fails, and is repeated by the reader. When reads of the
segment have failed for ``PATIENCE`` seconds, an entry is read around its broken pages, and the
messages in these are reported as damaged. The disk is asked for them again after a while; if it
gives them, they are sound messages again.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

from twisted.logger import Logger

from pubsub.store.catalog.damage import ByteRange, Damage
from pubsub.store.records.record import HEAD_BYTES, Found
from pubsub.store.segments.segment import Segment
from pubsub.store.segments.segment_index import IndexEntry, SegmentIndex

log = Logger()
PATIENCE = 10.0
"""Seconds for which a segment fails to be read until its messages are taken for damaged."""
# Seconds without a read after which an error counts as the first one again, and seconds until the
# disk is asked again for a part that is taken for damaged.
_PAUSE = 60.0
# Seconds for which a segment is reported whose reads fail, although nobody reads it meanwhile.
_REPORTED = 600.0
_PAGE = 4096
# Pages of an entry that are tried one after another: a failing disk takes seconds for each.
_MOST = 8
# Entries that are remembered, of all segments and of one.
_ENTRIES = 10_000
_INDEX = -1
_EntryKey = tuple[int, int]
_Result = TypeVar("_Result")


@dataclass(slots=True)
class _LostEntry:
    """An entry that is taken for damaged: when it failed last, and what is lost of it.

    Readers still ask for it if they have not given it up, but upkeep has found it.
    """

    last: float
    given_up: bool = False
    pages: frozenset[int] = frozenset()
    ranges: list[ByteRange] = field(default_factory=list)


@dataclass(slots=True)
class _FailingSegment:
    """A segment whose reads fail: since when, when last, and the entries that failed."""

    first: float
    last: float
    entries: set[int] = field(default_factory=set)


class ReadErrors:
    """Reads entries and indexes of segments; for several threads. ``damage`` gets the losses."""

    def __init__(self, damage: Damage, seconds: Callable[[], float] = time.monotonic) -> None:
        self._damage = damage
        self._seconds = seconds
        self._lost: dict[_EntryKey, _LostEntry] = {}
        self._failing: dict[int, _FailingSegment] = {}
        # When reads failed last of segments that are not taken for damaged, and whether of the
        # index, which may be in memory while nothing else can be read.
        self._unreadable: dict[tuple[int, bool], float] = {}
        self._lock = Lock()
        self.count = 0
        """Reads that the disk has failed."""

    def figures(self) -> dict[str, float]:
        """Return ``read_errors``, and ``unreadable_segments``: the reads of these failed last."""
        oldest = self._seconds() - _REPORTED
        with self._lock:
            recent = {number for (number, _), last in self._unreadable.items() if last > oldest}
        return {"read_errors": self.count, "unreadable_segments": len(recent)}

    def index(self, segment: Segment) -> SegmentIndex:
        """Return the index, or one of a damaged range if the disk has given none for long."""
        key = (segment.head.sequence, _INDEX)
        lost = self._spared(key)
        damage = None if lost is None or segment.index_bytes else segment.damage()
        if damage is not None:
            return damage
        try:
            index = segment.index
        except OSError as error:
            damage = segment.damage()
            if not self._is_given_up(key, error) or damage is None:
                raise
            self._report(segment, self._lose(key, [(segment.base, segment.stop)]))
            return damage
        self._forget(key)
        return index

    def _spared(self, key: _EntryKey) -> _LostEntry | None:
        """Return the entry if the disk is not asked for it now, which may take seconds each time.

        Of a segment's index, that is what is lost of all of it.
        """
        lost = self._lost.get(key)
        if lost is None or not lost.given_up or self._seconds() >= lost.last + _PAUSE:
            return None
        return lost

    def records(self, segment: Segment, entry: IndexEntry) -> tuple[list[Found | ByteRange], bool]:
        """Return the records of an entry and its damaged ranges, and whether the disk gave all.

        Raises OSError, also while errors of the disk are new.
        """
        if entry.end - entry.position < HEAD_BYTES:
            # Of an index that the disk does not give: another entry has this number there.
            return [(entry.base, entry.stop)], False
        key = (segment.head.sequence, entry.number)
        lost, pages = self._spared(key), frozenset[int]()
        if lost is not None:
            pages = lost.pages
        else:
            try:
                found = list(segment.records(entry))
            except OSError as error:
                if not self._is_given_up(key, error):
                    raise
            else:
                self._forget(key)
                return found, True
        found, ranges = self._around(segment, entry, key, pages)
        self._report(segment, ranges)
        return found, False

    def records_at_once(self, segment: Segment, entry: IndexEntry) -> list[Found | ByteRange]:
        """As ``records``, without patience, for a caller that reports what is damaged.

        It is damaged until a reader gets it.
        """
        try:
            return list(segment.records(entry))
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        key = (segment.head.sequence, entry.number)
        self._note(key)
        return self._around(segment, entry, key, frozenset())[0]

    def lose(self, segment: Segment) -> None:
        """All of a segment is damaged, as the caller reports, until a reader gets its index."""
        key = (segment.head.sequence, _INDEX)
        self._note(key)
        self._lose(key, [(segment.base, segment.stop)])

    def _around(
        self, segment: Segment, entry: IndexEntry, key: _EntryKey, known: frozenset[int]
    ) -> tuple[list[Found | ByteRange], list[ByteRange]]:
        """Return the records of an entry that are not in broken pages, and the ranges of others.

        The second list has the ranges that were not known.
        """
        data, pages = _read_around(segment, entry, known)
        found = list(segment.records_in(entry, data))
        ranges = [one for one in found if not isinstance(one, Found)]
        return found, self._lose(key, ranges, pages)

    def _is_given_up(self, key: _EntryKey, error: OSError) -> bool:
        """Note an error; return whether the disk had others for so long that it stays."""
        now = self._seconds()
        number, entry = key
        # A file that is not there is lost, or was replaced.
        if error.errno != errno.ENOENT:
            self._note_unreadable(key, now)
        if error.errno != errno.EIO:
            return False
        with self._lock:
            self.count += 1
            failing = self._failing.get(number)
            if failing is None or now > failing.last + _PAUSE:
                _make_room(self._failing)
                failing = self._failing[number] = _FailingSegment(now, now)
            failing.last = now
            failing.entries.add(entry)
            lost = self._lost.get(key)
            is_known = lost is not None and lost.given_up
            if not is_known and now < failing.first + PATIENCE:
                return False
            self._note_readable(number)
        lost = self._note(key)
        lost.last, lost.given_up = now, True
        return True

    def _note_unreadable(self, key: _EntryKey, now: float) -> None:
        number, entry = key
        place = number, entry == _INDEX
        with self._lock:
            if place not in self._unreadable:
                _make_room(self._unreadable)
            self._unreadable[place] = now

    def _note_readable(self, number: int, only_index: bool = False) -> None:
        self._unreadable.pop((number, True), None)
        if not only_index:
            self._unreadable.pop((number, False), None)

    def _note(self, key: _EntryKey) -> _LostEntry:
        with self._lock:
            if key not in self._lost:
                _make_room(self._lost)
            return self._lost.setdefault(key, _LostEntry(self._seconds()))

    def _lose(
        self, key: _EntryKey, ranges: list[ByteRange], pages: frozenset[int] = frozenset()
    ) -> list[ByteRange]:
        """Note what is lost of an entry; return the ranges that were not known."""
        ranges = [one for one in ranges if one[0] < one[1]]
        with self._lock:
            lost = self._lost.get(key)
            before = [] if lost is None else lost.ranges
            if lost is not None:
                lost.ranges, lost.pages = ranges, pages
            unknown = [one for one in ranges if self._damage.note(*one)]
            # The disk may give other pages each time.
            for start, stop in set(before) - set(ranges):
                self._damage.remove(start, stop)
            for start, stop in ranges:
                self._damage.note(start, stop)
        return unknown

    def _report(self, segment: Segment, ranges: list[ByteRange]) -> None:
        for start, stop in ranges:
            log.error(
                "history: the disk does not give offsets {first} to {last} in {name}: readers skip "
                "them as damaged, and they are tried again each minute; check the disk (dmesg)",
                first=start, last=stop - 1, name=segment.name,
            )  # fmt: skip

    def _forget(self, key: _EntryKey) -> None:
        """Note that the disk has given an entry."""
        if not self._failing and not self._lost and not self._unreadable:
            return
        number, entry = key
        with self._lock:
            self._note_readable(number, entry == _INDEX)
            lost = self._lost.pop(key, None)
            failing = self._failing.get(number)
            if failing is not None:
                failing.entries.discard(entry)
                if not failing.entries:
                    del self._failing[number]
        for start, stop in lost.ranges if lost is not None else ():
            self._damage.remove(start, stop)
            log.info(
                "history: the disk gives offsets {first} to {last} again",
                first=start,
                last=stop - 1,
            )


def _make_room(table: dict[Any, Any]) -> None:
    if len(table) >= _ENTRIES:
        del table[next(iter(table))]


def patiently(
    call: Callable[[], _Result], pause: Callable[[float], object] = time.sleep
) -> _Result:
    """Return the result of ``call``, which is called again while errors of the disk are new.

    For a process that may wait.
    """
    for _ in range(int(PATIENCE) + 1):
        try:
            return call()
        except OSError as error:
            if error.errno != errno.EIO:
                raise
        pause(1)
    return call()


def _read_around(
    segment: Segment, entry: IndexEntry, known: frozenset[int]
) -> tuple[bytes, frozenset[int]]:
    """Return the bytes of an entry with zeros for broken pages, and the numbers of these pages."""
    parts: list[bytes] = []
    broken: set[int] = set()
    failed = 0
    for page in range(entry.position // _PAGE, (entry.end - 1) // _PAGE + 1):
        start = max(page * _PAGE, entry.position)
        stop = min((page + 1) * _PAGE, entry.end)
        part = bytes(stop - start)
        if page in known or failed == _MOST:
            broken.add(page)
        else:
            try:
                part = segment.read(start, stop)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                failed += 1
                broken.add(page)
        parts.append(part)
        if len(part) < stop - start:
            break
    return b"".join(parts), frozenset(broken)
