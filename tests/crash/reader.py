"""A reader that continues through all of the broker's crashes, as another process would."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pubsub.store.block_reader import read_page
from pubsub.store.schema import NEXT, open_reader

_PAUSE = 0.01
Epoch = tuple[int, int]
"""The number and the mark of one."""


class Reader:
    """Reads the file from its beginning and checks that no message is read twice.

    ``offsets`` has the offset of each message, without trailing blanks. Raises AssertionError for a
    broken promise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._epoch: Epoch | None = None
        self.position = 0
        self.offsets: dict[bytes, int] = {}
        self.damaged: list[tuple[int, int]] = []
        self.epoch_changes = 0
        """How often the epochs showed that its position was not valid any more."""

    def read(self, stop: Callable[[], bool]) -> None:
        """Read until ``stop`` returns true; if it does so at once, read to the present end."""
        with closing(open_reader(self._path)) as connection:
            self._check_epoch(connection)
            while True:
                last = stop()
                while self._page(connection):
                    pass
                if last:
                    return
                threading.Event().wait(_PAUSE)

    def _check_epoch(self, connection: sqlite3.Connection) -> None:
        """Go back to the last position that is valid in this epoch."""
        known = connection.execute("SELECT number, mark, begins FROM epochs").fetchall()
        epochs: list[Epoch] = [(number, mark) for number, mark, _ in known]
        begins = [begin for _, _, begin in known]
        good = self.position
        if self._epoch is not None:
            if self._epoch not in epochs:
                good = 0
            elif self._epoch != epochs[-1]:
                good = begins[epochs.index(self._epoch) + 1]
        if good < self.position:
            self.epoch_changes += 1
            self.position = good
            self.offsets = {p: offset for p, offset in self.offsets.items() if offset < good}
            self.damaged = [d for d in self.damaged if d[1] <= good]
        self._epoch = epochs[-1]

    def _page(self, connection: sqlite3.Connection) -> bool:
        (end,) = connection.execute(NEXT).fetchone()
        assert self.position <= end, f"{self.position} was read, and now the log ends at {end}"
        page = read_page(connection, self.position, None, 2**20)
        self.damaged += page.damaged
        for batch in page.batches:
            for start, end_of_damage in page.damaged:
                if start <= self.position:
                    self.position = max(self.position, min(end_of_damage, batch.offset))
            assert batch.offset == self.position, f"{self.position} is missing"
            for offset, payload in enumerate(batch.payloads(), batch.offset):
                name = payload.rstrip()
                assert name not in self.offsets, f"{name!r} is there twice"
                self.offsets[name] = offset
            self.position = batch.offset + batch.count
        moved = page.next_offset > self.position or bool(page.batches)
        self.position = max(self.position, page.next_offset)
        return moved


class Following(threading.Thread):
    """A Reader that runs while the broker runs; ``finish`` raises its error."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(daemon=True)
        self._reader = reader
        self._stop_reading = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._reader.read(self._stop_reading.is_set)
        except sqlite3.OperationalError:
            # The broker was killed while it opened the file; the next broker continues it.
            pass
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Stop reading. Raises the error of the reading."""
        self._stop_reading.set()
        self.join()
        if self._error is not None:
            raise self._error
