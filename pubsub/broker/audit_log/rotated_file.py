"""A file of lines that is rotated, and continues after a time in which the disk takes nothing."""

from __future__ import annotations

import fcntl
import os
from typing import BinaryIO

from twisted.python import threadable
from twisted.python.logfile import LogFile

_DEFAULT_BYTES = 1_000_000


class RotatedFile(LogFile):
    """Twisted's file, without the faults that it has while the disk is full or not writable.

    A rotation that fails leaves Twisted's file closed for good, and a part of a line that fits on
    the disk counts as written. If another program truncates the file, Twisted's continues behind a
    hole. ``write`` raises OSError if not all is written, and the next call tries again.
    """

    synchronized = ["write", "begin_new"]  # noqa: RUF012 - the base class declares it as a list
    _file: BinaryIO
    _is_torn = False

    def __init__(
        self, path: str, size: int | None = None, kept: int | None = None, mode: int | None = None
    ) -> None:
        """Open ``path``; begin a new file every ``size`` bytes, by default 1,000,000; 0: never.

        ``kept`` is the number of old files, by default any, and ``mode`` that of the file.
        """
        directory, name = os.path.split(os.path.abspath(path))
        length = _DEFAULT_BYTES if size is None else size or None
        if os.path.exists(path) and not os.path.isfile(path):
            # A device such as /dev/null, which belongs to other programs too.
            length = mode = None
        super().__init__(name, directory, length, mode, kept)  # type: ignore[no-untyped-call]

    @property
    def is_moved(self) -> bool:
        """True if the path has no file, or another one, as after a rotation by another program.

        Also if a rotation has failed; it is begun again before the next line.
        """
        if self._file.closed:
            return True
        try:
            found = os.stat(self.path)
        except OSError:
            return True
        return not os.path.samestat(found, os.fstat(self._file.fileno()))

    def _openFile(self) -> None:
        super()._openFile()  # type: ignore[no-untyped-call]
        self._is_torn = False
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)

    def write(self, data: str | bytes) -> None:
        """Write ``data``, into a new file if it is time for that and possible."""
        self._begin()
        line = data.encode(errors="backslashreplace") if isinstance(data, str) else data
        if self._is_torn:
            line = b"\n" + line
        done = 0
        try:
            while done < len(line):
                done += self._file.write(line[done:])
        finally:
            self.size += done
            if done:
                self._is_torn = done < len(line)

    def begin_new(self) -> None:
        """Begin a new file, also if another program has moved the old one; raises OSError."""
        if self.is_moved:
            self._file.close()
            self._openFile()
        elif os.path.isfile(self.path):
            self.rotate()  # type: ignore[no-untyped-call]

    def _begin(self) -> None:
        """Open a file if there is none, or rotate it when it is full."""
        if self._file.closed:
            self._openFile()
        elif self.shouldRotate():  # type: ignore[no-untyped-call]
            try:
                self.rotate()  # type: ignore[no-untyped-call]
            except OSError:
                # The old file goes on, unless it has been renamed and no other one can be made.
                if self._file.closed:
                    self._openFile()


threadable.synchronize(RotatedFile)
