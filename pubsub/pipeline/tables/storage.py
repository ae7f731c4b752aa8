"""Files below the directory of a table, in a file system or in an object store.

Paths are relative to the directory, with ``/``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, cast

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler
from pyarrow.fs import (
    FileInfo,
    FileSelector,
    FileSystem,
    FileType,
    LocalFileSystem,
    PyFileSystem,
    SubTreeFileSystem,
)

from pubsub.pipeline.tables.location import Location, StorageError, first_and_last, storage_errors

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer as Buffer

_COPIED = 8 * 1024 * 1024


class UnreadableFile(StorageError):
    """A file that is no Parquet file, or a damaged one."""


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """An entry of a directory. A link is neither a file nor a directory.

    ``modified`` is in seconds since 1970, and 0 for directories.
    """

    name: str
    is_file: bool
    is_directory: bool
    modified: float = 0


class Storage(Protocol):
    """The files of one table."""

    def exists(self, path: str) -> bool:
        """Return whether there is a file or directory, or something else, of this name."""

    def is_directory(self, path: str) -> bool:
        """Return whether ``path`` is a directory; "" is that of the table."""

    def entries(self, directory: str) -> list[DirectoryEntry]:
        """Return the entries of a directory, or none if it cannot be read."""

    def read(self, path: str) -> pa.Table:
        """Return the rows of a Parquet file. Raises UnreadableFile, StorageError, OSError."""

    def create(self, path: str) -> AbstractContextManager[BinaryIO]:
        """Open a new file, which is durable when the context ends."""

    def remove(self, path: str) -> None:
        """Remove a file, if it exists."""

    def duplicate(self, old: str, new: str) -> None:
        """Give a file a second name, or make a copy."""

    def filesystem(self) -> FileSystem:
        """Return the directory as a file system of Arrow; it can be pickled."""


def open_storage(location: Location, directory: str = "") -> Storage:
    """Return the files below ``location``, or below a directory there."""
    if location.is_local:
        return _Disk(os.path.join(location.url, directory) if directory else location.url)
    assert not directory
    options = location.storage_options
    return _ObjectStore(
        location,
        PyFileSystem(_StorageHandler(location.url, options)),
        PyFileSystem(DeltaStorageHandler(location.url, options)),
    )


def disk_storage(path: str) -> Storage:
    """Return the files below the directory ``path``."""
    return _Disk(path)


def filesystem_storage(files: FileSystem, location: Location) -> Storage:
    """Return the files of a file system of Arrow; ``location`` names it in errors."""
    return _ObjectStore(location, files, files)


def _rows(file: Any, name: str) -> pa.Table:
    """Return the rows of a Parquet file; ``name`` is for errors. Raises OSError."""
    try:
        return pq.ParquetFile(file).read()
    except pa.ArrowInvalid as error:
        raise UnreadableFile(f"{name}: cannot read the file: {first_and_last(error)}") from None


class _Disk:
    def __init__(self, root: str) -> None:
        self._root = root

    def _full(self, path: str) -> str:
        return os.path.join(self._root, path) if path else self._root

    def exists(self, path: str) -> bool:
        return os.path.lexists(self._full(path))

    def is_directory(self, path: str) -> bool:
        return os.path.isdir(self._full(path))

    def entries(self, directory: str) -> list[DirectoryEntry]:
        try:
            with os.scandir(self._full(directory)) as found:
                return list(filter(None, map(_disk_entry, found)))
        except OSError:
            return []

    def read(self, path: str) -> pa.Table:
        full = self._full(path)
        return _rows(full, full)

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        full = self._full(path)
        descriptor = _open_new(full)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(descriptor)
        except Exception as error:
            # Otherwise each attempt would leave a file on a full disk.
            os.unlink(full)
            # Those of Arrow have a text alone.
            if isinstance(error, OSError) and error.errno is not None and error.filename is None:
                raise OSError(error.errno, error.strerror, full) from None
            raise

    def remove(self, path: str) -> None:
        try:
            os.unlink(self._full(path))
        except FileNotFoundError:
            return

    def duplicate(self, old: str, new: str) -> None:
        full = self._full(new)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        try:
            os.link(self._full(old), full)
        except OSError:
            # The file system has no links.
            with open(self._full(old), "rb") as source, self.create(new) as target:
                shutil.copyfileobj(source, target, _COPIED)

    def filesystem(self) -> FileSystem:
        return SubTreeFileSystem(self._root, LocalFileSystem())


def _open_new(path: str, attempts: int = 3) -> int:
    """Return the descriptor of a new file. Raises OSError."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    except FileNotFoundError:
        # Compaction may have removed the directory, which was empty.
        if attempts == 1:
            raise
    return _open_new(path, attempts - 1)


def _disk_entry(entry: os.DirEntry[str]) -> DirectoryEntry | None:
    """Return ``entry``, or None if it was removed meanwhile."""
    try:
        is_file = entry.is_file(follow_symlinks=False)
        modified = entry.stat(follow_symlinks=False).st_mtime if is_file else 0
        return DirectoryEntry(entry.name, is_file, entry.is_dir(follow_symlinks=False), modified)
    except OSError:
        return None


class _StorageOutput:
    """A file of deltalake, which takes bytes only; Arrow also writes its buffers.

    It is complete when it is closed, once.
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self.closed = False

    def write(self, data: Buffer) -> int:
        return int(self._file.write(bytes(data)))

    def tell(self) -> int:
        return int(self._file.tell())

    def flush(self) -> None:
        """Do nothing: the bytes are sent in parts of a size that the store takes."""

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._file.close()


class _StorageHandler(DeltaStorageHandler):
    def open_output_stream(
        self, path: str, metadata: dict[str, str] | None = None
    ) -> pa.PythonFile:
        return pa.PythonFile(_StorageOutput(self._handler.open_output_stream(path, metadata)), "w")


class _ObjectStore:
    """Files by the client of deltalake or of Arrow, with the options and credentials of the table.

    An object store has no directories: a directory exists while there is a file below it. A file
    appears when it is complete.
    """

    def __init__(self, location: Location, files: FileSystem, pickled: FileSystem) -> None:
        self._location = location
        self._files = files
        self._pickled = pickled

    def exists(self, path: str) -> bool:
        return bool(self._list(path)) or (bool(path) and self._info(path).type == FileType.File)

    def is_directory(self, path: str) -> bool:
        return bool(self._list(path))

    def entries(self, directory: str) -> list[DirectoryEntry]:
        return [
            DirectoryEntry(
                info.base_name,
                info.type == FileType.File,
                info.type == FileType.Directory,
                info.mtime.timestamp() if info.mtime else 0,
            )
            for info in self._list(directory)
        ]

    def _list(self, directory: str) -> list[FileInfo]:
        with storage_errors(self._location):
            return list(self._files.get_file_info(FileSelector(directory, allow_not_found=True)))

    def _info(self, path: str) -> FileInfo:
        with storage_errors(self._location):
            return self._files.get_file_info(path)

    def read(self, path: str) -> pa.Table:
        with storage_errors(self._location), self._files.open_input_file(path) as file:
            return _rows(file, f"{self._location}/{path}")

    @contextmanager
    def create(self, path: str) -> Iterator[BinaryIO]:
        with storage_errors(self._location):
            try:
                with self._files.open_output_stream(path) as file:
                    yield cast(BinaryIO, file)
            except Exception:
                # The end of the stream has made a file of what was written.
                with suppress(OSError):
                    self._files.delete_file(path)
                raise

    def remove(self, path: str) -> None:
        if self._info(path).type == FileType.File:
            with storage_errors(self._location):
                self._files.delete_file(path)

    def duplicate(self, old: str, new: str) -> None:
        with (
            storage_errors(self._location),
            self._files.open_input_file(old) as source,
            self._files.open_output_stream(new) as target,
        ):
            while data := source.read(_COPIED):
                target.write(data)

    def filesystem(self) -> FileSystem:
        return self._pickled
