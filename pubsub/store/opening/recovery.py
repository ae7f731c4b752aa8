"""Opening a log: finds its files, its end, and offsets that are missing.

A log that was closed ends at its recorded end. If the process was killed, all written data is
intact, and the log continues after it. If the machine lost power, messages that were written and
not synced may be lost although readers have seen them; the log continues at the ceiling, and the
offsets in between are reported as lost.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from twisted.logger import Logger

from pubsub.errors import StartError
from pubsub.store.catalog.catalog import Catalog
from pubsub.store.catalog.damage import Damage
from pubsub.store.disk_remedies import history_command, is_damage, is_locked
from pubsub.store.metadata.metadata import BUSY_SECONDS, LogPlace, LogState, Metadata, SealedSegment
from pubsub.store.opening.segment_scanner import Scanned, SegmentScanner
from pubsub.store.records.record import HEAD_BYTES, Begin, Operation
from pubsub.store.segments.log_directory import METADATA, POSITION, LogDirectory
from pubsub.store.segments.log_files import SALT_BYTES, read_note
from pubsub.store.segments.segment import (
    CUT_COPY,
    SEGMENT_HEAD_BYTES,
    NotASegment,
    Segment,
    SegmentHead,
    cut_copies,
    index_name,
    parse_name,
    read_head,
)
from pubsub.store.segments.segment_scan import is_sealed

log = Logger()
# The ceiling of a log whose newest segment is missing is not known; none is further ahead.
_FAR_AHEAD = 2**28
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(slots=True)
class Recovered:
    """A log that can be continued at ``offset``, with files numbered from ``sequence`` on.

    ``lost`` is the range of offsets before ``offset`` whose messages are missing, if there are any.
    """

    catalog: Catalog
    metadata: Metadata
    offset: int = 0
    sequence: int = 0
    lost: tuple[int, int] | None = None
    clean: bool = True
    operations: list[tuple[int, Sequence[Operation]]] = field(default_factory=list)


def boot_id() -> bytes:
    """Return an id of the time since the machine was started; random if it is not known."""
    try:
        return UUID(_BOOT_ID.read_text().strip()).bytes
    except (OSError, ValueError):
        return secrets.token_bytes(16)


def recover(directory: LogDirectory) -> Recovered:
    """Open the log, or create it in an empty directory. Raises StartError or OSError."""
    directory.remove_leftovers()
    names = directory.segments()
    metadata = _open_metadata(directory, names)
    try:
        return _Recovery(directory, metadata, names).run()
    except BaseException:
        metadata.close()
        raise


def _open_metadata(directory: LogDirectory, names: Sequence[str]) -> Metadata:
    path = directory.path / METADATA
    size = directory.size(METADATA)
    if not size and (names or directory.size(POSITION)):
        raise StartError(
            f"history: {path} is {'missing' if size is None else 'empty'}, and {directory.path} "
            "has a history: restore the file from a backup, or rebuild it from the segments "
            f"with {history_command('repair', directory.path)}"
        )
    if size is None:
        return Metadata.create(path, secrets.token_bytes(SALT_BYTES))
    # SQLite would not say why it cannot open the file.
    directory.require_access(METADATA)
    _report_lock(path)
    try:
        metadata = Metadata(path)
        newest = metadata.state().newest
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        raise StartError(
            f"history: cannot use {path}: {error}; restore it from a backup, or rebuild it "
            f"from the segments with {history_command('repair', directory.path)}"
        ) from None
    if not names and newest[1] > 0:
        metadata.close()
        raise StartError(
            f"history: {directory.path} has no segments, though {METADATA} lists some: restore "
            "them from a backup, or move the directory away to begin a new history"
        )
    return metadata


def _report_lock(path: Path) -> None:
    """Log that the start waits, if another program has locked the metadata."""
    address = f"{path.absolute().as_uri()}?mode=rw"
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=0)) as probe:
            probe.execute("BEGIN IMMEDIATE")
    except sqlite3.Error as error:
        # Other errors are those of the start, too.
        if is_locked(error):
            log.warn(
                "history: {path} is locked by another program; the start waits for up to "
                "{seconds:g} s", path=str(path), seconds=BUSY_SECONDS,
            )  # fmt: skip


class _Recovery:
    def __init__(self, directory: LogDirectory, metadata: Metadata, names: Sequence[str]) -> None:
        self._directory = directory
        self._metadata = metadata
        self._state: LogState = metadata.state()
        self._names = names
        self._rows = {(row.base, row.sequence): row for row in metadata.segments()}
        self._unsealed: list[Segment] = []
        self._replaced: set[tuple[int, int]] = set()
        self._damage = Damage()
        self._scanner = SegmentScanner(directory, self._state.applied, self._damage)

    def run(self) -> Recovered:
        segments = self._without_leftovers(
            [one for name in self._names if (one := self._open(name))]
        )
        first = self._state.first
        catalog = Catalog(tuple(segments), low=first, damage=self._damage, is_written=True)
        scanned = self._scan_all(segments)
        self._report_holes(segments)
        end = segments[-1].stop if segments else self._state.stop
        clean = scanned[-1].is_whole if scanned else not self._rows
        # Files that cannot be used keep their names.
        sequence = (
            max([self._state.newest[1], *[key[1] for key in map(parse_name, self._names) if key]])
            + 1
        )
        recovered = Recovered(catalog, self._metadata, end, sequence, clean=clean)
        self._find_end(recovered, scanned, segments)
        sealed = [
            self._scanner.complete(one, recovered.offset) for one in scanned
            # Changes since it was complete are kept.
            if one is scanned[-1] or one.segment.place not in self._rows
        ]  # fmt: skip
        self._apply(recovered, sealed)
        self._list_rewritten(segments, scanned)
        return recovered

    # The files

    def _open(self, name: str) -> Segment | None:
        """Return the segment; None if it cannot be used, which is reported."""
        directory, state = self._directory, self._state
        size = directory.size(name)
        key = parse_name(name)
        if key is None:
            raise StartError(
                f"history: {directory.path / name} is not the name of a segment: move it away, or "
                f"give it its name with {history_command('repair', directory.path)}"
            )
        row = self._rows.get(key)
        if row is not None and row.size == size:
            head = SegmentHead(row.base, row.sequence, row.salt, state.log_id, row.created)
            return Segment(directory.file, head, row.stop, last_timestamp=row.last)
        file = directory.open(name, os.O_RDONLY)
        try:
            head = read_head(file)
            if head.log_id != state.log_id:
                raise StartError(
                    f"history: {directory.path / name} belongs to another history: move it away"
                )
            if (head.base, head.sequence) != key:
                raise NotASegment("its name is that of another segment")
            stop = is_sealed(file, size or 0, head.salt)
        except NotASegment as error:
            if (size or 0) <= SEGMENT_HEAD_BYTES:
                # A crash interrupted its creation.
                directory.remove(name)
                return None
            _report_unusable(name, str(error))
            return None
        finally:
            os.close(file)
        segment = Segment(directory.file, head, head.base if stop is None else stop)
        if row is not None:
            log.error("history: {name} has changed since it was written", name=name)
        if stop is None:
            self._unsealed.append(segment)
        return segment

    def _is_applied(self, segment: Segment) -> bool:
        """Return whether all operations of a segment were applied."""
        return LogPlace(*segment.place, 2**62) <= self._state.applied

    def _without_leftovers(self, segments: list[Segment]) -> list[Segment]:
        """Remove segments that were rewritten, and return the others in order."""
        for cut in cut_copies(segments, self._unsealed):
            _report_unusable(cut.name, CUT_COPY)
            segments.remove(cut)
            self._unsealed.remove(cut)
            self._replaced.add(cut.place)
        # At one offset the newest comes first, so that a segment comes behind those that hold it.
        segments.sort(key=lambda one: (one.base, -one.head.sequence))
        kept: list[Segment] = []
        holding: list[Segment] = []
        for one in segments:
            holding = [other for other in holding if other.stop > one.base]
            rewritten = any(
                other.head.sequence > one.head.sequence and one.stop <= other.stop
                for other in holding
            )
            if rewritten and self._is_applied(one):
                self._directory.remove(one.name)
                self._directory.remove(index_name(one.name))
                self._replaced.add(one.place)
                # Also one that was cut: it would hide messages of the segment that has replaced it.
                self._unsealed = [other for other in self._unsealed if other is not one]
                continue
            kept.append(one)
            # One that is not sealed has no end yet, and holds no other.
            holding.append(one)
        return sorted(kept, key=lambda one: one.place)

    def _report_holes(self, segments: Sequence[Segment]) -> None:
        at = self._state.first
        for segment in segments:
            if segment.base > at:
                self._report_lost(at, segment.base)
            at = max(at, segment.stop)

    # The end

    def _scan_all(self, segments: Sequence[Segment]) -> list[Scanned]:
        """Scan records written since operations were last applied, and the newest segment."""
        found = []
        for segment in segments:
            newest = segment is segments[-1]
            if newest or segment in self._unsealed or not self._is_applied(segment):
                found.append(self._scanner.scan(segment))
        return found

    def _find_end(
        self, recovered: Recovered, scanned: Sequence[Scanned], segments: Sequence[Segment]
    ) -> None:
        """Set the offset at which the log continues, and the lost range before it."""
        end, state = recovered.offset, self._state
        continues = max(end, state.stop, read_note(self._directory, state.log_id))
        if not recovered.clean and not self._same_boot():
            continues = max([continues, state.ceiling, *[one.ceiling for one in scanned]])
        if self._misses_end(scanned, segments):
            continues = max(continues, state.ceiling + _FAR_AHEAD)
        if continues > end:
            recovered.lost = (end, continues)
            recovered.offset = continues
            self._report_lost(end, continues)

    def _misses_end(self, scanned: Sequence[Scanned], segments: Sequence[Segment]) -> bool:
        """Return whether a record that was on disk is missing at the end of the log."""
        newest = self._state.newest
        if newest[1] == 0 or (segments and segments[-1].base > newest[0]):
            return False
        for one in scanned:
            if one.segment.place == newest:
                return one.index.end <= self._state.applied.position
        return not segments or segments[-1].head.sequence < newest[1]

    def _same_boot(self) -> bool:
        boots = [row.boot for row in self._metadata.epochs()[-1:]]
        boots += [
            one.boot
            for _, listed in self._scanner.operations
            for one in listed
            if isinstance(one, Begin)
        ]
        return not boots or boots[-1] == boot_id()

    def _apply(self, recovered: Recovered, sealed: Sequence[SealedSegment]) -> None:
        """Bring the metadata up to date with the log."""
        if not sealed:
            return
        newest = sealed[-1]
        # The place of the last record.
        place = LogPlace(newest.base, newest.sequence, newest.size - HEAD_BYTES)
        offset = recovered.offset
        self._metadata.apply(self._scanner.operations, place, offset, offset, sealed)
        recovered.catalog.ended = self._metadata.ended()

    def _list_rewritten(self, segments: Sequence[Segment], scanned: Sequence[Scanned]) -> None:
        """List segments that were rewritten before a crash, instead of those that they replaced.

        A copy of the log refuses a rewritten segment that is not listed.
        """
        known = self._rows.keys() | {one.segment.place for one in scanned}
        added = [self._row_of(one) for one in segments if one.place not in known]
        removed = self._replaced & self._rows.keys()
        if added or removed:
            self._metadata.replace_segments(removed, added, self._state.first)

    def _row_of(self, one: Segment) -> SealedSegment:
        size = self._directory.size(one.name) or 0
        return SealedSegment(
            *one.place, one.stop, size, one.head.salt, one.head.created, one.last_timestamp
        )

    def _report_lost(self, start: int, stop: int) -> None:
        self._damage.note(start, stop)
        log.error(
            "history: offsets {first} to {last} were committed and are missing",
            first=start,
            last=stop - 1,
        )


def _report_unusable(name: str, reason: str) -> None:
    log.error("history: {name} cannot be read: {reason}", name=name, reason=reason)
