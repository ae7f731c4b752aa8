"""A reader that continues through all of the broker's crashes, as another process would."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from pubsub.errors import StartError
from pubsub.store.opening.epochs import continues
from pubsub.store.reading.log_reader import read_page
from pubsub.store.reading.log_view import LogView

_PAUSE = 0.01


class Reader:
    """Reads the history from its beginning and checks that no offset comes to mean another message.

    ``offsets`` has the offset of each message, without trailing blanks; ``damaged`` the ranges that
    were reported as lost. Raises AssertionError for a broken promise.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._epoch: str | None = None
        self.position = 0
        self.offsets: dict[bytes, int] = {}
        self.damaged: list[tuple[int, int]] = []
        self.epoch_changes = 0
        """How often the epochs showed that its position was not valid any more."""

    def read(self, stop: Callable[[], bool]) -> None:
        """Read until ``stop`` returns true; if it does so at once, read to the present end."""
        with closing(LogView(self._path)) as view:
            self._check_epoch(view.epochs)
            while True:
                last = stop()
                while self._page(view):
                    pass
                if last:
                    return
                threading.Event().wait(_PAUSE)

    def _check_epoch(self, known: list[tuple[str, int]]) -> None:
        """Go back to the last position that is valid in this epoch."""
        if self._epoch is not None and not continues(known, self._epoch, self.position):
            names = [name for name, _ in known]
            good = known[names.index(self._epoch) + 1][1] if self._epoch in names else 0
            self.epoch_changes += 1
            self.position = good
            self.offsets = {p: offset for p, offset in self.offsets.items() if offset < good}
            self.damaged = [d for d in self.damaged if d[1] <= good]
        self._epoch = known[-1][0]

    def _page(self, view: LogView) -> bool:
        position = self.position
        page = view.read(lambda catalog: read_page(catalog, position, None, 2**20))
        spans = [(batch.offset, batch.offset + batch.count) for batch in page.batches]
        at = position
        for start, end in sorted([*spans, *page.damaged]):
            assert start == at, f"{at} to {start} are missing"
            at = end
        assert at == page.next_offset or not spans, f"{at} to {page.next_offset} are missing"
        self.damaged += page.damaged
        for batch in page.batches:
            for offset, payload in enumerate(batch.payloads(), batch.offset):
                name = payload.rstrip()
                assert name not in self.offsets, f"{name!r} is there twice"
                self.offsets[name] = offset
        self.position = page.next_offset
        return page.next_offset > position


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
        except (sqlite3.Error, StartError, OSError):
            # The broker was killed while it opened the log; the next broker continues it.
            pass
        except BaseException as error:
            self._error = error

    def finish(self) -> None:
        """Stop reading. Raises the error of the reading."""
        self._stop_reading.set()
        self.join()
        if self._error is not None:
            raise self._error
