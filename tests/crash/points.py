"""The process of a history is killed before the n-th change of its files, for many n.

After half of the kills the power is lost as well. Nothing that was acknowledged may be missing, and
no offset may get another message.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pubsub.broker.routing.batch import Batch
from pubsub.store.reading.log_reader import read_page
from pubsub.store.reading.log_view import LogView
from tests.crash.keeping import KEPT, payload_of
from tests.crash.lives import Result
from tests.crash.power import Disk


class Points:
    """A directory in which one process after another is killed.

    ``shown`` has the topic and the life of each message that was written, ``unsure`` the offsets
    of those that may have been lost with the power. Those before ``safe`` are on disk.
    """

    def __init__(self, directory: Path, seed: int) -> None:
        self._path = directory / "log"
        self._disk = Disk(directory / "disk", self._path)
        self._draw = random.Random(seed)
        self._life = 0
        self.shown: dict[int, tuple[str, int]] = {}
        self.unsure: set[int] = set()
        self.safe = 0
        self.killed = 0

    def live(self, kill_at: int) -> int:
        """Run a process that is killed before its change ``kill_at``; return its changes."""
        self._life += 1
        before = len(self._disk.changes())
        done = subprocess.run(
            [sys.executable, "-m", "tests.crash.keeping", self._path, str(self._life)],
            env={**os.environ, **self._disk.environment, "DISK_KILL": str(kill_at)},
            capture_output=True,
            check=False,
            timeout=60,
        )
        assert done.returncode in (0, -9), done.stderr.decode()
        self.killed += done.returncode == -9
        for line in done.stdout.decode().splitlines():
            self._note(*line.split())
        return len(self._disk.changes()) - before

    def _note(self, event: str, *given: str) -> None:
        if event == "begun":
            offset, value = map(int, given)
            last = max(self.shown, default=-1)
            assert offset > last, f"{last} was shown, and the log continues at {offset}"
            assert value >= self.safe, f"the value of {self.safe} is missing: {value}"
        elif event == "written":
            start, stop = map(int, given[:2])
            self.shown |= dict.fromkeys(range(start, stop), (given[2], self._life))
        elif event == "synced":
            self.safe = int(given[0])

    def crash(self) -> None:
        """Lose the bytes that were not synced, or keep them."""
        if self._draw.random() < 0.5:
            self._disk.cut(self._draw)
            self.unsure.update(offset for offset in self.shown if offset >= self.safe)
        else:
            self._disk.kept()
            self.safe = max(self.shown, default=-1) + 1

    def check(self) -> int:
        """Compare the history with the acknowledged messages; return its number of messages."""
        self.live(0)
        self._disk.kept()
        self.safe = max(self.shown) + 1
        found, damaged = self._read()
        for offset, (topic, payload) in found.items():
            _, life = self.shown.get(offset, (topic, 0))
            assert payload.startswith(b"%d in" % offset), f"{offset}: {payload!r}"
            assert not life or payload == payload_of(offset, life), f"{offset}: {payload!r}"
        missing = [offset for offset, (topic, _) in self.shown.items() if topic == KEPT]
        for offset in missing:
            if offset not in found:
                assert offset in self.unsure, f"{offset} is missing"
                assert any(start <= offset < stop for start, stop in damaged), f"{offset} is gone"
        return len(found)

    def _read(self) -> tuple[dict[int, tuple[str, bytes]], list[tuple[int, int]]]:
        found: dict[int, tuple[str, bytes]] = {}
        damaged: list[tuple[int, int]] = []
        with closing(LogView(self._path)) as view:
            catalog = view.refresh()
            at = catalog.first
            while at < catalog.stop:
                page = read_page(catalog, at, None, 2**20)
                for batch in page.batches:
                    found |= _messages(batch)
                damaged += page.damaged
                at = page.next_offset
        return found, damaged


def _messages(batch: Batch) -> dict[int, tuple[str, bytes]]:
    return {
        offset: (batch.topic, payload)
        for offset, payload in enumerate(batch.payloads(), batch.offset)
    }


def points(
    directory: Path,
    number: int,
    seed: int,
    on_result: Callable[[Result], None] = lambda result: None,
) -> Result:
    """Kill ``number`` processes; raises AssertionError at the first broken promise."""
    tried = Points(directory, seed)
    # The first process creates the log, and others continue it.
    changes = tried.live(0)
    stored = tried.check()
    for index in range(number):
        tried.live(1 + index * changes // number)
        tried.crash()
        if index % 10 == 9 or index == number - 1:
            stored = tried.check()
            on_result(
                Result(index + 1, len(tried.shown), len(tried.shown) - len(tried.unsure), stored)
            )
    assert tried.killed > number // 2
    return Result(number, len(tried.shown), len(tried.shown) - len(tried.unsure), stored)
