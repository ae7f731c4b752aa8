"""History files of version 0.1 that are written without a broker."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pubsub.broker.batch import Batch, Headers
from pubsub.kernel import Columns
from pubsub.store.block import encode_block
from pubsub.store.merge import insert_block
from pubsub.store.schema import begin_epoch, open_writer
from pubsub.store.stored_runs import record_of, topics_of

RUN = 0x123456789ABCDE
START = 1_700_000_000_000_000
"""The timestamp of the first message; each batch is a millisecond later."""


class History:
    """A history file that is open for writing."""

    def __init__(self, path: Path, start: int) -> None:
        self._start = start
        self.connection = open_writer(path)
        (self.next,) = self.connection.execute("SELECT next FROM state").fetchone()
        self.epoch = begin_epoch(self.connection)

    def put(
        self,
        topic: str,
        payloads: Sequence[bytes],
        protocol: str = "cafe",
        sender: bytes = b"tester",
        headers: Sequence[Headers] | None = None,
    ) -> None:
        """Append one batch as a block of its own."""
        self.put_all([self.batch(topic, payloads, protocol, sender, headers)])

    def batch(
        self,
        topic: str,
        payloads: Sequence[bytes],
        protocol: str = "cafe",
        sender: bytes = b"tester",
        headers: Sequence[Headers] | None = None,
    ) -> Batch:
        """Return a batch; ``put_all`` assigns its offset."""
        return Batch((topic,), Columns.of(list(payloads)), 0, 0, sender, protocol, headers)

    def put_all(self, batches: Iterable[Batch]) -> None:
        """Append batches as one block."""
        base, runs = self.next, []
        for batch in batches:
            batch.offset = batch.sequence = self.next
            batch.timestamp = self._start + 1000 * (self.next // 1000)
            runs.append(record_of(batch))
            self.next += batch.count
        block = encode_block(runs, RUN, base, self.next)
        execute = self.connection.execute
        execute("BEGIN IMMEDIATE")
        insert_block(self.connection, block)
        for name, (number, nbytes) in topics_of(runs).items():
            execute("INSERT OR IGNORE INTO topics (name) VALUES (?)", (name,))
            execute(
                "INSERT INTO contents SELECT ?, id, ?, ? FROM topics WHERE name = ?",
                (base, number, nbytes, name),
            )
        execute("UPDATE state SET next = ?", (self.next,))
        execute("COMMIT")


@contextmanager
def history(path: Path, start: int = START) -> Iterator[History]:
    """Open or create a file, in a new epoch; timestamps begin at ``start`` (µs)."""
    made = History(path, start)
    try:
        yield made
    finally:
        made.connection.close()
