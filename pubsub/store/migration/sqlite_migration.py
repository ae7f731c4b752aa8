"""Migration of a history of version 0.1, a file of SQLite, to a log of segments.

The log is built beside its place and renamed when it is complete. The old file is kept. A migration
that was interrupted continues behind the last segment that it completed, or begins again if version
0.1 has been started meanwhile.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from twisted.logger import Logger

from pubsub.durable_names import sync_names
from pubsub.errors import StartError
from pubsub.store.commits.log_writer import SEGMENT_BYTES
from pubsub.store.disk_remedies import is_full
from pubsub.store.metadata.metadata import Metadata
from pubsub.store.migration.sqlite_history import OldBlock, SqliteHistory
from pubsub.store.records.block import decode_block, encode_block
from pubsub.store.segments.log_directory import METADATA, LogDirectory
from pubsub.store.segments.log_files import SALT_BYTES
from pubsub.store.upkeep.segment_builder import SegmentBuilder

log = Logger()
_SUFFIX = ".migrating"
_REPORT_SECONDS = 5.0


def incomplete(target: Path) -> Path:
    """Return the directory of the log ``target`` before it is complete."""
    return target.with_name(target.name + _SUFFIX)


def migrate(source: Path, target: Path, report: Callable[[int, int, int], None]) -> None:
    """Make a log in the directory ``target`` from the old history ``source``.

    ``report`` is called every few seconds with the offset reached, the first and the last one.
    Raises StartError or OSError.
    """
    try:
        old = SqliteHistory(source)
    except sqlite3.Error as error:
        raise StartError(f"history: cannot migrate {source}: {error}") from None
    try:
        with _locked(source):
            _Migration(old, target, report).run()
    except sqlite3.Error as error:
        if is_full(error):
            # The old file is only read.
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise StartError(f"history: cannot migrate {source}: {error}") from None
    finally:
        old.close()


def migrate_missing(source: Path | None, target: Path) -> None:
    """Make the log ``target`` from the old history ``source``, if only the old one exists.

    If both exist, and the old one has messages since it was migrated, that is logged. The log shows
    the progress. Raises StartError or OSError.
    """
    if source is None or not source.exists():
        return
    if target.exists():
        _report_later_messages(source, target)
    else:
        log.warn(
            "history: migrating {old} to {path}; the old file is kept", old=source, path=target
        )
        migrate(source, target, log_progress)


def _report_later_messages(source: Path, target: Path) -> None:
    """Log it if version 0.1 has written messages to ``source`` since it was migrated."""
    try:
        with closing(Metadata(target / METADATA, read_only=True)) as metadata:
            known = {(one.number, one.mark) for one in metadata.epochs()}
        with closing(SqliteHistory(source)) as old:
            later = [one for one in old.epochs() if (one.number, one.mark) not in known]
            # If no epoch is known, the log is another one, or its metadata was lost.
            if not later or len(later) == len(old.epochs()):
                return
            first = next((row.base for row in old.blocks(later[0].begins)), None)
    except (OSError, sqlite3.Error, StartError):
        # The start itself tells what is wrong with the log, and does not need the old file.
        return
    if first is not None:
        log.warn(
            "history: version 0.1 has written to {old} since it was migrated: its messages from "
            "offset {first} on are not in {path}; docs/upgrading.md says what to do",
            old=source,
            first=first,
            path=target,
        )


def log_progress(reached: int, first: int, stop: int) -> None:
    """Log the progress of a migration."""
    log.info(
        "history: migrating, offset {reached} of {first} to {stop}",
        reached=reached,
        first=first,
        stop=stop,
    )


@contextmanager
def _locked(source: Path) -> Iterator[None]:
    """Hold the lock of the old history, so that no broker of version 0.1 writes to it."""
    with Path(f"{source}-lock").open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartError(
                f"history: {source} is in use by another broker; stop it before the migration"
            ) from None
        yield


class _Migration:
    def __init__(
        self, old: SqliteHistory, target: Path, report: Callable[[int, int, int], None]
    ) -> None:
        self._old = old
        self._target = target
        self._path = incomplete(target)
        self._report = report
        self._reported = time.monotonic()
        self._builder: SegmentBuilder | None = None
        self._first, self._stop = old.bounds()

    def run(self) -> None:
        """Migrate everything."""
        self._directory = LogDirectory(self._path, create=True)
        with closing(self._directory), closing(self._begin()) as metadata:
            state = metadata.state()
            self._log_id = state.log_id
            rows = metadata.segments()
            self._sequence = rows[-1].sequence + 1 if rows else 1
            at = rows[-1].stop if rows else self._first
            self._metadata = metadata
            for row in self._old.blocks(at):
                if row.base > at:
                    self._lost(at, row.base, row.last)
                self._add(row)
                at = row.stop
                self._report_progress(at)
            if at < self._stop:
                # The last messages have expired, or the file lost them.
                self._builder_at(at).add(encode_block([], 0, at, self._stop))
                at = self._stop
            self._finish_segment()
            metadata.import_rows(self._old.metadata(), self._old.epochs(), stop=at)
        self._path.rename(self._target)
        # Without the name, the next start would take the log for one that is incomplete.
        sync_names(self._target.parent)

    def _begin(self) -> Metadata:
        """Return the metadata of the log that is built, new or of a migration that was cut off."""
        self._directory.lock()
        self._directory.remove_leftovers()
        path = self._path / METADATA
        metadata = self._continued(path)
        rows = () if metadata is None else metadata.segments()
        done = {(row.base, row.sequence) for row in rows}
        for name in self._directory.segments():
            base, _, sequence = name.removesuffix(".log").partition("-")
            if (int(base), int(sequence)) not in done:
                self._directory.remove(name)
        if metadata is not None:
            return metadata
        for suffix in ("", "-wal", "-shm"):
            self._directory.remove(METADATA + suffix)
        metadata = Metadata.create(path, secrets.token_bytes(SALT_BYTES), self._first)
        # They tell from which file it is.
        metadata.import_rows(epochs=self._old.epochs())
        return metadata

    def _continued(self, path: Path) -> Metadata | None:
        """Return the metadata of a migration of the same file that was cut off, if there is one."""
        if not path.exists():
            return None
        problem = "it is of another file"
        try:
            metadata = Metadata(path)
            epochs = metadata.epochs()
            known = self._old.epochs()
            if epochs and epochs == known:
                return metadata
            if epochs and epochs == known[: len(epochs)]:
                # It joins blocks, so that none of them need begin where the segments end, and
                # messages expire and topics end.
                problem = "version 0.1 has been started since"
            metadata.close()
        except (sqlite3.Error, StartError) as error:
            problem = str(error)
        log.warn(
            "history: {path} of an earlier migration is removed and begun anew: {problem}",
            path=self._path,
            problem=problem,
        )
        return None

    def _builder_at(self, offset: int) -> SegmentBuilder:
        if self._builder is None:
            created = time.time_ns() // 1000
            self._builder = SegmentBuilder(
                self._directory, self._log_id, offset, self._sequence, created
            )
            self._sequence += 1
        return self._builder

    def _add(self, row: OldBlock) -> None:
        if row.block is None:
            self._lost(row.base, row.stop, row.last)
            return
        block = row.block
        if not row.topics.issuperset(block.topics()):
            runs = [run.record() for run in decode_block(block, row.topics)]
            block = encode_block(runs, block.run, block.base, block.stop)
        builder = self._builder_at(row.base)
        builder.add(block)
        if builder.nbytes >= SEGMENT_BYTES:
            self._finish_segment()

    def _lost(self, start: int, stop: int, timestamp: int) -> None:
        self._builder_at(start).add_lost(start, stop, timestamp)
        log.error(
            "history: offsets {first} to {last} cannot be read and are migrated as lost",
            first=start,
            last=stop - 1,
        )

    def _finish_segment(self) -> None:
        builder, self._builder = self._builder, None
        if builder is not None:
            builder.sync()
            _, row = builder.finish()
            self._metadata.replace_segments((), (row,), self._first)

    def _report_progress(self, at: int) -> None:
        now = time.monotonic()
        if now - self._reported >= _REPORT_SECONDS:
            self._reported = now
            self._report(at, self._first, self._stop)
