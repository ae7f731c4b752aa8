"""A disk that loses power: builds ``disk.c``, and decides what is left after a cut.

The broker runs with it in ``LD_PRELOAD``. When the power goes, nothing that was not followed by an
fsync need be there: what was written since is undone, and a random part of it is done again, in
order, some of it torn at a sector. It needs a C compiler (``gcc``).
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
    """A write: when (ns), where, the file's size before, what was there, and what was written, or
    None if the file was cut."""

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
        """From now on there is this fault."""
        (self._directory / fault).touch()

    def mend(self, fault: str) -> None:
        """No more."""
        (self._directory / fault).unlink(missing_ok=True)

    def unsynced(self) -> int:
        """How many writes a cut could lose now."""
        return sum(len(list(self._records(ending))) for ending in SUFFIXES)

    def cut(self, draw: random.Random) -> int:
        """The power goes, once the broker is killed; returns how many writes were lost or torn."""
        lost = 0
        for ending in SUFFIXES:
            records = list(self._records(ending))
            with self._undone(ending, records) as file:
                lost += _redo(file, records, draw)
        self._forget()
        return lost

    def cut_in_order(self, draw: random.Random) -> int:
        """The same of a disk that writes in order: all is lost since some moment.

        For one that has lied: what a moment leaves behind is a whole file at least.
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
        """The broker was killed and the power stayed: all that was written is there."""
        for ending in SUFFIXES:
            self._journal(ending).unlink(missing_ok=True)

    def _journal(self, ending: str) -> Path:
        return self._directory / f"journal{ending}"

    def _forget(self) -> None:
        self.kept()
        # What several processes share in memory is on no disk.
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
                # It was killed while it noted it, so that it was not written either.
                break
            yield _Record(when, offset, size, before, written)

    @contextmanager
    def _undone(self, ending: str, records: Sequence[_Record]) -> Iterator[int]:
        """The file without ``records``, to write to."""
        file = os.open(f"{self._path}{ending}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            for record in reversed(records):
                os.pwrite(file, record.before, record.offset)
                os.ftruncate(file, record.size)
            yield file
        finally:
            os.close(file)


def _redo(file: int, records: Sequence[_Record], draw: random.Random) -> int:
    """Do some of what was undone; returns how many were not done, or not wholly."""
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
