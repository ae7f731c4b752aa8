"""A log with segments for the upkeep."""

from __future__ import annotations

from pathlib import Path

from pubsub.broker.routing.batch import Batch, Headers
from pubsub.kernel import Columns
from pubsub.settings import matcher
from pubsub.store.catalog.catalog import Horizon, set_horizons
from pubsub.store.commits.log_writer import LogWriter
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.opening.recovery import boot_id, recover
from pubsub.store.reading.log_reader import read_page
from pubsub.store.records.record import Begin, End
from pubsub.store.records.stored_runs import record_of
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.upkeep.expired_messages import ExpiredMessages, grain_of
from pubsub.store.upkeep.retention_limits import MICROSECONDS, RetentionLimits
from pubsub.store.upkeep.upkeep import Upkeep

NOW = 1_700_000_000 * MICROSECONDS


class Log:
    """A log that is open for writing, with its upkeep."""

    def __init__(
        self, path: Path, *limits: RetentionLimits, compress: bool = False, run: int = 7
    ) -> None:
        self.directory = LogDirectory(path, create=True)
        self.directory.lock()
        found = recover(self.directory)
        self.catalog = found.catalog
        self.metadata = found.metadata
        horizons = [Horizon(one.pattern, matcher([one.pattern])) for one in limits]
        set_horizons(self.catalog, horizons, self.metadata.horizons())
        grain = grain_of(limits)
        self.writer = LogWriter(self.directory, self.catalog, self.metadata, run, grain=grain)
        number = len(self.metadata.epochs()) + 1
        begin = Begin(number, 1, NOW, boot_id())
        self.writer.begin(found.offset, number, found.sequence, [begin], found.lost)
        self.next = found.offset
        self.expiry = ExpiredMessages(self.catalog, limits)
        self.upkeep = Upkeep(
            self.directory,
            self.catalog,
            self.metadata,
            self.writer,
            self.expiry,
            0 if found.clean else found.offset,
            grain,
            compress,
        )

    def put(
        self,
        *messages: tuple[str, bytes],
        age: int = 0,
        sender: bytes = b"me",
        headers: Headers | None = None,
    ) -> None:
        """Write messages, ``age`` seconds old, as one record; each has ``headers``."""
        topics = tuple(sorted({topic for topic, _ in messages}))
        columns = Columns.of(
            [payload for _, payload in messages], [topics.index(topic) for topic, _ in messages]
        )
        timestamp = NOW - age * MICROSECONDS
        own = None if headers is None else [headers] * columns.count
        batch = Batch(topics, columns, timestamp, self.next, sender, "toy", own, self.next)
        self.next += batch.count
        self.writer.write(WriteGroup([record_of(batch)]), sync=False)

    def end(self, topic: str) -> None:
        """End a topic."""
        self.catalog.end_topic(topic, self.next)
        self.expiry.end(topic, self.next)
        group = WriteGroup()
        group.end(End(topic, self.next))
        self.writer.write(group, sync=True)

    def seal(self) -> None:
        """Begin another segment."""
        self.writer._seal(self.next)
        self.writer._roll(self.next)
        self.writer.sync()

    def rest(self, now: int = NOW) -> None:
        """Do all steps that there are."""
        for _ in range(1000):
            if not self.upkeep.step(now):
                return
        raise AssertionError("upkeep does not end")

    def read(self, *topics: str) -> list[tuple[int, str, bytes]]:
        """Return the messages that can be read: offset, topic and payload."""
        found: list[tuple[int, str, bytes]] = []
        page = read_page(self.catalog, 0, frozenset(topics) or None, 2**30)
        assert not page.damaged
        for batch in page.batches:
            for index, run in batch.runs():
                found += [
                    (run.offset + place, batch.topics[index], payload)
                    for place, payload in enumerate(run.payloads())
                ]
        return found

    def messages(self) -> dict[int, tuple[object, ...]]:
        """Return everything about each message that can be read, by offset."""
        found: dict[int, tuple[object, ...]] = {}
        page = read_page(self.catalog, 0, None, 2**30)
        assert not page.damaged
        for batch in page.batches:
            for index, run in batch.runs():
                about = batch.topics[index], batch.timestamp, batch.sender, batch.protocol
                for place, payload in enumerate(run.payloads()):
                    headers = run.headers[place] if run.headers is not None else {}
                    identity = batch.run, run.sequence + place
                    found[run.offset + place] = (*about, *identity, payload, headers)
        return found

    def files(self) -> int:
        """Return the number of segments on disk."""
        assert set(self.directory.segments()) == {one.name for one in self.catalog.segments}
        return len(self.directory.segments())

    def close(self) -> None:
        """Close the log properly."""
        self.writer.close()
        self.metadata.close()
        self.directory.close()
