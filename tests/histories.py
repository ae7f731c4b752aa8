"""Histories that are written without a broker."""

from __future__ import annotations

import os
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch
from zlib import crc32

from pubsub.broker.routing.batch import Batch, Headers
from pubsub.kernel import Columns
from pubsub.store.commits.log_writer import LogWriter
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.opening.recovery import boot_id, recover
from pubsub.store.records import record
from pubsub.store.records.record import Begin, End, Put
from pubsub.store.records.stored_runs import RunRecord, record_of
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.segments.segment import SEGMENT_HEAD_BYTES, read_head
from pubsub.store.segments.segment_scan import scan

RUN = 0x123456789ABCDE
START = 1_700_000_000_000_000
"""The timestamp of the first message; each batch is a millisecond later."""


class BatchWriter(ABC):
    """Writes batches to a history that continues at the offset ``next``."""

    next: int
    start: int
    """The timestamp (µs) of the message 0."""

    @abstractmethod
    def write_runs(self, base: int, runs: Sequence[RunRecord]) -> None:
        """Write runs that begin at the offset ``base`` as one record of the history."""

    def put(self, topic: str, payloads: Sequence[bytes], **more: Any) -> None:
        """Append a batch, made as by ``batch``, as a record of its own."""
        self.put_all([self.batch(topic, payloads, **more)])

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
        """Append batches, which get the next offsets, as one record."""
        base, runs = self.next, []
        for batch in batches:
            batch.offset = batch.sequence = self.next
            batch.timestamp = self.start + 1000 * (self.next // 1000)
            runs.append(record_of(batch))
            self.next += batch.count
        self.write_runs(base, runs)


class History(BatchWriter):
    """A log that is open for writing."""

    def __init__(self, path: Path, start: int) -> None:
        self.start = start
        self.directory = LogDirectory(path, create=True)
        self.directory.lock()
        found = recover(self.directory)
        self.catalog, self.metadata = found.catalog, found.metadata
        self.next = found.offset
        self.writer = LogWriter(self.directory, self.catalog, self.metadata, RUN, lambda: start)
        number = len(self.metadata.epochs()) + 1
        begin = Begin(number, secrets.randbits(32), start, boot_id())
        self.writer.begin(found.offset, number, found.sequence, [begin], found.lost)
        self.epoch = self.metadata.epochs()[-1].name

    def write_runs(self, base: int, runs: Sequence[RunRecord]) -> None:
        """See ``BatchWriter``: as one record."""
        self.writer.write(WriteGroup(list(runs)), sync=False)

    def expire(self, before: int) -> None:
        """Let the messages before an offset expire, as retention does."""
        self.metadata.set_horizons([("*", before)])

    def end(self, topic: str, sync: bool = True) -> None:
        """End a topic."""
        group = WriteGroup()
        group.end(End(topic, self.next))
        self.writer.write(group, sync)

    def store(self, table: str, key: str, value: bytes | None) -> None:
        """Store a value of the metadata."""
        self.writer.write(WriteGroup(puts={(table, key): Put(table, key, value)}), sync=True)

    def close(self, properly: bool = True) -> None:
        """Close the log, or only its files as the end of the process does."""
        if properly:
            self.writer.close()
        self.metadata.close()
        self.directory.close()


def history(path: Path, start: int = START) -> closing[History]:
    """Open or create a log, in a new epoch; timestamps begin at ``start`` (µs)."""
    return closing(History(path, start))


def damage(path: Path, base: int) -> None:
    """Damage the record with messages that begins at the offset ``base``."""
    for name in sorted(path.glob("*.log")):
        with name.open("r+b") as file:
            salt = read_head(file.fileno()).salt
            for found in scan(file.fileno(), SEGMENT_HEAD_BYTES, salt):
                if found.head.base == base and found.head.count:
                    file.seek(found.position + found.head.length - 1)
                    file.write(bytes([found.data[-1] ^ 1]))
                    return
    raise AssertionError(f"no record begins at {base}")


def of_later_version(path: Path) -> bytes:
    """Give a segment the version 2, with the right checksum; return its bytes."""
    data = bytearray(path.read_bytes())
    data[8] = 2
    data[56:60] = crc32(data[:56]).to_bytes(4, "little")
    path.write_bytes(data)
    return bytes(data)


@contextmanager
def with_unknown_operation() -> Iterator[None]:
    """Add an operation with a code that no version has to those of each record that has some."""
    known = record.encode_operations

    def encode(operations: Iterable[record.Operation]) -> bytes:
        data = known(operations)
        return data + b"\x09" + data if data else data

    with patch.object(record, "encode_operations", encode):
        yield


def fill(path: Path, messages: int, size: int = 100, topics: int = 10, a_batch: int = 500) -> None:
    """Write different messages of one size to topics in turn, in records of 20 batches."""
    # Retention would remove old messages.
    now = time.time_ns() // 1000 - messages
    with history(path, now) as file:
        batches = (
            file.batch(f"bench/{number % topics}", _random(min(a_batch, messages - at), size))
            for number, at in enumerate(range(0, messages, a_batch))
        )
        while some := list(islice(batches, 20)):
            file.put_all(some)


def fill_mixed(path: Path, messages: int, size: int, topics: int, a_batch: int = 500) -> None:
    """Write messages of 1 to 2 * ``size`` bytes to topics in turn, in batches of mixed topics."""
    now = time.time_ns() // 1000 - messages
    draw = Random(0)
    with history(path, now) as file:
        for at in range(0, messages, 20 * a_batch):
            count = min(20 * a_batch, messages - at)
            payloads = [os.urandom(draw.randint(1, 2 * size)) for _ in range(count)]
            file.put_all(
                file.batch(f"bench/{number}", payloads[number::topics])
                for number in range(min(topics, count))
            )


def _random(count: int, size: int) -> list[bytes]:
    """Return payloads that cannot be compressed."""
    data = os.urandom(count * size)
    return [data[at : at + size] for at in range(0, count * size, size)]
