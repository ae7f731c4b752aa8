"""LogStore: messages are on disk when that is reported, and can be read again."""

from __future__ import annotations

import errno
import gc
import os
import sqlite3
import stat
from contextlib import closing
from functools import partial
from typing import Any
from unittest import mock

import pytest

from pubsub.broker.routing.batch import Page
from pubsub.errors import HistoryUnavailable, StartError
from pubsub.store.commits import commit_state_machine, log_writer
from pubsub.store.commits.commit_gate import MAX_UNWRITTEN
from pubsub.store.commits.metadata_copy import MetadataCopy
from pubsub.store.log_store import LogStore
from pubsub.store.metadata import metadata
from pubsub.store.metadata.metadata import LogState, Metadata
from pubsub.store.reading import log_reader
from pubsub.store.records.block import decode_block
from pubsub.store.segments.log_directory import RESERVE, check_free
from pubsub.store.shared_store import SharedStore
from pubsub.store.upkeep.retention_limits import RetentionLimits
from tests.unit.fakes import Held, batch_of, mixed_batch, open_files
from tests.unit.logs import RUN, StoreCase, keep_everything, messages
from tests.unit.raising import raised, sqlite_error
from tests.unit.streams import logged


class WriteTests(StoreCase):
    """Appending"""

    def test_offsets_are_given_at_once_and_in_order(self) -> None:
        first, second = batch_of([b"a", b"b"]), batch_of([b"c"])
        self.store.append(first)
        self.store.append(second)
        assert (first.offset, second.offset) == (0, 2)
        assert (self.store.next_offset, self.store.committed) == (3, 0)

    async def test_acknowledged_messages_survive_a_crash(self) -> None:
        await self.put(batch_of([b"1", b""], "a", [{"k": b"v"}, {}]), batch_of([b"22"], "b"))
        await self.put(mixed_batch([("a", b"x"), ("b", b"y")], ("a", "b")))
        found, damaged = await self.after(self.crashed())
        assert found == await self.read() == await self.read(cold=True)
        assert damaged == ()

    async def test_callbacks_are_called_in_order(self) -> None:
        called: list[str] = []
        self.store.append(batch_of([b"1"]))
        self.store.when_stored(lambda ok: called.append(f"1 {ok}"))
        self.store.append(batch_of([b"2"]))
        self.store.when_stored(lambda ok: called.append(f"2 {ok}"))
        await self.stored()
        assert called == ["1 True", "2 True"]
        assert self.successResultOf(self.stored()) is True

    async def test_publishers_wait_while_too_much_does(self) -> None:
        held = Held()
        self.store.append(batch_of([b"x" * MAX_UNWRITTEN]))
        assert self.store.gate.shut
        self.store.gate.wait(held)
        assert held.reasons
        await self.stored()
        assert not self.store.gate.shut
        assert not held.reasons

    async def test_a_batch_that_cannot_be_kept_leaves_no_hole(self) -> None:
        nameless: Any = {None: b""}
        with pytest.raises(AttributeError):
            self.store.append(batch_of([b"bad"], headers=[nameless]))
        await self.put(batch_of([b"2"]))
        assert [(m.offset, m.payload) for m in await self.read()] == [(0, b"2")]


class RestartTests(StoreCase):
    """Opening the same directory again"""

    async def test_offsets_go_on(self) -> None:
        await self.put(batch_of([b"a", b"b"]))
        await self.reopen()
        assert (self.store.first_offset, self.store.next_offset) == (0, 2)
        assert str(self.path) in self.store.summary
        assert "offsets 0 to 2" in self.store.summary
        assert "not closed" not in self.store.summary
        await self.put(batch_of([b"c"]))
        assert [m.payload for m in await self.read()] == [b"a", b"b", b"c"]

    async def test_the_last_messages_are_committed_on_closing(self) -> None:
        self.store.append(batch_of([b"last"]))
        await self.reopen()
        assert [m.payload for m in await self.read()] == [b"last"]

    async def test_a_rewrite_that_is_not_complete_leaves_nothing(self) -> None:
        """Later its file would be looked for in a directory that is closed, or in another."""
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        await self.one_each(*[batch_of([bytes(300_000)]) for _ in range(9)])
        upkeep = self.store._upkeep
        assert upkeep is not None
        while not list(self.path.glob("*.new")):
            assert upkeep.step(0)
        await self.store.close()
        left = [*self.path.glob("*.new")]
        self.open()
        assert not left
        assert len(await self.read()) == 9

    async def test_positions_of_earlier_epochs(self) -> None:
        first = self.store.epoch
        await self.put(batch_of([b"1"]))
        await self.reopen()
        assert self.store.epoch != first
        assert self.store.continues(first, 1)
        assert not self.store.continues(first, 2)
        assert self.store.continues(self.store.epoch, 1)
        assert not self.store.continues("", 0)

    async def test_positions_are_valid_while_sqlite_cannot_write(self) -> None:
        """On a full disk the log may have room for the new epoch where SQLite has none."""
        await self.put(batch_of([b"1"]))
        await self.store.close()

        with mock.patch.object(MetadataCopy, "apply", return_value=False):
            self.open()
        assert self.store.continues(self.store.epoch, 0)
        assert self.store.continues(self.store.epoch, 1)
        await self.put(batch_of([b"2"]))
        second = self.store.epoch
        await self.reopen()
        assert self.store.continues(second, 2)
        assert not self.store.continues(second, 3)

    async def test_metadata_comes_back(self) -> None:
        self.store.put("t", "a", b"1")
        self.store.put("t", "b", lambda: b"2")
        self.store.put("t", "c", b"3")
        self.store.put("u", "a", b"4")
        await self.stored()
        self.store.delete("t", "a")
        self.store.put("t", "c", b"5")
        await self.reopen()
        assert sorted(self.store.items("t")) == [("b", b"2"), ("c", b"5")]
        assert list(self.store.items("u")) == [("a", b"4")]
        assert list(self.store.items("none")) == []

    async def test_the_last_timestamp_is_that_of_the_last_message(self) -> None:
        batch = batch_of([b"x"])
        await self.put(batch)
        for _ in range(3):
            # The newest segment has no messages after a restart.
            await self.reopen()
            assert self.store.last_timestamp == batch.timestamp

    async def test_a_topic_that_ended_has_no_past(self) -> None:
        await self.put(batch_of([b"old"], "t"), batch_of([b"other"], "u"))
        self.store.append(batch_of([b"older"], "t"))
        self.store.forget("t")
        self.store.append(batch_of([b"new"], "t"))
        assert [m.payload for m in await self.read()] == [b"other"]
        await self.stored()
        for cold in (False, True):
            found = [m.payload for m in await self.read(topics=["t"], cold=cold)]
            assert found == [b"new"], cold
        await self.reopen()
        assert [m.payload for m in await self.read()] == [b"other", b"new"]

    async def test_a_topic_that_ended_among_others_of_a_read(self) -> None:
        sent = [("abc"[place], b"%d" % number) for number, place in enumerate([0, 1, 2, 2, 1, 0])]
        await self.put(mixed_batch(sent, ("a", "b", "c")))
        self.store.forget("b")
        await self.put(batch_of([b"new"], "b"))
        await self.stored()
        wanted = [(0, b"0"), (2, b"2"), (3, b"3"), (5, b"5"), (6, b"new")]
        for cold in (False, True):
            found = await self.read(cold=cold)
            assert [(m.offset, m.payload) for m in found] == wanted, cold
            some = await self.read(topics=["b", "c"], cold=cold)
            assert [(m.offset, m.payload) for m in some] == [wanted[i] for i in (1, 2, 4)], cold


class ModeTests(StoreCase):
    """Permissions and locks"""

    async def test_other_users_may_not_read_it(self) -> None:
        await self.put(batch_of([b"x"]))
        for name in os.listdir(self.path):
            assert stat.S_IMODE((self.path / name).stat().st_mode) & 0o077 == 0, name

    async def test_a_second_broker_is_refused(self) -> None:
        for kind in (LogStore, SharedStore):
            second = kind(self.path, self.store._reactor)
            await second.close()
            reason = str(raised(StartError, second.open, RUN))
            assert f"in use by another broker (process {os.getpid()})" in reason
            await second.close()

    async def test_a_locked_directory_is_found_without_locking_it(self) -> None:
        reason = str(raised(StartError, check_free, self.path))
        assert f"in use by another broker (process {os.getpid()})" in reason
        await self.store.close()
        check_free(self.path)
        self.open()

    def test_nothing_is_said_of_a_directory_that_is_not_there(self) -> None:
        missing = self.path / "none"
        check_free(missing)
        assert not missing.exists()


class ReadTests(StoreCase):
    """Pages and ranges"""

    async def test_readers_see_committed_messages_and_subscribers_see_all(self) -> None:
        await self.put(batch_of([b"a"]))
        self.store.append(batch_of([b"b"]))
        shown = await self.store.read(0, None, 1000)
        fresh = await self.store.read(0, None, 1000, fresh=True)
        assert [m.payload for m in messages(shown.batches)] == [b"a"]
        assert [m.payload for m in messages(fresh.batches)] == [b"a", b"b"]
        assert (shown.next_offset, fresh.next_offset) == (1, 2)

    async def test_at_the_end_there_is_nothing_yet(self) -> None:
        assert await self.store.read(0, None, 100) == Page([], 0)
        await self.put(batch_of([b"x"]))
        for _ in range(2):
            assert await self.store.read(1, None, 100) == Page([], 1)
            self.forget_recent()

    async def test_a_page_ends_within_a_record(self) -> None:
        await self.put(*[batch_of([b"x" * 1000]) for _ in range(20)])
        self.forget_recent()
        page = await self.store.read(3, None, 5000)
        assert [batch.offset for batch in page.batches] == [3, 4, 5, 6]
        assert page.next_offset == 7

    async def test_topics_are_found_far_away(self) -> None:
        for number in range(200):
            self.store.append(batch_of([b"%d" % number], f"many/{number}"))
        await self.put(batch_of([b"rare"], "rare"))
        assert [m.payload for m in await self.read(topics=["rare"], cold=True)] == [b"rare"]
        names = [f"many/{number}" for number in range(100, 200)]
        found = await self.read(topics=names, cold=True)
        assert [m.offset for m in found] == list(range(100, 200))

    async def test_ranges_topics_and_times(self) -> None:
        for stamp, (payload, topic) in enumerate([(b"1", "a"), (b"2", "b"), (b"3", "a")]):
            batch = batch_of([payload], topic)
            batch.timestamp = 1000 * stamp + 1000
            await self.put(batch)
        self.forget_recent()
        parcel = await self.store.read_parcel(1, 3, frozenset("a"), 100)
        runs = [run for block, names in parcel.blocks for run in decode_block(block, names)]
        assert [run.batch().payloads() for run in runs] == [[b"3"]]
        assert (await self.store.topics_in(0, 3)).keys() == {"a", "b"}
        assert (await self.store.topics_in(1, 2)).keys() == {"b"}
        assert [await self.store.offset_at(at) for at in (0, 2000, 2001, 3001)] == [0, 1, 2, 3]

    async def test_expired_messages_are_not_read_from_memory(self) -> None:
        await self.reopen(keep_everything(retention=(RetentionLimits("a", messages=1),)))
        await self.one_each(*[batch_of([name.encode()], name) for name in "abab"])
        self.store._catalog.horizons[0].offset = 2
        for topics, offsets in ((None, [1, 2, 3]), (["a"], [2]), (["b"], [1, 3])):
            assert [m.offset for m in await self.read(topics=topics)] == offsets
        parcel = await self.store.read_parcel(0, 4, frozenset("a"), 100)
        assert [block.base for block, _ in parcel.blocks] == [2]

    async def test_segments_that_are_replaced_while_they_are_read(self) -> None:
        await self.put(batch_of([b"1"], "a"))
        self.forget_recent()
        for name in ("read_page", "read_parcel", "offset_at", "topics_in"):
            self.lose_a_segment_once(name)
        assert [m.payload for m in await self.read()] == [b"1"]
        assert (await self.store.read_parcel(0, 1, None, 100)).stop == 1
        assert await self.store.offset_at(0) == 0
        assert (await self.store.topics_in(0, 1)).keys() == {"a"}

    def lose_a_segment_once(self, name: str) -> None:
        """Let the next call of a function of ``log_reader`` fail as if upkeep removed a segment."""
        real = getattr(log_reader, name)
        calls = []

        def fail_first(*given: object) -> object:
            calls.append(name)
            if len(calls) == 1:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return real(*given)

        self.patch(log_reader, name, fail_first)


class FullTests(StoreCase):
    """A disk that cannot be written"""

    def setUp(self) -> None:
        self.patch(commit_state_machine, "RETRY_SECONDS", 0.02)
        super().setUp()
        self.real = os.pwritev

    def fill(self) -> None:
        """Let every write fail."""

        def fail(*given: object) -> int:
            raise OSError(28, "No space left on device")

        self.patch(os, "pwritev", fail)

    def empty(self) -> None:
        """Let writes work again."""
        self.patch(os, "pwritev", self.real)

    async def test_publishers_are_refused_until_writing_works_again(self) -> None:
        await self.put(batch_of([b"before"]))
        self.fill()
        lines = logged(self)
        self.store.append(batch_of([b"x"]))
        assert await self.stored() is False
        assert lines[0].endswith("device; make room on the file system of the history")
        with pytest.raises(HistoryUnavailable, match="No space"):
            self.store.append(batch_of([b"refused"]))
        with pytest.raises(HistoryUnavailable), self.store.together():
            raise AssertionError("it does not get here")
        assert self.store.figures()["failures"]
        assert (self.store.committed, self.store.next_offset) == (1, 2)
        self.store.put("t", "k", b"v")
        self.empty()
        await self.until(lambda: self.store.committed == 2)
        await self.put(batch_of([b"after"]))
        assert [m.payload for m in await self.read()] == [b"before", b"x", b"after"]
        await self.reopen(keep_everything())
        assert list(self.store.items("t")) == [("k", b"v")]

    async def test_metadata_that_cannot_be_written_is_shown(self) -> None:
        def fail(*given: object) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        apply = metadata.Metadata.apply
        self.patch(metadata.Metadata, "apply", fail)
        for failing in (1, 0):
            self.store.put("t", "k", b"v")
            synced: list[bool] = []
            self.store.when_synced(synced.append)
            await self.until(partial(bool, synced))
            assert self.store.figures()["metadata_failing"] == failing
            self.patch(metadata.Metadata, "apply", apply)

    async def test_it_opens_with_the_reserve(self) -> None:
        await self.put(batch_of([b"before"]))
        await self.store.close()
        self.fill_unless_reserve_is_used()
        lines = logged(self)
        self.open()
        assert lines[0].endswith("No space left on device; trying again with the reserve")
        self.empty()
        assert [m.payload for m in await self.read(cold=True)] == [b"before"]

    async def test_its_lock_needs_no_space(self) -> None:
        """Another program may have filled that of its former process id."""
        await self.put(batch_of([b"before"]))
        await self.store.close()
        self.fill_unless_reserve_is_used()
        real = os.pwrite

        def write(file: int, data: bytes, position: int) -> int:
            if (self.path / RESERVE).exists():
                raise OSError(28, "No space left on device")
            return real(file, data, position)

        self.patch(os, "pwrite", write)
        self.open()
        # It is locked nevertheless.
        reason = str(raised(StartError, check_free, self.path))
        assert "in use by another broker (process unknown)" in reason
        self.empty()
        assert [m.payload for m in await self.read(cold=True)] == [b"before"]

    async def test_so_does_sqlite_if_it_has_no_space_to_open_the_metadata(self) -> None:
        """It needs some for the memory that its readers share."""
        await self.put(batch_of([b"before"]))
        await self.store.close()
        real = Metadata.state

        def state(opened: Metadata) -> LogState:
            if (self.path / RESERVE).exists():
                raise sqlite_error("disk I/O error", sqlite3.SQLITE_IOERR_SHMSIZE)
            return real(opened)

        self.patch(Metadata, "state", state)
        lines = logged(self)
        self.open()
        assert lines[0] == "history: disk I/O error; trying again with the reserve"
        assert [m.payload for m in await self.read(cold=True)] == [b"before"]

    async def test_the_reserve_stays_while_another_program_has_locked_the_metadata(self) -> None:
        """The log names the reason of the delay when it begins."""
        await self.store.close()
        self.patch(metadata, "BUSY_SECONDS", 0.01)
        lines = logged(self)
        with closing(sqlite3.connect(self.path / "metadata.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StartError, match="is locked; end the program that uses"):
                self.open()
        (line,) = lines
        assert "metadata.db is locked by another program; the start waits" in line
        assert (self.path / RESERVE).exists()
        self.open()

    async def test_metadata_that_are_not_text(self) -> None:
        self.store.put("t", "k", b"v")
        await self.store.close()
        with closing(sqlite3.connect(self.path / "metadata.db", isolation_level=None)) as other:
            other.execute("UPDATE metadata SET space = CAST(x'ff' AS TEXT)")
        with pytest.raises(StartError, match="Could not decode to UTF-8"):
            self.open()
        with closing(sqlite3.connect(self.path / "metadata.db", isolation_level=None)) as other:
            other.execute("UPDATE metadata SET space = 't'")
        self.open()
        assert list(self.store.items("t")) == [("k", b"v")]

    async def test_metadata_that_cannot_be_opened(self) -> None:
        """The reserve would not help."""
        await self.store.close()
        error = sqlite3.OperationalError("unable to open database file")
        with (
            mock.patch.object(sqlite3, "connect", side_effect=error),
            pytest.raises(StartError, match="restore it from a backup, or rebuild it"),
        ):
            self.open()
        assert (self.path / RESERVE).exists()
        self.open()

    async def test_files_of_another_user(self) -> None:
        """They are named, and the reserve is for a full disk."""
        await self.store.close()
        (segment,) = self.path.glob("*.log")
        real, access = os.open, os.access

        def open_file(name: Any, *given: Any, **options: Any) -> int:
            if name == segment.name:
                raise PermissionError(errno.EACCES, "Permission denied", name)
            return real(name, *given, **options)

        def may_access(name: Any, *given: Any, **options: Any) -> bool:
            return name != "metadata.db" and access(name, *given, **options)

        for name, call, path in (
            ("open", open_file, segment),
            ("access", may_access, self.path / "metadata.db"),
        ):
            text = f"cannot use {path}: Permission denied; let the broker's user write"
            with mock.patch.object(os, name, call), pytest.raises(StartError, match=text):
                self.open()
            assert (self.path / RESERVE).exists()
        self.open()

    async def test_it_does_not_open_without_a_reserve(self) -> None:
        await self.store.close()
        (self.path / RESERVE).unlink()
        self.fill()
        with pytest.raises(StartError, match="No space left on device"):
            self.open()
        gc.collect()
        left = open_files(self.path)
        self.empty()
        self.open()
        assert left == []

    def fill_unless_reserve_is_used(self) -> None:
        """Let writes fail while the reserve takes the last space."""

        def write(*given: Any) -> int:
            if (self.path / RESERVE).exists():
                raise OSError(28, "No space left on device")
            return self.real(*given)

        self.patch(os, "pwritev", write)

    async def test_it_closes_all_the_same(self) -> None:
        self.fill()
        self.store.append(batch_of([b"x"]))
        await self.stored()
        await self.store.close()
        self.empty()
        self.open()
        assert self.store.next_offset == 0

    async def test_a_loss_at_the_end_is_logged_only_if_there_is_one(self) -> None:
        for payloads, expected in ([], []), ([b"x"], ["1"]):
            lines = logged(self)
            self.fill()
            if payloads:
                self.store.append(batch_of(payloads))
            self.store.put("t", "k", b"v")
            await self.stored()
            await self.store.close()
            _, *lost = " ".join(lines).split(
                "history: messages could not be written and are lost: "
            )
            assert [one.split(";")[0] for one in lost] == expected
            self.empty()
            self.open()
