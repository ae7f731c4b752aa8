"""Faults of the disk under a broker that is killed: what must hold after each.

After a loss of power (``cut``) everything that was promised holds. What a disk does that keeps its
word no longer (``torn``, ``zeroed``, ``flipped``) may cost messages: then the offsets are reported
and are not given out again, and all else is there. A disk that says fsync is done when it is not
(``lie``) may take the note of what was there with it: then the epochs tell.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path

from pubsub.store.journal import SUFFIXES as JOURNAL
from tests.crash.lives import Lives, Result
from tests.crash.load import KINDS, Bulk
from tests.crash.power import Disk
from tests.crash.reader import Reader
from tests.integration.broker import Broker

_LOADS = (KINDS, (*KINDS, Bulk))


class Ordeal:
    """A history that is loaded, killed and damaged, one life after another."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.lives = Lives(directory, seed)
        self.disk = Disk(directory / "disk", self.lives.path)
        self.lives.environment = self.disk.environment
        self._number = 0
        self.lost = 0
        """Writes that cuts of power have undone or torn."""

    def live(self, meanwhile: Callable[[Broker], None] = lambda broker: None) -> None:
        """One life under load, killed."""
        self.lives.live(self._number, self.draw.choice(_LOADS), meanwhile)
        self._number += 1

    def settle(self) -> None:
        """A life that is closed in order, so that all is in the file and its log is empty."""
        broker = self.lives.start()
        broker.stop()
        broker.discard()
        self.disk.kept()

    def cut(self) -> None:
        """The power went when the broker was killed."""
        self.lost += self.disk.cut(self.draw)

    def cut_in_order(self) -> None:
        """The same, of a disk that has lied."""
        self.lost += self.disk.cut_in_order(self.draw)

    def hurt(self, ending: str, how: Callable[[bytearray, random.Random], None]) -> None:
        """The power stayed, but one of the files has changed."""
        self.disk.kept()
        path = Path(f"{self.lives.path}{ending}")
        data = bytearray(path.read_bytes() if path.exists() else b"")
        if data:
            how(data, self.draw)
            path.write_bytes(data)

    # What must hold

    def check(self) -> None:
        """Every promise, as though nothing had happened to the disk."""
        self.lives.check()
        assert self.lives.reader.told == 0

    def check_damaged(self) -> str:
        """Nothing wrong is read, and what is missing is reported; returns what became of it.

        ``refused``: the file cannot be used, and the broker says so instead of starting.
        """
        broker = self.lives.start()
        if "pubsub: history: cannot use" in broker.output:
            assert broker.wait() == 1
            broker.discard()
            return "refused"
        fresh = Reader(self.lives.path)
        try:
            fresh.read(lambda: True)
            # A group that was committed and not noted yet may be gone: the epochs tell of it.
            self.lives.reader.read(lambda: True)
        except sqlite3.DatabaseError:
            return "refused"
        finally:
            broker.stop()
            broker.discard()
        self._check_content(fresh)
        missing = self.lives.record.acknowledged - fresh.offsets.keys()
        reported = sum(stop - start for start, stop in fresh.damaged)
        assert len(missing) <= reported, f"{len(missing)} are missing, {reported} are reported"
        seen = self.lives.reader
        for payload, offset in seen.offsets.items():
            there = fresh.offsets.get(payload)
            told = any(start <= offset < stop for start, stop in fresh.damaged)
            assert there == offset or (there is None and told), f"{offset}: {payload!r} {there}"
        assert seen.position == fresh.position
        return "reported" if fresh.damaged else "whole"

    def check_told(self) -> None:
        """Whatever is there was published, once; who had read more has been told."""
        self.lives.reader.read(lambda: True)
        fresh = Reader(self.lives.path)
        fresh.read(lambda: True)
        self._check_content(fresh)
        assert fresh.offsets == self.lives.reader.offsets

    def _check_content(self, reader: Reader) -> None:
        strange = reader.offsets.keys() - self.lives.record.published
        assert not strange, f"there and not published: {sorted(strange)[:5]} of {len(strange)}"
        assert not self.lives.record.broken, self.lives.record.broken


def cuts(
    directory: Path, loops: int, seed: int, told: Callable[[Result], None] = lambda result: None
) -> Result:
    """As ``crash``, with the power lost at each kill."""
    ordeal = Ordeal(directory, seed)
    for number in range(loops):
        ordeal.live()
        ordeal.cut()
        if number % 10 == 9 or number == loops - 1:
            ordeal.check()
            ordeal.disk.kept()
            told(ordeal.lives.result(number + 1))
    return ordeal.lives.result(loops)


def tear(data: bytearray, draw: random.Random) -> None:
    """The end is missing."""
    del data[draw.randrange(len(data)) :]


def zero(data: bytearray, draw: random.Random) -> None:
    """The end is zeros."""
    start = draw.randrange(len(data))
    data[start:] = bytes(len(data) - start)


def flip(data: bytearray, draw: random.Random) -> None:
    """One bit is another."""
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def lose_newest(data: bytearray, draw: random.Random) -> None:
    """Cut off the last quarter of what SQLite's log holds, and what is left of older ones behind.

    Frames of a log that was begun anew have its salt, older ones another (SQLite's file format, 4).
    """
    frame = 24 + int.from_bytes(data[8:12], "big")
    end = 32
    while data[end + 8 : end + 16] == data[16:24]:
        end += frame
    del data[32 + (end - 32) // frame * 3 // 4 * frame :]


def written(how: Callable[[bytearray, random.Random], None]) -> Callable[..., None]:
    """The same of what was written of a file that grows by zeros."""

    def done(data: bytearray, draw: random.Random) -> None:
        data[:] = data.rstrip(b"\0")
        if data:
            how(data, draw)

    return done


DAMAGES: Mapping[str, tuple[tuple[str, ...], Callable[[bytearray, random.Random], None]]] = {
    "torn log": (("-wal",), tear),
    "zeroed log": (("-wal",), zero),
    "flipped log": (("-wal",), flip),
    "torn file": (("",), tear),
    "zeroed file": (("",), zero),
    "flipped file": (("",), flip),
    "torn journal": (JOURNAL, written(tear)),
    "zeroed journal": (JOURNAL, written(zero)),
    "flipped journal": (JOURNAL, written(flip)),
}
"""By name: which files, and what is done to each."""
