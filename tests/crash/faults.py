"""Disk faults under a broker that is killed, and the promises that must hold after each.

After a loss of power (``cut``) every promise holds, also if writes or fsyncs failed before
(``suffer``). A disk that damages data (``tear``, ``zero``, ``flip``) may cost messages: their
offsets are reported and not assigned again, and all other messages are there. A disk that reports
an fsync that it has not done (``lie``) may also lose the record of the last offset: then the epochs
show the loss.
"""

from __future__ import annotations

import random
import re
import sqlite3
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from pubsub.errors import StartError
from tests.crash.lives import Lives, Result, check_same
from tests.crash.load import KINDS, Bulk
from tests.crash.power import FAILURES, Disk
from tests.crash.reader import Reader
from tests.integration.broker import Broker

_LOADS = (KINDS, (*KINDS, Bulk))
# With all digits, as one payload may be the beginning of another.
_PAYLOAD = re.compile(rb"[A-Za-z]+\d+\.\d+-\d+")


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
        """Run a broker and stop it in order."""
        broker = self.lives.start()
        broker.stop()
        broker.discard()
        self.disk.kept()

    def suffer(self, broker: Broker) -> None:
        """Let writes or fsyncs fail for a moment, under load."""
        fault = self.draw.choice(FAILURES)
        # Like the kill, they come at a random moment.
        threading.Event().wait(self.draw.uniform(0, 0.2))
        self.disk.ask(fault)
        threading.Event().wait(self.draw.uniform(0, 0.3))
        self.disk.mend(fault)
        threading.Event().wait(self.draw.choice((0, 0.7)))

    def cut(self) -> None:
        """Simulate a loss of power at the moment of the kill."""
        self.lost += self.disk.cut(self.draw)

    def cut_in_order(self) -> None:
        """Simulate the same for a disk that has lied."""
        self.lost += self.disk.cut_in_order(self.draw)

    def hurt(self, pattern: str, how: Callable[[bytearray, random.Random], None]) -> None:
        """Damage one of the files that match ``pattern``, after a kill without a loss of power."""
        self.disk.kept()
        found = sorted(self.lives.path.glob(pattern))
        path = self.draw.choice(found)
        data = bytearray(path.read_bytes())
        how(data, self.draw)
        path.write_bytes(data)

    def lose_end(self) -> None:
        """Cut off the newest segment in front of the last acknowledged message in it, and at least
        a quarter of it.

        The loss of later messages need not be reported: no client knows that they were stored.
        """
        self.disk.kept()
        acknowledged = self.lives.record.acknowledged
        for path in sorted(self.lives.path.glob("*.log"), reverse=True):
            data = path.read_bytes().rstrip(b"\0")
            found = (one for one in _PAYLOAD.finditer(data) if one[0] in acknowledged)
            last = max((one.start() for one in found), default=None)
            if last is not None:
                path.write_bytes(data[: min(last, len(data) // 4 * 3)])
                return
            path.unlink()
        raise AssertionError("no segment has an acknowledged message")

    # Checks

    def check(self) -> None:
        """Check every promise, as with a disk without faults."""
        self.lives.check()
        assert self.lives.reader.epoch_changes == 0

    def check_damaged(self) -> str:
        """Check that nothing wrong is read and that missing messages are reported; return the
        outcome.

        ``refused``: the history cannot be used, and the broker reports that instead of starting.
        """
        broker = self.lives.start()
        if "pubsub: history: " in broker.output:
            assert broker.wait() == 1
            broker.discard()
            return "refused"
        fresh = Reader(self.lives.path)
        try:
            fresh.read(lambda: True)
            # A group that was committed but not yet recorded may be lost; the epochs show that.
            self.lives.reader.read(lambda: True)
        except (sqlite3.Error, StartError):
            return "refused"
        finally:
            broker.stop()
            broker.discard()
        self._check_content(fresh)
        missing = self.lives.record.acknowledged - fresh.offsets.keys()
        reported = sum(stop - start for start, stop in fresh.damaged)
        assert len(missing) <= reported, f"{len(missing)} are missing, {reported} are reported"
        check_same(self.lives.reader, fresh)
        return "reported" if fresh.damaged else "whole"

    def check_loss_reported(self) -> None:
        """Check that each message is there once, and that losses are reported.

        A reader that has read more learns it by the epochs. Below the ceiling its offsets are
        damaged for a reader that comes later.
        """
        self.lives.reader.read(lambda: True)
        fresh = Reader(self.lives.path)
        fresh.read(lambda: True)
        self._check_content(fresh)
        check_same(self.lives.reader, fresh)
        assert fresh.damaged or self.lives.reader.epoch_changes

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
    return _run(Ordeal(directory, seed), loops, on_result, fails=False)


def failures(
    directory: Path,
    loops: int,
    seed: int,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Like ``crash``, with writes and fsyncs that fail, and then a kill or a loss of power."""
    ordeal = Ordeal(directory, seed)
    ordeal.lives.record.may_fail = True
    return _run(ordeal, loops, on_result, fails=True)


def _run(ordeal: Ordeal, loops: int, on_result: Callable[[Result], None], fails: bool) -> Result:
    for number in range(loops):
        if fails:
            ordeal.live(ordeal.suffer)
        else:
            ordeal.live()
        if fails and ordeal.draw.random() < 0.5:
            ordeal.disk.kept()
        else:
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


def written(
    how: Callable[[bytearray, random.Random], None],
) -> Callable[[bytearray, random.Random], None]:
    """Apply ``how`` to the written part of a file that is extended with zeros."""

    def done(data: bytearray, draw: random.Random) -> None:
        data[:] = data.rstrip(b"\0")
        if data:
            how(data, draw)

    return done


DAMAGES: Mapping[str, tuple[str, Callable[[bytearray, random.Random], None]]] = {
    f"{name} {what}": (pattern, written(how))
    for what, pattern in (
        ("segment", "*.log"),
        ("metadata", "metadata.db"),
        ("log of the metadata", "metadata.db-wal"),
    )
    for name, how in (("torn", tear), ("zeroed", zero), ("flipped", flip))
}
"""By name: the files, and the fault in one of them."""
