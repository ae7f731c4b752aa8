"""Copies of a log that are consistent, made while a broker writes it.

A segment that is complete gets a second name if the copy is on the same file system, and is copied
otherwise, as it is not written to again. The newest is copied up to its last record that is intact.
The copy is a log that was closed properly, so the same function restores it. What the disk does not
give is zero in the copy, which is damage there.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from pubsub.errors import StartError
from pubsub.store.catalog.catalog import Catalog
from pubsub.store.metadata.metadata import Metadata, SealedSegment
from pubsub.store.reading.log_view import LogView
from pubsub.store.records.record import CLOSED, HEAD_BYTES, REWRITTEN, Record, decode_head, encode
from pubsub.store.segments.log_directory import METADATA, LogDirectory
from pubsub.store.segments.segment import SEGMENT_HEAD_BYTES, Segment, index_name

# The broker may rewrite or remove segments while they are copied, this many times.
_ATTEMPTS = 10
# Bytes that are read at a time, and where the disk does not give them.
_CHUNK, _PAGE = 1024**2, 4096


class _Changed(Exception):
    """The broker has rewritten or removed a segment meanwhile."""


def copy_log(source: Path, target: Path) -> tuple[Catalog, list[str]]:
    """Copy the log in ``source`` to ``target``, which must not exist or be an empty directory.

    Returns what was copied, and a line for each file that was not, or not completely. Raises
    OSError, sqlite3.Error or StartError. The copy has its name when it is complete.
    """
    # The present directory has its name then, which "." has not.
    target = target.absolute()
    if target.is_symlink() or (target.exists() and not _is_empty(target)):
        raise StartError(f"{target} exists and is not an empty directory; choose another name")
    new = target.with_name(target.name + ".new")
    if new.exists():
        raise StartError(f"{new} is left from an interrupted copy; remove it first")
    view = LogView(source)
    try:
        new.mkdir(mode=0o700, parents=True)
        try:
            catalog, broken = _copy(view, new)
            os.rename(new, target)
        except BaseException:
            shutil.rmtree(new, ignore_errors=True)
            raise
    finally:
        view.close()
    _sync(target.parent)
    left_out = [
        f"{name} is not in the copy: {reason}" for name, reason in sorted(view.unusable.items())
    ]
    return catalog, [*left_out, *broken]


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def _copy(view: LogView, new: Path) -> tuple[Catalog, list[str]]:
    for _ in range(_ATTEMPTS):
        for left in new.iterdir():
            left.unlink()
        try:
            broken: list[str] = []
            return _copy_once(view, new, broken), broken
        except (_Changed, FileNotFoundError):
            continue
    raise StartError(
        "the broker kept rewriting or removing segments, so no copy was consistent; try again"
    )


def _copy_once(view: LogView, new: Path, broken: list[str]) -> Catalog:
    # Before the segments: these have the operations that the copy of the metadata does not have.
    view.metadata.copy_to(new / METADATA)
    with closing(Metadata(new / METADATA)) as metadata:
        catalog = view.refresh()
        segments = catalog.segments
        _check_unchanged(metadata, segments[:-1])
        rows = [_copy_complete(view, new, segment, broken) for segment in segments[:-1]]
        for segment in segments[-1:]:
            if segment.sealed:
                rows.append(_copy_complete(view, new, segment, broken))
            else:
                _copy_growing(view.directory, new, segment, broken)
        kept = {(row.base, row.sequence) for row in rows}
        known = [(row.base, row.sequence) for row in metadata.segments()]
        metadata.replace_segments([key for key in known if key not in kept], rows, catalog.low)
    _end_log_of(new / METADATA)
    for path in new.iterdir():
        _sync(path)
    _sync(new)
    return catalog


def _end_log_of(metadata: Path) -> None:
    """Have SQLite use no log beside the file, until a broker opens it.

    A reader that may not write to the file leaves such a log behind.
    """
    with closing(sqlite3.connect(metadata)) as connection:
        connection.execute("PRAGMA journal_mode = DELETE")


def _check_unchanged(copied: Metadata, segments: Sequence[Segment]) -> None:
    """Raise _Changed if a segment was rewritten since the metadata were copied.

    A rewritten one has no operations any more, and the copy may not have them either.
    """
    known = {(row.base, row.sequence) for row in copied.segments()}
    for segment in segments:
        if segment.place not in known:
            head = decode_head(
                segment.read(SEGMENT_HEAD_BYTES, SEGMENT_HEAD_BYTES + HEAD_BYTES),
                segment.head.salt,
            )
            if head is not None and head.epoch == REWRITTEN:
                raise _Changed


def _copy_complete(view: LogView, new: Path, segment: Segment, broken: list[str]) -> SealedSegment:
    head = segment.head
    _link_or_copy(view.directory, segment.name, new, broken)
    size = (new / segment.name).stat().st_size
    last = segment.last_timestamp
    index = index_name(segment.name)
    try:
        view.directory.size(index)
        _link_or_copy(view.directory, index, new, broken)
    except (FileNotFoundError, StartError):
        # There is none, or something else. It is made again when the segment is read.
        last = segment.index_or_damage().last_timestamp
    return SealedSegment(
        head.base, head.sequence, segment.stop, size, head.salt, head.created, last
    )


def _link_or_copy(directory: LogDirectory, name: str, new: Path, broken: list[str]) -> None:
    try:
        os.link(name, new / name, src_dir_fd=directory.file, follow_symlinks=False)
    except FileNotFoundError:
        raise
    except OSError:
        # Another file system, or one without links.
        file = directory.open(name, os.O_RDONLY)
        try:
            with _create(new / name) as copy:
                _copy_bytes(file, copy, os.fstat(file).st_size, name, broken)
        finally:
            os.close(file)


def _copy_bytes(file: int, copy: BinaryIO, size: int, name: str, broken: list[str]) -> None:
    """Copy the first ``size`` bytes of ``file``; those that the disk does not give are zero."""
    lost = 0
    for at in range(0, size, _CHUNK):
        stop = min(at + _CHUNK, size)
        data = _read(file, name, at, stop)
        if data is not None:
            copy.write(data)
            continue
        for start in range(at, stop, _PAGE):
            page = _read(file, name, start, min(start + _PAGE, stop))
            if page is None:
                page = bytes(min(_PAGE, stop - start))
                lost += len(page)
            copy.write(page)
    if lost:
        broken.append(
            f"{name}: the disk does not give {lost} bytes, which are zeros in the copy; check the "
            "disk (dmesg)"
        )


def _read(file: int, name: str, start: int, stop: int) -> bytes | None:
    """Return these bytes; None if the disk does not give them."""
    try:
        data = os.pread(file, stop - start, start)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return None
    if len(data) < stop - start:
        raise StartError(f"{name} became shorter while it was copied")
    return data


def _copy_growing(directory: LogDirectory, new: Path, segment: Segment, broken: list[str]) -> None:
    """Copy the records that are complete, and mark the end of the log."""
    index = segment.index
    stop, end = index.stop, index.end
    closed, _ = encode(Record(stop, flags=CLOSED), segment.head.salt, 0, stop)
    file = directory.open(segment.name, os.O_RDONLY)
    try:
        with _create(new / segment.name) as copy:
            _copy_bytes(file, copy, end, segment.name, broken)
            copy.write(b"".join(closed))
    finally:
        os.close(file)


def _create(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
