"""Repair of a log: rebuilds its files from the segments, and reports losses. No readable data is
removed. Files that cannot be used get another name.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from pubsub.errors import NewerVersion, StartError
from pubsub.store.disk_remedies import history_command, is_damage
from pubsub.store.maintenance.log_check import Inspected, describe_range, index_problem, inspect
from pubsub.store.maintenance.repaired_files import RepairedFiles
from pubsub.store.metadata.metadata import Epoch, LogPlace, LogState, Metadata, SealedSegment
from pubsub.store.reading.log_view import open_metadata, open_segment, without_replaced
from pubsub.store.segments.log_directory import METADATA, LogDirectory
from pubsub.store.segments.log_files import read_note, write_index
from pubsub.store.segments.segment import CUT_COPY, NotASegment, Segment, cut_copies, index_name

# The name of new metadata until they are complete.
_MADE = METADATA + ".made"


@dataclass(slots=True)
class _Saved:
    """The part of damaged metadata that could be read."""

    items: list[tuple[str, str, bytes]] = field(default_factory=list)
    ended: dict[str, int] = field(default_factory=dict)
    horizons: dict[str, int] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)
    segments: list[SealedSegment] = field(default_factory=list)

    def read(self, metadata: Metadata) -> None:
        """Read as much as is possible."""
        self.items = metadata.readable("metadata")
        self.ended = dict(metadata.readable("ended"))
        self.horizons = {pattern: offset for _, pattern, offset in metadata.readable("horizons")}
        self.epochs = [Epoch(*row) for row in metadata.readable("epochs")]
        self.segments = [SealedSegment(*row) for row in metadata.readable("segments")]


class LogRepair:
    """Repairs the log at ``path``, which no broker may use meanwhile.

    ``report`` is called with each thing that was done or is lost. Raises OSError, sqlite3.Error or
    StartError.
    """

    def __init__(self, path: Path, report: Callable[[str], None]) -> None:
        self._report = report
        self._saved = _Saved()
        # The reason why the metadata cannot be used.
        self._reason: str | None = None
        self._directory = LogDirectory(path)
        self._files = RepairedFiles(self._directory, report)
        try:
            if not self._directory.segments() and self._directory.size(METADATA) is None:
                # A lock would make a directory that is not empty of one that is.
                raise self._nothing()
            self._directory.lock("stop it first")
        except BaseException:
            self._directory.close()
            raise

    def close(self) -> None:
        """Give the files to the broker's user, and back the lock."""
        try:
            self._directory.give_to_owner()
        finally:
            self._directory.close()

    def run(self) -> None:
        """Repair the log."""
        self._files.read_heads()
        self._files.correct_names()
        log_ids = Counter(head.log_id for head in self._files.heads.values())
        metadata = self._usable_metadata(log_ids)
        try:
            if metadata is not None:
                log_id = metadata.state().log_id
            elif log_ids:
                ((log_id, _),) = log_ids.most_common(1)
            else:
                raise self._nothing()
            rows = self._saved.segments if metadata is None else metadata.segments()
            self._files.restore_heads({(row.base, row.sequence): row for row in rows}, log_id)
            segments = self._segments(log_id)
            if metadata is None and not segments:
                raise self._nothing()
            found = [self._inspect(segment) for segment in segments]
            for error in (error for one in found for error in one.unreadable):
                # Metadata that were made without the operations would lack changes.
                raise error
            is_made = metadata is None
            if metadata is None:
                metadata = self._make_metadata(log_id, segments, found)
            self._correct_rows(metadata, segments, found)
            self._report_holes(metadata.state(), segments, found)
        finally:
            if metadata is not None:
                metadata.close()
        if is_made:
            self._replace_metadata(_have_all(segments, found))
        self._directory.sync()

    def _nothing(self) -> StartError:
        return StartError(
            f"history: {self._directory.path} has neither segments nor metadata that can be read, "
            "so there is nothing to repair"
        )

    # Segments

    def _segments(self, log_id: bytes) -> list[Segment]:
        found: list[Segment] = []
        for name in self._files.heads:
            try:
                found.append(open_segment(self._directory, name, log_id, {}).segment)
            except NotASegment as error:
                self._files.put_aside(name, str(error))
        for cut in cut_copies(found, [one for one in found if not one.sealed]):
            self._files.put_aside(cut.name, CUT_COPY)
            found.remove(cut)
        segments = without_replaced(found)
        for one, following in pairwise(segments):
            if not one.sealed:
                one.seal()
                one.limit(following.base)
                one.release()
        return segments

    def _inspect(self, segment: Segment) -> Inspected:
        """Verify a segment, and make its index again if that is wrong."""
        try:
            found = inspect(self._directory, segment)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            # What is written now would stay when the disk gives the records again.
            raise StartError(
                f"history: the disk does not give all of {segment.name} ({error.strerror}), so the "
                "history is not repaired: check the disk (dmesg), make a copy on another disk with "
                f"{history_command('backup PATH', self._directory.path)}, and repair that"
            ) from None
        for start, stop in found.damaged:
            self._report(f"{segment.name}: {describe_range(start, stop)} and are lost")
        self._cut(segment, found)
        if segment.sealed:
            self._files.put_aside_irregular(index_name(segment.name))
            problem = index_problem(self._directory, segment, found)
            if problem is not None:
                write_index(self._directory, segment, found.index)
                self._report(f"{problem}; it was made again")
        return found

    def _cut(self, segment: Segment, found: Inspected) -> None:
        """Remove what is behind the end of a segment, and is no record."""
        last = found.last
        if not found.rest or last is None or not segment.sealed or last.head.stop < segment.stop:
            # Messages of a segment that is not complete may be there.
            return
        file = self._directory.open(segment.name, os.O_WRONLY)
        try:
            os.ftruncate(file, last.position + last.head.length)
            os.fdatasync(file)
        finally:
            os.close(file)
        self._report(
            f"{segment.name}: {found.rest} bytes behind the last record were not a record, and "
            "were removed"
        )

    # Metadata

    def _usable_metadata(self, log_ids: Counter[bytes]) -> Metadata | None:
        """Return the metadata, unless they are damaged or those of another history."""
        for ending in ("-wal", "-shm"):
            # SQLite would not open the file.
            self._files.put_aside_irregular(METADATA + ending)
        try:
            size = self._directory.size(METADATA)
            if size is None:
                self._report(f"{METADATA} is missing")
                return None
            if not size:
                self._reason = "it is empty"
                return None
            metadata = open_metadata(self._directory, repair=True)
        except NewerVersion:
            raise
        except StartError:
            # Its text advises this repair.
            self._reason = "it is not the metadata of a history"
            return None
        except sqlite3.Error as error:
            if not is_damage(error):
                raise
            self._reason = str(error)
            return None
        try:
            problems = metadata.problems()
        except sqlite3.Error as error:
            if not is_damage(error):
                metadata.close()
                raise
            problems = [str(error)]
        if problems:
            self._reason = problems[0]
            self._saved.read(metadata)
        elif not log_ids or metadata.state().log_id in log_ids:
            return metadata
        else:
            self._reason = "it belongs to another history"
        metadata.close()
        return None

    def _replace_metadata(self, is_complete: bool) -> None:
        """Put the new metadata in their place, in one step, and the old ones aside.

        What could be read of these is in no other file, so that they stay until then.
        """
        if self._reason is not None:
            self._files.put_aside(METADATA, self._reason, stays=True)
        for ending in ("-wal", "-shm"):
            # Another file with the name would take them for its own.
            if os.path.lexists(self._directory.path / (METADATA + ending)):
                self._files.put_aside(METADATA + ending, f"{METADATA} is another file now")
        self._directory.rename(_MADE, METADATA)
        if is_complete:
            self._report(f"{METADATA} was made again from the segments, which have all of it")
            return
        self._report(
            f"{METADATA} was made again from the segments; topics, queue keys, identities of nsd "
            "and positions of readers whose records have expired or were rewritten are lost, "
            "unless they could be read from the old file: restore a backup of the file if there "
            "is one; otherwise set queue keys again before clients connect, as topics without "
            "one are open, and let readers without a position begin at an offset of your choice"
        )

    def _make_metadata(
        self, log_id: bytes, segments: Sequence[Segment], found: Sequence[Inspected]
    ) -> Metadata:
        """Make the metadata again, from its readable rows and from the segments."""
        for ending in ("", "-wal", "-shm"):
            # Those of a repair that was interrupted.
            self._directory.remove(_MADE + ending)
        metadata = Metadata.create(self._directory.path / _MADE, log_id, segments[0].base)
        saved = self._saved
        metadata.import_rows(saved.items, saved.epochs, saved.ended, saved.horizons)
        changes = [pair for one in found for pair in one.operations]
        newest, last = segments[-1], found[-1].last
        position = 0 if last is None else last.position
        place = LogPlace(newest.base, newest.head.sequence, position)
        stop = found[-1].index.stop
        metadata.apply(changes, place, stop, stop if last is None else max(last.head.ceiling, stop))
        if not metadata.epochs():
            # Of a boot that is not this one, so that no offset is assigned again.
            epoch = Epoch(last.head.epoch if last else 1, newest.base, 0, 0, bytes(16))
            metadata.import_rows(epochs=[epoch])
        return metadata

    def _correct_rows(
        self, metadata: Metadata, segments: Sequence[Segment], found: Sequence[Inspected]
    ) -> None:
        """Let the metadata list the segments that there are."""
        rows = {
            (row.base, row.sequence): row
            for row in self._rows_of(zip(segments, found, strict=True))
        }
        known = {(row.base, row.sequence): row for row in metadata.segments()}
        if rows != known:
            metadata.replace_segments(
                known.keys() - rows.keys(), rows.values(), metadata.state().first
            )

    def _rows_of(self, given: Iterable[tuple[Segment, Inspected]]) -> list[SealedSegment]:
        rows = []
        for segment, found in given:
            size = self._directory.size(segment.name)
            if segment.sealed and size is not None:
                head = segment.head
                rows.append(
                    SealedSegment(
                        head.base, head.sequence, segment.stop, size, head.salt, head.created,
                        found.index.last_timestamp,
                    )
                )  # fmt: skip
        return rows

    def _report_holes(
        self, state: LogState, segments: Sequence[Segment], found: Sequence[Inspected]
    ) -> None:
        at = state.first
        for segment, inspected in zip(segments, found, strict=True):
            if segment.base > at:
                self._report(f"offsets {at} to {segment.base - 1} are lost: no segment has them")
            at = max(at, inspected.index.stop)
        stop = max(state.stop, read_note(self._directory, state.log_id))
        if stop > at:
            self._report(f"offsets {at} to {stop - 1} are lost: they were written and are missing")


def _have_all(segments: Sequence[Segment], found: Sequence[Inspected]) -> bool:
    """Return whether the segments have all operations of the log."""
    numbers = [one.head.sequence for one in segments]
    return numbers == list(range(1, len(numbers) + 1)) and not any(
        one.rewritten or one.damaged for one in found
    )
