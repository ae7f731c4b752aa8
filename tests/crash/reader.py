"""A reader in another process than the broker, which runs through all of its crashes."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pubsub.store.reader import read_page
from pubsub.store.schema import open_reader

_PAUSE = 0.01


class Reader:
    """Reads the file from its beginning on, checking that no message comes twice.

    ``offsets`` has the place of each message. Raises AssertionError for what must not be.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.position = 0
        self.offsets: dict[bytes, int] = {}
        self.damaged: list[tuple[int, int]] = []

    def read(self, stop: Callable[[], bool]) -> None:
        """Read on until ``stop`` says so, or to the end of what is there if it does already."""
        with closing(open_reader(self._path)) as connection:
            while True:
                last = stop()
                while self._page(connection):
                    pass
                if last:
                    return
                threading.Event().wait(_PAUSE)

    def _page(self, connection: sqlite3.Connection) -> bool:
        (end,) = connection.execute("SELECT next FROM state").fetchone()
        assert self.position <= end, f"{self.position} was read, and now the log ends at {end}"
        page = read_page(connection, self.position, None, 2**20)
        self.damaged += page.damaged
        for batch in page.batches:
            gap = [d for d in page.damaged if d == (self.position, batch.offset)]
            assert batch.offset == self.position or gap, f"{self.position} is missing"
            for payload in batch.payloads:
                assert payload not in self.offsets, f"{payload!r} is there twice"
                self.offsets[payload] = batch.offset
            self.position = batch.offset + len(batch.payloads)
        moved = page.next_offset > self.position or bool(page.batches)
        self.position = max(self.position, page.next_offset)
        return moved


class Following(threading.Thread):
    """A Reader at work while the broker lives; ``finish`` says what went wrong."""

    def __init__(self, reader: Reader) -> None:
        super().__init__(daemon=True)
        self._reader = reader
        self._stop_reading = threading.Event()
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._reader.read(self._stop_reading.is_set)
        except sqlite3.OperationalError:
            # The broker was killed while it opened: there is another life to read on in.
            pass
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Stop reading; raises what reading has raised."""
        self._stop_reading.set()
        self.join()
        if self._error is not None:
            raise self._error
