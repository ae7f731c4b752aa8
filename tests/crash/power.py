"""A disk that loses power: builds ``disk.c``, and determines what remains after a cut.

The broker runs with it in ``LD_PRELOAD``. A loss of power may lose every write that no fsync
followed: these writes are undone, and a random part of them is repeated, in order, some torn at a
sector. It needs a C compiler (``gcc``).
"""

from __future__ import annotations

import os
import random
import struct
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from pubsub.store.journal import SUFFIXES as JOURNAL

SOURCE = Path(__file__).with_name("disk.c")
SUFFIXES = ("", "-wal", "-end", *JOURNAL)
FULL, HOLD, SLOW, LIE = "full", "hold", "slow", "lie"
_HEAD = struct.Struct("<QQQQQ")
_CUT = 2**64 - 1
_SECTOR = 512


class _Record(NamedTuple):
    """A write: time (ns), place, old file size, old bytes, new bytes (None: a truncation)."""

    when: int
    offset: int
    size: int
    before: bytes
    written: bytes | None


class Disk:
    """The disk under the history at ``path``; its journals are in ``directory``."""

    def __init__(self, directory: Path, path: Path) -> None:
        self._directory = directory
        self._path = path
        directory.mkdir()
        library = directory / "disk.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O2", "-o", library, SOURCE, "-ldl", "-pthread"],
            check=True,
        )
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "DISK_DIRECTORY": str(directory),
            "DISK_FILE": str(path),
        }

    def ask(self, fault: str) -> None:
        """Begin this fault."""
        (self._directory / fault).touch()

    def mend(self, fault: str) -> None:
        """End this fault."""
        (self._directory / fault).unlink(missing_ok=True)

    def unsynced(self) -> int:
        """Return the number of writes that a cut could lose now."""
        return sum(len(list(self._records(ending))) for ending in SUFFIXES)

    def cut(self, draw: random.Random) -> int:
        """Cut the power after the kill; return how many writes were lost or torn."""
        lost = 0
        for ending in SUFFIXES:
            records = list(self._records(ending))
            with self._undone(ending, records) as file:
                lost += _redo(file, records, draw)
        self._forget()
        return lost

    def cut_in_order(self, draw: random.Random) -> int:
        """Cut the power of a disk that writes in order: everything after some moment is lost.

        For a disk that has lied, this leaves at least the whole file of some moment.
        """
        records = {ending: list(self._records(ending)) for ending in SUFFIXES}
        moments = sorted(record.when for listed in records.values() for record in listed)
        if not moments:
            return 0
        moment = draw.choice(moments)
        for ending, listed in records.items():
            with self._undone(ending, [record for record in listed if record.when >= moment]):
                pass
        self._forget()
        return sum(when >= moment for when in moments)

    def kept(self) -> None:
        """Keep every write, as after a kill without a loss of power."""
        for ending in SUFFIXES:
            self._journal(ending).unlink(missing_ok=True)

    def _journal(self, ending: str) -> Path:
        return self._directory / f"journal{ending}"

    def _forget(self) -> None:
        self.kept()
        # Shared memory is not on the disk.
        Path(f"{self._path}-shm").unlink(missing_ok=True)

    def _records(self, ending: str) -> Iterator[_Record]:
        journal = self._journal(ending)
        data = journal.read_bytes() if journal.exists() else b""
        at = 0
        while at + _HEAD.size <= len(data):
            when, offset, size, old, new = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            before, at = data[at : at + old], at + old
            written = None
            if new != _CUT:
                written, at = data[at : at + new], at + new
            if at > len(data):
                # Killed while recording the write, so the write was not done either.
                break
            yield _Record(when, offset, size, before, written)

    @contextmanager
    def _undone(self, ending: str, records: Sequence[_Record]) -> Iterator[int]:
        """Undo ``records`` and return the file, open for writing."""
        file = os.open(f"{self._path}{ending}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for record in reversed(records):
                os.pwrite(file, record.before, record.offset)
                os.ftruncate(file, record.size)
            yield file
        finally:
            os.close(file)


def _redo(file: int, records: Sequence[_Record], draw: random.Random) -> int:
    """Repeat some of the undone writes; return how many are missing or torn."""
    survivors = draw.choice((0.0, 0.5, 0.9))
    lost = 0
    for record in records:
        if draw.random() >= survivors:
            lost += 1
        elif record.written is None:
            os.ftruncate(file, record.offset)
        else:
            written = record.written
            if len(written) > _SECTOR and draw.random() < 0.2:
                written = written[: _SECTOR * draw.randrange(len(written) // _SECTOR)]
                lost += 1
            os.pwrite(file, written, record.offset)
    return lost
