"""Migration of histories of version 0.1 to logs."""

from __future__ import annotations

import fcntl
import os
import shutil
import sqlite3
import struct
from pathlib import Path
from zlib import crc32

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.trial.unittest import TestCase

from pubsub.broker.routing.batch import Page
from pubsub.errors import StartError
from pubsub.store.log_options import LogOptions
from pubsub.store.log_store import LogStore
from pubsub.store.migration import sqlite_migration
from pubsub.store.migration.sqlite_history import JOURNALS, checksum
from pubsub.store.migration.sqlite_migration import migrate
from pubsub.store.reading.log_view import LogView
from pubsub.store.records.block import encode_block
from pubsub.store.records.stored_runs import record_of
from pubsub.store.upkeep.segment_builder import SegmentBuilder
from tests.histories import RUN, START
from tests.sqlite_histories import history
from tests.unit.fakes import scratch
from tests.unit.raising import raised
from tests.unit.streams import logged

ENDED = "\0" * 256
"""The names of topics that have ended begin with this in the old file."""


class MigrationTests(TestCase):
    """A log has the messages of the old file, at the same offsets"""

    def setUp(self) -> None:
        directory = scratch(self)
        self.old = directory / "history.db"
        self.new = directory / "history"
        self.store: LogStore | None = None

    async def open(self) -> LogStore:
        """Start a store where the old file is, and the log is not."""
        self.store = LogStore(self.new, reactor, LogOptions(retention=()), migrate_from=self.old)
        self.store.open(1)
        return self.store

    def tearDown(self) -> Deferred[None] | None:  # type: ignore[override]
        return None if self.store is None else self.store.close()

    async def page(self) -> Page:
        assert self.store is not None
        return await self.store.read(0, None, 2**30)

    async def payloads(self) -> list[tuple[int, str, list[bytes]]]:
        """Return offset, topic and payloads of each run."""
        return [(one.offset, one.topic, one.payloads()) for one in (await self.page()).batches]

    async def test_the_new_name_is_on_disk_before_anything_is_written_under_it(self) -> None:
        with history(self.old) as old:
            old.put("a", [b"1"])
        synced: list[tuple[str, list[str]]] = []
        fsync = os.fsync

        def note(file: int) -> None:
            names = sorted(os.listdir(self.new)) if self.new.exists() else []
            synced.append((os.readlink(f"/proc/self/fd/{file}"), names))
            fsync(file)

        self.patch(os, "fsync", note)  # type: ignore[no-untyped-call]
        await self.open()
        (names,) = [names for path, names in synced if names and path == str(self.new.parent)]
        assert sum(name.endswith(".log") for name in names) == 1

    async def test_messages_epochs_and_metadata(self) -> None:
        with history(self.old) as old:
            old.put("a", [b"1", b"22"], protocol="nsd", sender=b"ann", headers=[{"k": b"v"}, {}])
            old.put("b", [b""])
            epoch = old.epoch
            old.connection.execute("INSERT INTO metadata VALUES ('t', 'k', x'01')")
        store = await self.open()
        assert await self.payloads() == [(0, "a", [b"1", b"22"]), (2, "b", [b""])]
        (first, _) = (await self.page()).batches
        assert (first.sender, first.protocol, first.sequence) == (b"ann", "nsd", 0)
        assert list(first.headers or ()) == [{"k": b"v"}, {}]
        assert store.items("t") == (("k", b"\1"),)
        assert store.continues(epoch, 3)
        assert not store.continues(epoch, 4)
        assert store.next_offset == 3
        assert self.old.exists()
        assert "not closed" not in store.summary

    async def test_the_log_is_made_once(self) -> None:
        with history(self.old) as old:
            old.put("a", [b"1"])
        await (await self.open()).close()
        with history(self.old):
            pass
        lines = logged(self)
        await (await self.open()).close()
        assert not [line for line in lines if "since" in line]
        with history(self.old) as old:
            old.put("a", [b"2"])
        await self.open()
        assert await self.payloads() == [(0, "a", [b"1"])]
        (line,) = [line for line in lines if "since it was migrated" in line]
        assert f"{self.old} since it was migrated: its messages from offset 1 on" in line
        assert f"are not in {self.new};" in line

    async def test_expired_messages_do_not_come_back(self) -> None:
        with history(self.old) as old:
            for _ in range(3):
                old.put_all([old.batch("a", [b"1"]), old.batch("b", [b"2"])])
            old.connection.execute("DELETE FROM blocks WHERE base = 0")
            old.connection.execute("DELETE FROM contents WHERE base = 0")
            old.connection.execute("DELETE FROM contents WHERE base = 2 AND topic = 1")
            old.connection.execute("UPDATE topics SET name = ? WHERE name = 'b'", (f"{ENDED}2",))
        store = await self.open()
        assert await self.payloads() == [(4, "a", [b"1"])]
        assert store.first_offset == 2
        assert store.next_offset == 6

    async def test_damage_and_losses(self) -> None:
        with history(self.old) as old:
            for number in range(4):
                old.put("a", [b"%d" % number])
            old.connection.execute("UPDATE blocks SET payloads = x'00' WHERE base = 1")
            old.connection.execute("DELETE FROM blocks WHERE base = 2")
        lines = logged(self)
        await self.open()
        assert (await self.page()).damaged == ((1, 2), (2, 3))
        assert [offset for offset, _, _ in await self.payloads()] == [0, 3]
        assert sum("are migrated as lost" in line for line in lines) == 2

    async def test_messages_that_are_only_in_a_journal(self) -> None:
        with history(self.old) as old:
            old.put("a", [b"0"])
            data = b""
            for number in (1, 2):
                batch = old.batch("a", [b"%d" % number])
                batch.offset = batch.sequence = number
                piece = encode_block([record_of(batch)], RUN, number, number + 1)
                columns = (
                    piece.names, piece.runs, piece.lengths, piece.headers, bytes(piece.payloads),
                )  # fmt: skip
                head = struct.pack(
                    "<24s8sqIqqqI5I", old.epoch.encode(), b"salt" * 2, number, piece.count,
                    piece.first, piece.last, piece.run, crc32(b"salt" * 2, checksum(piece)),
                    *map(len, columns),
                )  # fmt: skip
                data += head + b"".join(columns)
            Path(f"{self.old}{JOURNALS[1]}").write_bytes(data + bytes(500))
        store = await self.open()
        assert [payloads for _, _, payloads in await self.payloads()] == [[b"0"], [b"1"], [b"2"]]
        assert store.next_offset == 3

    def interrupt(self) -> list[int]:
        """Have a migration fail after two segments; return the bases of these and later ones."""
        with history(self.old) as old:
            for _ in range(40):
                old.put("a", [bytes(100_000)])
        self.patch(sqlite_migration, "SEGMENT_BYTES", 300_000)  # type: ignore[no-untyped-call]
        bases: list[int] = []
        original = SegmentBuilder.sync

        def sync(builder: SegmentBuilder) -> None:
            bases.append(builder._head.base)
            if len(bases) == 3:
                raise OSError(28, "No space left on device")
            original(builder)

        self.patch(SegmentBuilder, "sync", sync)  # type: ignore[no-untyped-call]
        raised(OSError, migrate, self.old, self.new, lambda *_: None)
        assert not self.new.exists()
        return bases

    async def test_it_continues_where_it_was_interrupted(self) -> None:
        bases = self.interrupt()
        await self.open()
        assert bases[3] == bases[2]
        assert len(bases) == len(set(bases)) + 1
        assert [offset for offset, _, _ in await self.payloads()] == list(range(40))

    async def test_it_begins_again_after_the_old_version_was_started_again(self) -> None:
        bases = self.interrupt()
        with history(self.old) as old:
            old.put("a", [b"later"])
            # The messages behind the segments that are complete are in a block that begins earlier.
            old.join(bases[2] - 1)
        lines = logged(self)
        await self.open()
        assert bases[3] == 0
        assert sum("version 0.1 has been started since" in line for line in lines) == 1
        assert [offset for offset, _, _ in await self.payloads()] == list(range(41))

    async def test_messages_of_another_file_are_not_kept(self) -> None:
        """A migration of a wrong file was ended, and that of the right one has the same target."""
        self.interrupt()
        self.old = self.old.with_name("other.db")
        with history(self.old, START + 1) as old:
            for _ in range(20):
                old.put("b", [b"other"])
        lines = logged(self)
        await self.open()
        assert await self.payloads() == [(offset, "b", [b"other"]) for offset in range(20)]
        assert sum("and begun anew" in line for line in lines) == 1
        assert len([name for name in os.listdir(self.new) if name.endswith(".log")]) == 2

    async def test_the_metadata_of_an_interrupted_one_is_damaged(self) -> None:
        for content in (b"", b"no database" * 1000):
            building = self.new.with_name("history.migrating")
            building.mkdir()
            for name in ("metadata.db", "metadata.db-wal"):
                (building / name).write_bytes(content)
            with history(self.old) as old:
                old.put("a", [b"1"])
            migrate(self.old, self.new, lambda *_: None)
            assert not building.exists()
            view = LogView(self.new)
            assert view.refresh().segments[-1].stop == old.next
            view.close()
            shutil.rmtree(self.new)

    def test_files_that_cannot_be_migrated(self) -> None:
        self.old.write_bytes(b"no database" * 100)
        assert "cannot migrate" in str(raised(StartError, migrate, self.old, self.new, print))
        self.old.unlink()
        sqlite3.connect(self.old).close()
        assert "not a history" in str(raised(StartError, migrate, self.old, self.new, print))

    def test_a_broker_that_still_runs(self) -> None:
        with history(self.old):
            pass
        with Path(f"{self.old}-lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            assert "in use" in str(raised(StartError, migrate, self.old, self.new, print))
