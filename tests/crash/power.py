"""A disk that loses power: builds ``disk.c``, and determines the bytes that remain after a cut.

The broker runs with it in ``LD_PRELOAD``. A loss of power may lose every write that no fsync of the
file followed, in any combination, some torn, and the newest changes of names that no fsync of the
directory followed. It needs a C compiler (``gcc``).
"""

from __future__ import annotations

import random
import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

SOURCE = Path(__file__).with_name("disk.c")
FULL, ERROR, SHORT, LOSE, HOLD, SLOW, LIE = (
    "full", "error", "short", "lose", "hold", "slow", "lie",
)  # fmt: skip
FAILURES = (FULL, ERROR, SHORT, LOSE)
_HEAD = struct.Struct("<QQQQ")
_WRITE, _CUT, _SYNC, _SYNC_NAMES, _CREATE, _RENAME, _UNLINK, _LOSE = range(1, 9)
_SECTOR, _PAGE = 512, 4096


class Change(NamedTuple):
    """A change of a file (its number, an offset, data) or of the directory (data: the name)."""

    kind: int
    file: int
    offset: int
    data: bytes


@dataclass(eq=False)
class _File:
    """The bytes of a file that are on disk, and those that are not yet."""

    content: bytearray = field(default_factory=bytearray)
    pending: list[Change] = field(default_factory=list)
    lost: bool = False

    def apply(self, change: Change) -> None:
        """Bring a change to the disk."""
        if change.kind == _CUT:
            del self.content[change.offset :]
            self.content.extend(bytes(change.offset - len(self.content)))
            return
        self.content.extend(bytes(max(change.offset - len(self.content), 0)))
        self.content[change.offset : change.offset + len(change.data)] = change.data

    def sync(self) -> None:
        """Bring everything to the disk."""
        for change in self.pending:
            self.apply(change)
        self.pending.clear()


class Disk:
    """The disk under the history in ``path``; its journal is in ``directory``."""

    def __init__(self, directory: Path, path: Path) -> None:
        self._directory = directory
        self._path = path.resolve()
        directory.mkdir()
        self._boot = random.Random(1)
        self._restart_machine()
        self._base: dict[str, tuple[int, bytes]] = {}
        library = directory / "disk.so"
        subprocess.run(
            ["gcc", "-shared", "-fPIC", "-O2", "-w", "-o", library, SOURCE, "-ldl", "-pthread"],
            check=True,
        )
        self.environment: Mapping[str, str] = {
            "LD_PRELOAD": str(library),
            "DISK_DIRECTORY": str(directory),
            "DISK_FILES": str(self._path),
        }

    def ask(self, fault: str) -> None:
        """Begin this fault."""
        (self._directory / fault).touch()

    def mend(self, fault: str) -> None:
        """End this fault."""
        (self._directory / fault).unlink(missing_ok=True)

    def _restart_machine(self) -> None:
        boot = UUID(int=self._boot.getrandbits(128))
        (self._directory / "boot_id").write_text(f"{boot}\n")

    def changes(self) -> list[Change]:
        """Return the changes since the last cut."""
        return list(self._changes())

    def _changes(self) -> Iterator[Change]:
        journal = self._directory / "journal"
        data = journal.read_bytes() if journal.exists() else b""
        at = 0
        while at + _HEAD.size <= len(data):
            kind, file, offset, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            if at + size > len(data):
                # Killed while recording the change, so it was not made either.
                return
            yield Change(kind, file, offset, data[at : at + size])
            at += size

    def kept(self) -> None:
        """Keep every change, as after a kill without a loss of power."""
        (self._directory / "journal").unlink(missing_ok=True)
        self._base = {}
        if self._path.exists():
            for file in self._path.iterdir():
                if not file.name.endswith("-shm"):
                    self._base[file.name] = file.stat().st_ino, file.read_bytes()

    def cut(self, draw: random.Random) -> int:
        """Cut the power after the kill; return how many changes were lost or torn."""
        survivors = draw.choice((0.0, 0.5, 0.9))
        names, pending = self._replay(self.changes())
        lost = 0
        # Changes of names reach the disk in order.
        kept = draw.choice((0, len(pending), draw.randint(0, len(pending))))
        for change, file in pending[:kept]:
            _rename(names, change, file)
        lost += len(pending) - kept
        for one in set(names.values()):
            lost += _redo(one, draw, survivors)
        self._store(names)
        return lost

    def cut_in_order(self, draw: random.Random) -> int:
        """Cut the power of a disk that writes in order: everything after some moment is lost.

        For a disk that has lied, this leaves at least the whole of some moment.
        """
        changes = self.changes()
        if not changes:
            return 0
        moment = draw.randrange(len(changes))
        names, pending = self._replay(changes[:moment])
        for change, file in pending:
            _rename(names, change, file)
        for one in names.values():
            one.sync()
        self._store(names)
        return len(changes) - moment

    def _replay(
        self, changes: list[Change]
    ) -> tuple[dict[str, _File], list[tuple[Change, _File | None]]]:
        """Return the names on the disk with their files, and changes of names that are not."""
        names: dict[str, _File] = {}
        files: dict[int, _File] = {}
        for name, (number, content) in self._base.items():
            names[name] = files[number] = _File(bytearray(content))
        pending: list[tuple[Change, _File | None]] = []
        for change in changes:
            file = files.setdefault(change.file, _File()) if change.file else None
            if change.kind == _SYNC_NAMES:
                for waiting, created in pending:
                    _rename(names, waiting, created)
                pending.clear()
            elif change.kind == _CREATE:
                # The number may be that of a file that was removed.
                files[change.file] = created = _File()
                pending.append((change, created))
            elif change.kind in (_RENAME, _UNLINK):
                pending.append((change, None))
            elif file is not None and change.kind == _SYNC:
                file.sync()
            elif file is not None and change.kind == _LOSE:
                # It was not written, and no later fsync writes it.
                file.pending.clear()
            elif file is not None:
                file.pending.append(change)
        return names, pending

    def _store(self, names: Mapping[str, _File]) -> None:
        """Leave these files, and begin another boot of the machine."""
        if self._path.exists():
            for file in self._path.iterdir():
                file.unlink()
        for name, one in names.items():
            made = self._path / name
            made.write_bytes(one.content)
            made.chmod(0o600)
        self._restart_machine()
        self.kept()


def _rename(names: dict[str, _File], change: Change, file: _File | None) -> None:
    """Make a change of the directory."""
    name = change.data.decode()
    if change.kind == _CREATE:
        assert file is not None
        names[name] = file
    elif change.kind == _UNLINK:
        names.pop(name, None)
    else:
        old, _, new = name.partition("/")
        if old in names:
            names[new] = names.pop(old)


def _redo(file: _File, draw: random.Random, survivors: float) -> int:
    """Bring some of the changes to the disk; return how many are missing or torn."""
    lost = 0
    for change in file.pending:
        if draw.random() >= survivors:
            lost += 1
            continue
        if change.kind == _WRITE and len(change.data) > _SECTOR and draw.random() < 0.3:
            lost += 1
            for part in _torn(change, draw):
                file.apply(part)
        else:
            file.apply(change)
    return lost


def _torn(change: Change, draw: random.Random) -> Iterator[Change]:
    """Return parts of a write: its beginning, or some of its pages."""
    if draw.random() < 0.5:
        size = _SECTOR * draw.randrange(1 + len(change.data) // _SECTOR)
        yield change._replace(data=change.data[:size])
        return
    at = 0
    while at < len(change.data):
        stop = at + _PAGE - (change.offset + at) % _PAGE
        if draw.random() < 0.5:
            yield change._replace(offset=change.offset + at, data=change.data[at:stop])
        at = stop
