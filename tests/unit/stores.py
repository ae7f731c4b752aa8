"""The base of the tests of the durable history: stores on real files, and reading them."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from pubsub.broker.batch import Batch, Headers
from pubsub.store import commits
from pubsub.store.journal import Segment
from pubsub.store.retention import RetentionLimits
from pubsub.store.sqlite import SqliteOptions, SqliteStore
from pubsub.store.writer import Group
from tests.unit.fakes import scratch

RUN = 0xABCDEF


@dataclass(frozen=True)
class Stored:
    """One message as it was published or read."""

    offset: int
    topic: str
    payload: bytes
    headers: Headers | None = None


def messages(batches: Iterable[Batch]) -> list[Stored]:
    """The messages of ``batches``, with their offsets."""
    found = []
    for batch in batches:
        assert batch.nbytes == sum(map(len, batch.payloads()))
        for index, payload in enumerate(batch.payloads()):
            own = None if batch.headers is None else batch.headers[index]
            found.append(Stored(batch.offset + index, batch.topic, payload, own))
    return found


def keep_everything(**options: Any) -> SqliteOptions:
    """Options that expire nothing and commit at once."""
    return SqliteOptions(**{"interval": 0.0, "retention": (), **options})


def sql(path: Path, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a statement, on a connection of its own that may write."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        return connection.execute(statement, values).fetchall()
    finally:
        connection.close()


class StoreCase(TestCase):
    """A file, and a store on it that is closed after the test."""

    def setUp(self) -> None:
        self.path = scratch(self) / "state" / "history.db"
        self.store = self.open()

    def open(self, options: SqliteOptions | None = None) -> SqliteStore:
        """Return a store on the file."""
        store = SqliteStore(self.path, reactor, options or keep_everything())
        store.open(RUN)
        self.store = store
        return store

    def tearDown(self) -> Deferred[None]:  # type: ignore[override]
        return self.store.close()

    async def reopen(self, options: SqliteOptions | None = None) -> SqliteStore:
        """Open the same file with another store."""
        await self.store.close()
        return self.open(options)

    async def put(self, *batches: Batch) -> None:
        """Append and wait until the messages are in the file."""
        for batch in batches:
            self.store.append(batch)
        assert await self.stored()
        await self.filed()

    async def one_each(self, *batches: Batch) -> None:
        """Append each batch as a block of its own."""
        for batch in batches:
            await self.put(batch)

    def stored(self) -> Deferred[bool]:
        """Fires when everything appended so far is on disk, or has failed."""
        done: Deferred[bool] = Deferred()
        self.store.when_stored(done.callback)
        return done

    def filed(self) -> Deferred[None]:
        """Fires when everything committed so far is in the file."""
        done: Deferred[None] = Deferred()
        self.store._commits.when_filed(partial(done.callback, None))
        return done

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` is true, at most for the time limit of the test."""
        while not condition():
            await deferLater(reactor, 0.01)

    async def read(
        self,
        offset: int = 0,
        topics: Iterable[str] | None = None,
        nbytes: int = 1000,
        cold: bool = False,
    ) -> list[Stored]:
        """All pages from ``offset`` on; ``cold`` reads them from the file."""
        names = None if topics is None else frozenset(topics)
        found: list[Batch] = []
        end = self.store.committed
        if cold:
            await self.filed()
            self.forget_recent()
        while offset < end:
            page = await self.store.read(offset, names, nbytes)
            assert page.next_offset > offset
            offset = page.next_offset
            found += page.batches
        return messages(found)

    def forget_recent(self) -> None:
        """Remove the runs from memory, so that the file is read."""
        log = self.store._log
        log._runs, log._head, log._bytes = [], 0, 0


class JournalCase(StoreCase):
    """A store that writes groups of the journal to the file only on request"""

    def setUp(self) -> None:
        self.patch(commits, "LAG", 30.0)  # type: ignore[no-untyped-call]
        super().setUp()

    async def commit(self, *given: Batch) -> None:
        """Append each batch and wait for its acknowledgment."""
        for batch in given:
            self.store.append(batch)
            assert await self.stored()

    def hold(self) -> Event:
        """Make the thread that writes the file wait for the event that is returned."""
        free, commit = Event(), self.store._writer.commit

        def held(group: Group | None, segment: Segment) -> None:
            free.wait()
            commit(group, segment)

        self.patch(self.store._writer, "commit", held)  # type: ignore[no-untyped-call]
        return free

    def crashed(self) -> Path:
        """Copy the files as a crash would leave them now."""
        directory = scratch(self)
        for file in self.path.parent.glob(f"{self.path.name}*"):
            shutil.copy(file, directory)
        return directory / self.path.name

    async def after(self, path: Path) -> tuple[list[Stored], tuple[tuple[int, int], ...]]:
        """Return the messages that the next broker finds in such files, and the damaged ranges."""
        store = SqliteStore(path, reactor, keep_everything())
        store.open(RUN)
        try:
            page = await store.read(0, None, 10**6)
            assert page.next_offset == store.next_offset == store.committed
        finally:
            await store.close()
        return messages(page.batches), page.damaged


def limits(**given: float) -> tuple[RetentionLimits, ...]:
    """One rule for every topic."""
    return (RetentionLimits("*", **given),)
