"""The check of a log: every record, every index, the metadata, and missing segments.

It reads beside a broker that writes. A record at the end that is not complete is not damage.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pubsub.errors import NewerVersion, StartError
from pubsub.store.catalog.catalog import Catalog
from pubsub.store.reading.log_view import LogView
from pubsub.store.records.record import LOST, REWRITTEN, Found, Operation
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.segments.log_files import read_note
from pubsub.store.segments.segment import SEGMENT_HEAD_BYTES, Segment, index_name
from pubsub.store.segments.segment_index import MAX_COUNT, SegmentIndex
from pubsub.store.segments.segment_scan import add_damage, survey


@dataclass(slots=True)
class Added:
    """An entry that was added to an index in one step: a record, or bytes that are damaged."""

    base: int
    stop: int
    position: int
    first: int
    last: int
    topics: Mapping[str, tuple[int, int]]


class RecordingIndex(SegmentIndex):
    """An index that keeps the added entries."""

    def __init__(self, base: int) -> None:
        super().__init__(base, SEGMENT_HEAD_BYTES)
        self.added: list[Added] = []

    def add(
        self,
        base: int,
        stop: int,
        length: int,
        first: int,
        last: int,
        topics: Mapping[str, tuple[int, int]],
    ) -> None:
        """See ``SegmentIndex``."""
        self.added.append(Added(base, stop, self.end, first, last, dict(topics)))
        super().add(base, stop, length, first, last, topics)


@dataclass(slots=True)
class Inspected:
    """The contents of the records of a segment.

    ``damaged`` are ranges of offsets (start, stop), empty where a record without messages is
    damaged; ``lost`` are those that were lost before, as the log itself says. ``operations`` come
    with the base of their record, and ``unreadable`` has an error for each record whose operations
    are those of a later version. ``rest`` is the number of bytes behind the last record that are
    not zeros. ``last`` is the last record. ``rewritten`` records have lost their operations.
    """

    index: RecordingIndex
    damaged: list[tuple[int, int]] = field(default_factory=list)
    lost: list[tuple[int, int]] = field(default_factory=list)
    operations: list[tuple[int, list[Operation]]] = field(default_factory=list)
    unreadable: list[NewerVersion] = field(default_factory=list)
    messages: int = 0
    rest: int = 0
    last: Found | None = None
    rewritten: bool = False


def read_records(directory: LogDirectory, segment: Segment) -> Iterator[Found | tuple[int, int]]:
    """Yield the records of a segment, and ranges of offsets that are damaged. Raises OSError."""
    index = SegmentIndex(segment.base, SEGMENT_HEAD_BYTES)
    file = directory.open(segment.name, os.O_RDONLY)
    try:
        yield from survey(file, segment.head.salt, index)
    finally:
        os.close(file)
    if segment.sealed and index.stop < segment.stop:
        yield index.stop, segment.stop


def inspect(directory: LogDirectory, segment: Segment) -> Inspected:
    """Verify all records of a segment. Raises OSError."""
    found = Inspected(RecordingIndex(segment.base))
    file = directory.open(segment.name, os.O_RDONLY)
    try:
        for item in survey(file, segment.head.salt, found.index):
            if not isinstance(item, Found):
                found.damaged.append(item)
                continue
            found.last = item
            if item.head.flags & LOST:
                found.lost.append((item.head.base, item.head.stop))
            else:
                found.messages += item.head.count
            if item.head.epoch == REWRITTEN and item.head.count:
                found.rewritten = True
            if item.head.sizes[6]:
                try:
                    found.operations.append((item.head.base, item.operations()))
                except NewerVersion as error:
                    found.unreadable.append(error)
        size = os.fstat(file).st_size
        left = os.pread(file, size - found.index.end, found.index.end)
    finally:
        os.close(file)
    found.rest = len(left.rstrip(b"\0"))
    if segment.sealed and found.index.stop < segment.stop:
        found.damaged.append((found.index.stop, segment.stop))
        add_damage(found.index, segment.stop, max(size - found.index.end, 1))
    return found


def index_problem(directory: LogDirectory, segment: Segment, found: Inspected) -> str | None:
    """Return the fault of the index of a sealed segment; None if it is right."""
    name = index_name(segment.name)
    try:
        size = directory.size(name)
    except StartError:
        return f"{name} is not a regular file"
    if size is None:
        return f"{name} is missing"
    file = directory.open(name, os.O_RDONLY)
    try:
        index = SegmentIndex.decode(os.pread(file, size, 0), segment.head.salt)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return f"{name} cannot be read: {error.strerror}"
    finally:
        os.close(file)
    if index is None:
        return f"{name} is damaged"
    if index.stop != found.index.stop or not (found.damaged or _matches(index, found.index)):
        return f"{name} does not match its segment"
    return None


def _matches(index: SegmentIndex, made: RecordingIndex) -> bool:
    """Return whether an index matches its segment; entries may end at other records."""
    if (index.stop, index.end, index.records) != (made.stop, made.end, made.records):
        return False
    rest = iter(made.added)
    one = next(rest, None)
    for number in range(len(index)):
        entry = index.entry(number)
        if one is None or (one.position, one.base) != (entry.position, entry.base):
            return False
        contents: dict[str, tuple[int, int]] = {}
        while one is not None and one.position < entry.end:
            for topic, (count, nbytes) in one.topics.items():
                before = contents.get(topic, (0, 0))
                contents[topic] = (before[0] + count, before[1] + nbytes)
            if one.topics and not entry.first <= one.first <= one.last <= entry.last:
                return False
            one = next(rest, None)
        counted = {name: (min(count, MAX_COUNT), size) for name, (count, size) in contents.items()}
        if counted != index.contents(number):
            return False
    return one is None


class LogCheck:
    """The check of the log at ``path``, without ``indexes`` only of what cannot be made again.

    Raises as ``LogView``.
    """

    def __init__(self, path: Path, *, indexes: bool = True) -> None:
        self._view = LogView(path, strict=False)
        self._indexes = indexes
        self.segments = self.records = self.messages = 0
        self.lost: list[tuple[int, int]] = []
        """Ranges of offsets that were lost before, which the log says itself."""

    def close(self) -> None:
        """Close the files."""
        self._view.close()

    @property
    def catalog(self) -> Catalog:
        """The segments, as of the last look."""
        return self._view.catalog

    def problems(self) -> Iterator[str]:
        """Yield the faults, one line each."""
        view = self._view
        for text in view.metadata.problems():
            yield f"metadata.db: {text}"
        for segment in view.refresh().segments:
            try:
                yield from self._segment(segment)
            except FileNotFoundError:
                # If it was not removed by the broker, its offsets are missing below.
                continue
        yield from self._missing()
        for name, reason in sorted(view.unusable.items()):
            yield f"{name} cannot be read: {reason}"

    def _segment(self, segment: Segment) -> Iterator[str]:
        view, name = self._view, segment.name
        sealed = segment.sealed
        self.segments += 1
        try:
            if _read_start(view.directory, segment) != segment.head.encode():
                yield f"{name}: the head of the segment is damaged"
            found = inspect(view.directory, segment)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            yield from self._unreadable(segment)
            return
        self.records += found.index.records
        self.messages += found.messages
        self.lost += found.lost
        for start, stop in found.damaged:
            yield f"{name}: {describe_range(start, stop)}"
        yield from (f"{name}: {error}" for error in found.unreadable)
        if not sealed:
            return
        if found.rest:
            yield f"{name}: {found.rest} bytes behind the last record are not a record"
        row = view.rows.get(segment.place)
        size = view.directory.size(name)
        if row is None:
            # The broker writes the index before the row.
            return
        if size is not None and row.size != size:
            yield f"{name} has {size} bytes, and had {row.size} when it was complete"
        problem = index_problem(view.directory, segment, found) if self._indexes else None
        if problem is not None and view.directory.size(name) is not None:
            yield problem

    def _unreadable(self, segment: Segment) -> Iterator[str]:
        """Yield a line for each range of a segment that the disk does not give."""
        try:
            index = segment.index_or_damage()
        except OSError as error:
            yield f"{segment.name}: the disk gives neither the segment nor its index ({error})"
            return
        for number in range(len(index)):
            entry = index.entry(number)
            for item in self.catalog.read_errors.records_at_once(segment, entry):
                if isinstance(item, Found):
                    self.records += 1
                    self.messages += item.head.count
                else:
                    start, stop = item
                    yield (
                        f"{segment.name}: the disk does not give offsets {start} to {stop - 1} "
                        "(Input/output error)"
                    )

    def _missing(self) -> Iterator[str]:
        view = self._view
        note = read_note(view.directory, view.state.log_id)
        catalog = view.refresh()
        at = catalog.low
        for segment in catalog.segments:
            if segment.base > at:
                yield f"offsets {at} to {segment.base - 1} are missing: there is no segment of them"
            at = max(at, segment.stop)
        stop = max(catalog.stop, note)
        if stop > at:
            yield f"offsets {at} to {stop - 1} were written and are missing"


def _read_start(directory: LogDirectory, segment: Segment) -> bytes:
    file = directory.open(segment.name, os.O_RDONLY)
    try:
        return os.pread(file, SEGMENT_HEAD_BYTES, 0)
    finally:
        os.close(file)


def describe_range(start: int, stop: int) -> str:
    """Return the damage; the range is empty for a record without messages."""
    if stop > start:
        return f"offsets {start} to {stop - 1} are damaged"
    return f"a record of metadata at offset {start} is damaged"
