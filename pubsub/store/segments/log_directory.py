"""The directory of a log: its files, its lock, and whether it is still there.

    lock                        locked by the broker that writes
    metadata.db                 SQLite: topics, keys, positions and other metadata; the segments
    position                    how far the log was written; survives the process, not the machine
    reserve                     space that is given back when the disk is full
    OFFSET-NUMBER.log           a segment
    OFFSET-NUMBER.index         its index

All files are opened relative to a descriptor of the directory, and none through a symbolic link.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from pubsub.durable_names import make_directory
from pubsub.errors import StartError
from pubsub.store.segments.segment import INDEX_SUFFIX, SUFFIX

LOCK, METADATA, POSITION, RESERVE = "lock", "metadata.db", "position", "reserve"
_RESERVE_BYTES = 4 * 1024**2
_MODE = 0o600
_OWN_DIRECTORY = "give this one a directory of its own, --store log:DIR, or --store memory"


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Segments, the bytes of their files, of their indexes and of the metadata, and the space that
    the disk has free.
    """

    segments: int
    segment_bytes: int
    index_bytes: int
    metadata_bytes: int
    free: int

    def figures(self) -> dict[str, float]:
        """Return these as ``IStore.figures`` has them."""
        return {
            "bytes": self.segment_bytes,
            "segments": self.segments,
            "index_bytes": self.index_bytes,
            "metadata_bytes": self.metadata_bytes,
            "disk_free": self.free,
        }


class LogDirectory:
    """The directory at ``path``. Raises OSError, or StartError if it cannot be a log."""

    def __init__(self, path: Path, create: bool = False) -> None:
        self.path = path
        try:
            if create:
                make_directory(path, mode=0o700)
            self.file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileExistsError, NotADirectoryError):
            raise StartError(
                f"history: {path} is a file; give a directory, --store log:DIR"
            ) from None
        found = os.fstat(self.file)
        self._identity = (found.st_dev, found.st_ino)
        self._lock = -1

    def lock(self, advice: str = _OWN_DIRECTORY) -> None:
        """Lock out other brokers until the process ends or ``close``.

        Raises StartError with ``advice`` if one has the lock.
        """
        file = self.open(LOCK, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            try:
                if isinstance(error, BlockingIOError):
                    self._refuse(file, advice)
                raise
            finally:
                os.close(file)
        self._lock = file
        # For the message to other brokers. It may fail on a full disk.
        with suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)

    def check_free(self) -> None:
        """Raise StartError if another broker has the lock. Raises OSError."""
        file = self.open(LOCK, os.O_RDONLY)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            self._refuse(file)
        finally:
            os.close(file)

    def _refuse(self, file: int, advice: str = _OWN_DIRECTORY) -> NoReturn:
        holder = os.pread(file, 20, 0).decode(errors="replace").strip()
        raise StartError(
            f"history: {self.path} is in use by another broker (process {holder or 'unknown'}); "
            f"{advice}"
        ) from None

    def close(self) -> None:
        """Release the lock and close the directory."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
        os.close(self.file)

    def open(self, name: str, flags: int) -> int:
        """Open a file; raises StartError if it is a symbolic link."""
        flags |= os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(name, flags, _MODE, dir_fd=self.file)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise StartError(
                    f"history: {self.path / name} is a symbolic link; put the file itself there"
                ) from None
            raise

    def size(self, name: str) -> int | None:
        """Return the size of a regular file; None if there is none. Raises StartError."""
        try:
            found = os.stat(name, dir_fd=self.file, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if not stat.S_ISREG(found.st_mode):
            raise StartError(f"history: {self.path / name} is not a regular file")
        return found.st_size

    def require_access(self, name: str, mode: int = os.R_OK | os.W_OK) -> None:
        """Raise PermissionError if a file cannot be read and written, or what ``mode`` says."""
        # It is not opened, as closing it would end the locks of SQLite in this process.
        if not os.access(name, mode, dir_fd=self.file, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)

    def segments(self) -> list[str]:
        """Return the names of the segments, in order."""
        return sorted(name for name in os.listdir(self.file) if name.endswith(SUFFIX))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            os.unlink(name, dir_fd=self.file)
        except FileNotFoundError:
            return

    def rename(self, name: str, new: str) -> None:
        """Rename a file, and replace another file by it."""
        os.rename(name, new, src_dir_fd=self.file, dst_dir_fd=self.file)

    def link(self, name: str, new: str) -> bool:
        """Give a file a second name; return whether the file system can do that."""
        try:
            os.link(name, new, src_dir_fd=self.file, dst_dir_fd=self.file, follow_symlinks=False)
        except OSError:
            return False
        return True

    def give_to_owner(self) -> None:
        """Give the files that root has made here to the owner of the directory, as SQLite does.

        The broker's user could not open them otherwise.
        """
        owner = os.fstat(self.file)
        if os.geteuid() or not owner.st_uid:
            return
        for name in os.listdir(self.file):
            with suppress(FileNotFoundError, StartError):
                file = self.open(name, os.O_RDONLY | os.O_NONBLOCK)
                try:
                    found = os.fstat(file)
                    # The user may have given a second name to a file that must not be given away.
                    if stat.S_ISREG(found.st_mode) and not found.st_uid and found.st_nlink == 1:
                        os.fchown(file, owner.st_uid, owner.st_gid)
                finally:
                    os.close(file)

    def sync(self) -> None:
        """Wait until the names of the files are on disk."""
        os.fsync(self.file)

    def check(self) -> None:
        """Raise OSError if the directory was removed or replaced."""
        try:
            found = os.stat(self.path)
        except OSError as error:
            raise OSError(error.errno, f"{self.path}: {error.strerror}") from None
        if (found.st_dev, found.st_ino) != self._identity:
            raise OSError(errno.ESTALE, f"{self.path}: the directory was replaced by another")

    def remove_leftovers(self) -> None:
        """Remove files that a rewrite has not completed, and indexes without a segment."""
        names = set(os.listdir(self.file))
        for name in names:
            orphan = name.endswith(INDEX_SUFFIX) and (
                name.removesuffix(INDEX_SUFFIX) + SUFFIX not in names
            )
            if orphan or name.endswith((SUFFIX + ".new", INDEX_SUFFIX + ".new")):
                self.remove(name)

    # The reserve

    def keep_reserve(self) -> None:
        """Allocate the reserve, if there is space."""
        if self.size(RESERVE) == _RESERVE_BYTES:
            return
        try:
            file = self.open(RESERVE, os.O_RDWR | os.O_CREAT)
            try:
                os.posix_fallocate(file, 0, _RESERVE_BYTES)
            finally:
                os.close(file)
        except OSError:
            self.remove(RESERVE)

    def use_reserve(self) -> bool:
        """Free the space of the reserve; return whether there was one."""
        if not self.size(RESERVE):
            return False
        self.remove(RESERVE)
        return True

    def usage(self) -> DiskUsage:
        """Measure the files; takes some microseconds for each of them."""
        segments = segment_bytes = index_bytes = metadata_bytes = 0
        with os.scandir(self.file) as entries:
            for entry in entries:
                # SQLite has files beside its own, such as a journal.
                is_metadata = entry.name.startswith(METADATA)
                if not is_metadata and not entry.name.endswith((SUFFIX, INDEX_SUFFIX)):
                    continue
                try:
                    size = os.stat(entry.name, dir_fd=self.file, follow_symlinks=False).st_size
                except FileNotFoundError:
                    continue
                if is_metadata:
                    metadata_bytes += size
                elif entry.name.endswith(SUFFIX):
                    segments += 1
                    segment_bytes += size
                else:
                    index_bytes += size
        return DiskUsage(segments, segment_bytes, index_bytes, metadata_bytes, self.free_bytes()[0])

    def free_bytes(self) -> tuple[int, int]:
        """Return the free bytes and all bytes of the file system."""
        found = os.fstatvfs(self.file)
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize


def check_free(path: Path) -> None:
    """Raise StartError if another broker has locked the log at ``path``; change nothing.

    Nothing is said of a directory that is not there or cannot be used.
    """
    with suppress(OSError):
        directory = LogDirectory(path)
        try:
            directory.check_free()
        finally:
            directory.close()
