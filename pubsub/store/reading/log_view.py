"""A log that this process only reads, while a broker writes it or not.

Nothing is locked or changed. ``refresh`` follows the broker's changes of the files. A
record at the end of the newest segment that is not complete is still being written, or was when the
broker ended; it is not shown, and it is not damage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TypeVar

from pubsub.broker.access_rules.access import RESERVED
from pubsub.errors import NewerVersion, StartError
from pubsub.settings import matcher
from pubsub.store.catalog.catalog import Catalog, Horizon
from pubsub.store.catalog.read_errors import patiently
from pubsub.store.disk_remedies import history_command
from pubsub.store.metadata.metadata import Epoch, LogPlace, LogState, Metadata, SealedSegment
from pubsub.store.reading.log_reader import read_parcel
from pubsub.store.records.parcel import Parcel
from pubsub.store.records.record import SEALED, Begin, End, Found, Operation
from pubsub.store.segments.log_directory import METADATA, LogDirectory
from pubsub.store.segments.segment import (
    CUT_COPY,
    SEGMENT_HEAD_BYTES,
    NotASegment,
    Segment,
    SegmentHead,
    cut_copies,
    parse_name,
    read_head,
)
from pubsub.store.segments.segment_index import SegmentIndex
from pubsub.store.segments.segment_scan import is_sealed, survey

# The segments change while they are listed, at most this many times in a row.
_ATTEMPTS = 10
# Payload bytes of a parcel.
_READ_BYTES = 4 * 1024**2
_Result = TypeVar("_Result")


class LogView:
    """The log in the directory ``path``. Not for several threads.

    Raises OSError, sqlite3.Error, or StartError if the directory is not that of a log; and
    NewerVersion if ``strict`` and a record has operations that this version does not know.
    """

    def __init__(self, path: Path, strict: bool = True) -> None:
        self._strict = strict
        self.directory = LogDirectory(path)
        try:
            self.metadata = open_metadata(self.directory)
            try:
                self._log_id = self.metadata.state().log_id
                self._catalog = Catalog()
                self._files: dict[str, _SegmentFile] = {}
                self.unusable: dict[str, str] = {}
                """The reasons why files cannot be used, by name."""
                self._version = -1
                # Changes in the records that the metadata may not have yet.
                self._ended: dict[str, int] = {}
                self._begun: dict[int, Epoch] = {}
                self.refresh()
            except BaseException:
                self.metadata.close()
                raise
        except BaseException:
            self.directory.close()
            raise

    def close(self) -> None:
        """Close the files."""
        self.metadata.close()
        self.directory.close()

    # Reading

    def read(self, call: Callable[[Catalog], _Result], refresh: bool = True) -> _Result:
        """Return the result of ``call``, which is called again if a segment is removed meanwhile.

        Without ``refresh`` it reads the files of the last refresh.
        """
        if refresh:
            self.refresh()
        for _ in range(_ATTEMPTS):
            try:
                return patiently(lambda: call(self._catalog))
            except FileNotFoundError:
                self.refresh()
        return call(self._catalog)

    def parcels(self, start: int, stop: int, topics: frozenset[str] | None) -> Iterator[Parcel]:
        """Yield the messages of ``topics`` from ``start`` to before ``stop``, in order.

        None for the topics means all but the broker's own, which begin with RESERVED. Yields less
        if the log ends before ``stop``.
        """
        while start < stop:
            read = partial(
                read_parcel, start=start, stop=stop, topics=topics, max_bytes=_READ_BYTES
            )
            parcel = self.read(read, refresh=False)
            if parcel.stop <= start:
                return
            if topics is None:
                parcel = parcel.of(lambda name: not name.startswith(RESERVED))
            yield parcel
            start = parcel.stop

    @property
    def catalog(self) -> Catalog:
        """The segments, as of the last refresh."""
        return self._catalog

    @property
    def epochs(self) -> list[tuple[str, int]]:
        """The name and first offset of each epoch, as of the last refresh."""
        return [(one.name, one.begins) for _, one in sorted(self._epochs.items())]

    def segment_bounds(self, start: int, stop: int) -> list[int]:
        """Return the offsets between ``start`` and ``stop`` at which segments begin."""
        return [one.base for one in self._catalog.segments if start < one.base < stop]

    # Following the broker

    def refresh(self) -> Catalog:
        """Read the broker's changes, and return the catalog."""
        self.directory.check()
        for attempt in range(_ATTEMPTS):
            version = self.metadata.version()
            if version != self._version:
                self._read_metadata()
            try:
                segments = self._list()
            except FileNotFoundError:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            # A segment is removed from the metadata before its file is.
            if self.metadata.version() == version:
                self._version = version
                break
        self._show(segments)
        return self._catalog

    def _read_metadata(self) -> None:
        metadata = self.metadata
        self.state: LogState = metadata.state()
        self.rows = {(row.base, row.sequence): row for row in metadata.segments()}
        self._epochs = {one.number: one for one in metadata.epochs()}
        self._known_ended = metadata.ended()
        known = metadata.horizons()
        if list(known) != [one.pattern for one in self._catalog.horizons]:
            horizons = [Horizon(pattern, matcher([pattern])) for pattern in known]
            self._catalog = Catalog(horizons=horizons)
        for one in self._catalog.horizons:
            one.offset = known[one.pattern]

    def _list(self) -> list[Segment]:
        """Return the segments in order; raises FileNotFoundError if one is removed meanwhile."""
        names = self.directory.segments()
        for name in self._files.keys() - set(names):
            del self._files[name]
        for name in names:
            if name not in self._files and name not in self.unusable:
                self._open(name)
        for one in self._files.values():
            if not one.segment.sealed:
                self._note(one.follow())
        segments = [one.segment for one in self._files.values()]
        for cut in cut_copies(segments, [one for one in segments if not one.sealed]):
            self.unusable[cut.name] = CUT_COPY
            del self._files[cut.name]
            segments.remove(cut)
        return without_replaced(segments)

    def _open(self, name: str) -> None:
        try:
            found = open_segment(self.directory, name, self._log_id, self.rows)
        except (NotASegment, StartError) as error:
            # One that is being created is looked at again.
            if isinstance(error, StartError) or self.directory.size(name) != 0:
                self.unusable[name] = str(error)
            return
        self._files[name] = found
        head = found.segment.head
        place = LogPlace(head.base, head.sequence, 2**62)
        if found.segment.sealed and place > self.state.applied:
            self._note(found.survey())

    def _note(self, items: Iterable[Found]) -> None:
        """Note the operations of records, of which the metadata may have no copy yet."""
        for item in items:
            for one in self._operations(item):
                if isinstance(one, End):
                    self._ended[one.topic] = one.offset
                elif isinstance(one, Begin):
                    self._begun[one.number] = Epoch(
                        one.number, item.head.base, one.opened, one.mark, one.boot
                    )

    def _operations(self, item: Found) -> list[Operation]:
        try:
            return item.operations()
        except NewerVersion:
            if self._strict:
                raise
            return []

    def _show(self, segments: list[Segment]) -> None:
        catalog, state = self._catalog, self.state
        for one, following in pairwise(segments):
            if not one.sealed:
                # It was not ended properly; the segment after it shows where it ends.
                one.seal()
                one.limit(following.base)
                one.release()
        catalog.low = state.first
        self._ended = {name: at for name, at in self._ended.items() if at > state.first}
        catalog.ended = self._known_ended | self._ended
        if segments != list(catalog.segments):
            catalog.segments = tuple(segments)
        is_missing = state.newest[1] > 0 and state.newest[0] > max(
            [one.base for one in segments], default=-1
        )
        catalog.end = state.stop if is_missing else 0
        # An epoch may be lost with the power until it has messages: these are written when the
        # record that begins it is on disk.
        self._epochs |= {
            number: one for number, one in self._begun.items() if one.begins < catalog.stop
        }


class _SegmentFile:
    """A segment, and how far it has been read if it grows."""

    def __init__(self, directory: LogDirectory, segment: Segment, index: SegmentIndex) -> None:
        self.segment = segment
        self._directory = directory
        self._index = index

    def follow(self) -> Iterator[Found]:
        """Yield the records that were added."""
        for item in self._survey(self._index):
            if item.head.flags & SEALED:
                self.segment.seal()
            yield item

    def survey(self) -> Iterator[Found]:
        """Yield all records."""
        return self._survey(SegmentIndex(self.segment.base, SEGMENT_HEAD_BYTES))

    def _survey(self, index: SegmentIndex) -> Iterator[Found]:
        file = self._directory.open(self.segment.name, os.O_RDONLY)
        try:
            for item in survey(file, self.segment.head.salt, index):
                if isinstance(item, Found):
                    yield item
        finally:
            os.close(file)


def open_metadata(directory: LogDirectory, repair: bool = False) -> Metadata:
    """Open the metadata to read them, or for a repair; raises StartError if they are missing."""
    path = directory.path / METADATA
    if not directory.size(METADATA):
        raise StartError(
            f"history: {path} is missing or empty: restore it from a backup, or rebuild it from "
            f"the segments with {history_command('repair', directory.path)}"
        )
    # SQLite would not say why it cannot open the file.
    directory.require_access(METADATA, os.R_OK | (os.W_OK if repair else 0))
    return Metadata(path, read_only=not repair, damaged=repair)


def open_segment(
    directory: LogDirectory,
    name: str,
    log_id: bytes,
    rows: dict[tuple[int, int], SealedSegment],
) -> _SegmentFile:
    """Return the segment ``name``; one with a row of its size is not opened to be looked at.

    Raises OSError, NotASegment, or StartError if it is no file of this log.
    """
    size = directory.size(name)
    key = parse_name(name)
    if key is None:
        raise NotASegment("its name is not that of a segment")
    row = rows.get(key)
    if row is not None and row.size == size:
        head = SegmentHead(row.base, row.sequence, row.salt, log_id, row.created)
        segment = Segment(directory.file, head, row.stop, last_timestamp=row.last)
        return _SegmentFile(directory, segment, SegmentIndex(row.base, SEGMENT_HEAD_BYTES))
    file = directory.open(name, os.O_RDONLY)
    try:
        head = read_head(file)
        stop = is_sealed(file, os.fstat(file).st_size, head.salt)
    finally:
        os.close(file)
    if head.log_id != log_id:
        raise NotASegment("it belongs to another history")
    if (head.base, head.sequence) != key:
        raise NotASegment("its name is that of another segment")
    index = SegmentIndex(head.base, SEGMENT_HEAD_BYTES)
    if stop is None:
        return _SegmentFile(directory, Segment(directory.file, head, head.base, index), index)
    return _SegmentFile(directory, Segment(directory.file, head, stop), index)


def without_replaced(segments: Iterable[Segment]) -> list[Segment]:
    """Return segments in order, without those whose offsets a newer one has as well."""
    kept: list[Segment] = []
    for one in sorted(segments, key=lambda each: each.place):
        while kept and _replaces(one, kept[-1]):
            kept.pop()
        if not (kept and _replaces(kept[-1], one)):
            kept.append(one)
    return kept


def _replaces(newer: Segment, older: Segment) -> bool:
    return (
        newer.head.sequence > older.head.sequence
        and newer.sealed
        and newer.base <= older.base < newer.stop
        and older.stop <= newer.stop
    )
