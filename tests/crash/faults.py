"""Disk faults under a broker that is killed, and what must hold after each.

After a loss of power (``cut``) every promise holds. A disk that damages data (``torn``, ``zeroed``,
``flipped``) may cost messages: their offsets are reported and not assigned again, and all other
messages are there. A disk that reports an fsync that it has not done (``lie``) may also lose the
record of the last offset: then the epochs show the loss.
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
    """A history under brokers that are loaded, killed and damaged, one after another."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.lives = Lives(directory, seed)
        self.disk = Disk(directory / "disk", self.lives.path)
        self.lives.environment = self.disk.environment
        self._number = 0
        self.lost = 0
        """Writes that cuts of power have undone or torn."""

    def live(self, meanwhile: Callable[[Broker], None] = lambda broker: None) -> None:
        """Run a broker under load and kill it."""
        self.lives.live(self._number, self.draw.choice(_LOADS), meanwhile)
        self._number += 1

    def settle(self) -> None:
        """Run a broker and stop it in order, which leaves the log of the file empty."""
        broker = self.lives.start()
        broker.stop()
        broker.discard()
        self.disk.kept()

    def cut(self) -> None:
        """Simulate a loss of power at the moment of the kill."""
        self.lost += self.disk.cut(self.draw)

    def cut_in_order(self) -> None:
        """Simulate the same for a disk that has lied."""
        self.lost += self.disk.cut_in_order(self.draw)

    def hurt(self, ending: str, how: Callable[[bytearray, random.Random], None]) -> None:
        """Damage one of the files after a kill without a loss of power."""
        self.disk.kept()
        path = Path(f"{self.lives.path}{ending}")
        data = bytearray(path.read_bytes() if path.exists() else b"")
        if data:
            how(data, self.draw)
            path.write_bytes(data)

    # Checks

    def check(self) -> None:
        """Check every promise, as with a disk without faults."""
        self.lives.check()
        assert self.lives.reader.epoch_changes == 0

    def check_damaged(self) -> str:
        """Check that nothing wrong is read and that missing messages are reported; return the
        outcome.

        ``refused``: the file cannot be used, and the broker reports that instead of starting.
        """
        broker = self.lives.start()
        if "pubsub: history: cannot use" in broker.output:
            assert broker.wait() == 1
            broker.discard()
            return "refused"
        fresh = Reader(self.lives.path)
        try:
            fresh.read(lambda: True)
            # A group that was committed but not yet recorded may be lost; the epochs show that.
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
            is_reported = any(start <= offset < stop for start, stop in fresh.damaged)
            assert there == offset or (there is None and is_reported), (
                f"{offset}: {payload!r} {there}"
            )
        assert seen.position == fresh.position
        return "reported" if fresh.damaged else "whole"

    def check_loss_reported(self) -> None:
        """Check that each message is there once and that losses are reported to the reader."""
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
    directory: Path,
    loops: int,
    seed: int,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Like ``crash``, with a loss of power at each kill."""
    ordeal = Ordeal(directory, seed)
    for number in range(loops):
        ordeal.live()
        ordeal.cut()
        if number % 10 == 9 or number == loops - 1:
            ordeal.check()
            ordeal.disk.kept()
            on_result(ordeal.lives.result(number + 1))
    return ordeal.lives.result(loops)


def tear(data: bytearray, draw: random.Random) -> None:
    """Remove the end."""
    del data[draw.randrange(len(data)) :]


def zero(data: bytearray, draw: random.Random) -> None:
    """Replace the end with zeros."""
    start = draw.randrange(len(data))
    data[start:] = bytes(len(data) - start)


def flip(data: bytearray, draw: random.Random) -> None:
    """Flip one bit."""
    data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)


def lose_newest(data: bytearray, draw: random.Random) -> None:
    """Cut off the last quarter of SQLite's log, and the remains of older logs behind it.

    Frames of a restarted log have its salt, older frames another (SQLite's file format, 4).
    """
    frame = 24 + int.from_bytes(data[8:12], "big")
    end = 32
    while data[end + 8 : end + 16] == data[16:24]:
        end += frame
    del data[32 + (end - 32) // frame * 3 // 4 * frame :]


def written(how: Callable[[bytearray, random.Random], None]) -> Callable[..., None]:
    """Apply ``how`` to the written part of a file that is extended with zeros."""

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
