"""History files that are written without a broker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
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

    def expire(self, before: int) -> None:
        """Remove the blocks that end before an offset, as retention does."""
        self.connection.execute("DELETE FROM contents WHERE base < ?", (before,))
        self.connection.execute("DELETE FROM blocks WHERE base < ?", (before,))

    def damage(self, base: int) -> None:
        """Damage the block that begins at an offset."""
        self.connection.execute("UPDATE blocks SET crc = crc + 1 WHERE base = ?", (base,))


@contextmanager
def history(path: Path, start: int = START) -> Iterator[History]:
    """Open or create a file, in a new epoch; timestamps begin at ``start`` (µs)."""
    made = History(path, start)
    try:
        yield made
    finally:
        made.connection.close()


def fill(path: Path, messages: int, size: int = 100, topics: int = 10, a_batch: int = 500) -> None:
    """Write different messages of one size to topics in turn, in blocks of 20 batches."""
    # Retention would remove old messages.
    now = time.time_ns() // 1000 - messages
    with history(path, now) as file:
        file.connection.execute("PRAGMA synchronous = OFF")
        batches = (
            file.batch(f"bench/{number % topics}", _random(min(a_batch, messages - at), size))
            for number, at in enumerate(range(0, messages, a_batch))
        )
        while some := list(islice(batches, 20)):
            file.put_all(some)


def _random(count: int, size: int) -> list[bytes]:
    """Return payloads that cannot be compressed."""
    data = os.urandom(count * size)
    return [data[at : at + size] for at in range(0, count * size, size)]
