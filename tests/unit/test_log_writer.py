"""Writing the log while the disk fails: acknowledged messages are stored once, in order."""

from __future__ import annotations

import errno
import os
import random
import shutil
import sqlite3
import time
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pubsub.store.commits import log_writer
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.maintenance.log_check import LogCheck
from pubsub.store.records.record import End
from pubsub.store.records.stored_runs import record_of
from pubsub.store.segments.log_directory import POSITION
from pubsub.store.segments.log_files import read_note
from tests.profiles import examples
from tests.unit.fakes import batch_of, open_files, scratch
from tests.unit.logs import OTHER_BOOT, Log, LogCase, Stored, numbered
from tests.unit.raising import raised
from tests.unit.streams import logged

CALLS = ("pwritev", "pwrite", "fdatasync", "ftruncate", "fsync")


class Faults:
    """Replaces system calls of the writer by ones that fail at random, or as the test says."""

    def __init__(self, case: LogCase) -> None:
        self.fails: Callable[[str], int | None] = lambda call: None
        self.unsynced: dict[str, list[tuple[int, bytes, bytes]]] = {}
        self._real = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            case.patch(os, name, getattr(self, name))

    def _check(self, call: str) -> None:
        error = self.fails(call)
        if error is not None:
            raise OSError(error, os.strerror(error))

    def pwritev(self, file: int, buffers: Sequence[bytes], position: int, flags: int = 0) -> int:
        error = self.fails("pwritev")
        data = b"".join(buffers)
        if error is not None:
            # A part may have been written.
            self._write(file, data[: len(data) // 2], position)
            raise OSError(error, os.strerror(error))
        if self.fails("short") is not None:
            return self._write(file, data[: max(len(data) // 3, 1)], position)
        return self._write(file, data, position)

    def _write(self, file: int, data: bytes, position: int) -> int:
        # An index is opened to be written only.
        with open(path_of(file), "rb") as readable:
            before = os.pread(readable.fileno(), len(data), position)
        self.unsynced.setdefault(path_of(file), []).append((position, before, data))
        written: int = self._real["pwritev"](file, [data], position)
        return written

    def pwrite(self, file: int, data: bytes, position: int) -> int:
        self._check("pwrite")
        written: int = self._real["pwrite"](file, data, position)
        return written

    def fdatasync(self, file: int) -> None:
        error = self.fails("fdatasync")
        if error is not None:
            # The kernel has dropped the pages that it could not write, and reports that once.
            self.lose(path_of(file))
            raise OSError(error, os.strerror(error))
        self.unsynced.pop(path_of(file), None)

    def lose(self, path: str) -> None:
        """Undo the writes to a file that were not synced."""
        writes = self.unsynced.pop(path, [])
        if not os.path.exists(path):
            return
        file = os.open(path, os.O_RDWR)
        size = os.fstat(file).st_size
        for position, before, data in reversed(writes):
            self._real["pwritev"](file, [before.ljust(len(data), b"\0")], position)
        self._real["ftruncate"](file, size)
        os.close(file)

    def fsync(self, file: int) -> None:
        self._check("fsync")

    def ftruncate(self, file: int, size: int) -> None:
        self._check("ftruncate")
        self._real["ftruncate"](file, size)


def path_of(file: int) -> str:
    """The path of an open file."""
    return os.readlink(f"/proc/self/fd/{file}")


class FaultCase(LogCase):
    """A log on a disk that fails."""

    def setUp(self) -> None:
        super().setUp()
        self.faults = Faults(self)

    def break_calls(self, *calls: str, error: int = errno.ENOSPC) -> None:
        """Let these calls fail from now on."""
        self.faults.fails = lambda call: error if call in calls else None

    def works(self) -> None:
        """Let all calls work again."""
        self.faults.fails = lambda call: None

    def payloads(self, path: Path | None = None) -> list[bytes]:
        """The messages that the next broker reads, without damage."""
        log = self.log(path)
        found, damaged = log.read()
        assert [one.offset for one in found] == list(range(len(found)))
        assert not damaged
        log.kill()
        return [one.payload for one in found]


def raise_error(number: int) -> None:
    """Raise an error of the system."""
    raise OSError(number, os.strerror(number))


class FailureTests(FaultCase):
    """One call fails"""

    def test_a_write_that_fails_is_done_again(self) -> None:
        log = self.log()
        log.commit(numbered(0, 3))
        group = log.group(numbered(3, 100), puts={"k": b"v"})
        self.break_calls("pwritev")
        for _ in range(3):
            assert raised(OSError, log.writer.write, group, False).errno == errno.ENOSPC
        assert log.catalog.stop == 3
        self.works()
        log.writer.write(group, True)
        assert log.catalog.stop == 100
        assert log.items() == {"k": b"v"}
        log.kill()
        assert self.payloads() == [b"%d" % n for n in range(100)]

    def test_a_write_that_fails_and_is_not_done_again(self) -> None:
        log = self.log()
        log.commit(numbered(0, 3), sync=True)
        self.break_calls("pwritev")
        raised(OSError, log.commit, numbered(3, 100))
        log.kill()
        self.works()
        assert self.payloads() == [b"0", b"1", b"2"]

    def test_short_writes(self) -> None:
        log = self.log()
        self.break_calls("short")
        log.commit(*[batch_of([b"x" * 50_000, b"%d" % n]) for n in range(20)], sync=True)
        log.kill()
        assert len(self.payloads()) == 40

    def test_a_disk_that_writes_nothing(self) -> None:
        log = self.log()
        self.patch(os, "pwritev", lambda *given: 0)
        assert raised(OSError, log.commit, numbered(0, 1)).errno == errno.ENOSPC

    def test_writes_lost_by_a_failed_sync_are_repeated(self) -> None:
        log = self.log()
        log.commit(numbered(0, 3), sync=True)
        log.commit(numbered(3, 5))
        self.break_calls("fdatasync", error=errno.EIO)
        raised(OSError, log.sync)
        self.works()
        log.commit(numbered(5, 6), sync=True)
        log.kill()
        assert self.payloads() == [b"%d" % n for n in range(6)]

    def test_many_records_lost_by_a_failed_sync(self) -> None:
        log = self.log()
        for number in range(1500):
            log.commit(numbered(number, number + 1))
        self.break_calls("fdatasync", error=errno.EIO)
        raised(OSError, log.sync)
        self.works()
        log.commit(numbered(1500, 1501), sync=True)
        log.kill()
        assert self.payloads() == [b"%d" % n for n in range(1501)]

    def test_no_message_waits_for_a_sync_of_the_ceiling(self) -> None:
        log = self.log()
        syncs: list[int] = []
        real = os.fdatasync

        def sync(file: int) -> None:
            syncs.append(file)
            real(file)

        self.patch(os, "fdatasync", sync)
        for number in range(40):
            log.commit(numbered(number * 2000, (number + 1) * 2000))
            if number % 2:
                log.sync()
        assert len(syncs) == 20
        # Without syncs between them, the ceiling needs one.
        for number in range(8):
            log.commit(numbered(number * 100_000, (number + 1) * 100_000))
        assert 20 < len(syncs) < 24

    def test_lost_writes_are_repeated_also_during_a_write_with_a_sync(self) -> None:
        log = self.log()
        log.commit(numbered(0, 3))
        failing, go_on = Event(), Event()
        real = os.fdatasync

        def fail(file: int) -> None:
            failing.set()
            go_on.wait(10)
            self.break_calls("fdatasync", error=errno.EIO)
            try:
                real(file)
            finally:
                self.works()
                self.patch(os, "fdatasync", real)

        self.patch(os, "fdatasync", fail)
        errors: list[BaseException] = []

        def sync() -> None:
            try:
                log.sync()
            except OSError as error:
                errors.append(error)

        syncing = Thread(target=sync)
        syncing.start()
        failing.wait(10)
        group = log.group(numbered(3, 5))
        writing = Thread(target=log.writer.write, args=(group, True))
        writing.start()
        go_on.set()
        syncing.join()
        writing.join()
        assert len(errors) == 1
        log.kill()
        assert self.payloads() == [b"%d" % n for n in range(5)]

    def test_the_head_of_a_segment_is_written_again_too(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        log.commit(numbered(0, 3))
        log.commit(numbered(3, 5))
        self.break_calls("fdatasync", error=errno.EIO)
        raised(OSError, log.sync)
        for name in self.names()[-2:]:
            data = bytearray((self.path / name).read_bytes())
            data[:64] = bytes(64)
            (self.path / name).write_bytes(data)
        self.works()
        log.sync()
        log.kill()
        assert self.payloads() == [b"%d" % n for n in range(5)]

    def test_a_segment_that_cannot_be_begun_leaves_none(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        log.commit(numbered(0, 3))
        before = self.names()
        failed: list[str] = []

        def fails(call: str) -> int | None:
            # The second call is that of the new segment's head.
            failed.append(call)
            return errno.ENOSPC if failed.count("pwritev") == 2 else None

        self.faults.fails = fails
        group = log.group(numbered(3, 5))
        raised(OSError, log.writer.write, group, False)
        assert self.names() == before
        self.works()
        log.writer.write(group, True)
        assert len(self.names()) == len(before) + 1
        log.kill()
        assert self.payloads() == [b"%d" % n for n in range(5)]

    def test_nothing_is_acknowledged_before_the_name_of_its_segment_is_on_disk(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        log.commit(numbered(0, 3), sync=True)
        self.break_calls("fsync", error=errno.EIO)
        raised(OSError, log.commit, numbered(3, 5), sync=True)
        for _ in range(2):
            raised(OSError, log.sync)
        self.works()
        log.sync()
        log.kill()
        assert self.payloads() == [b"%d" % n for n in range(5)]

    def test_a_sealed_segment_is_closed_once_if_no_other_can_be_begun(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        log.commit(numbered(0, 3))
        group = log.group(numbered(3, 5))
        self.patch(log.directory, "open", lambda *_: raise_error(errno.EMFILE))
        raised(OSError, log.writer.write, group, False)
        sealed = log.catalog.segments[-1].name
        log.sync()
        # This file gets the number of the descriptor that was closed.
        other = os.open(self.path / sealed, os.O_RDONLY)
        self.addCleanup(os.close, other)
        assert raised(OSError, log.close).errno == errno.EMFILE
        assert os.fstat(other).st_size

    def test_the_end_of_a_segment_that_was_not_ended_is_written_whole(self) -> None:
        log = self.log()
        log.commit(numbered(0, 3), sync=True)
        log.kill()

        def short(file: int, data: bytes, position: int) -> int:
            return self.faults._write(file, data[:50], position)

        self.patch(os, "pwrite", short)
        self.break_calls("short")
        self.log().kill()
        check = LogCheck(self.path)
        self.addCleanup(check.close)
        assert not [one for one in check.problems() if "not a record" in one]

    def test_a_segment_that_cannot_be_cut_is_completed_later(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        log.commit(numbered(0, 3))
        self.break_calls("ftruncate", error=errno.EIO)
        group = log.group(numbered(3, 5))
        for _ in range(2):
            raised(OSError, log.writer.write, group, False)
        self.works()
        log.writer.write(group, True)
        log.kill()
        assert self.payloads() == [b"%d" % n for n in range(5)]

    def test_a_position_that_cannot_be_noted_stops_nothing(self) -> None:
        log = self.log()
        self.break_calls("pwrite")
        log.commit(numbered(0, 3), sync=True)
        assert read_note(log.directory, log.metadata.state().log_id) == 0
        self.works()
        log.commit(numbered(3, 4))
        assert read_note(log.directory, log.metadata.state().log_id) == 4

    def test_metadata_that_cannot_be_written_is_applied_later(self) -> None:
        log = self.log()
        apply = log.metadata.apply

        def fail(*given: Any) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        lines = logged(self)
        segment = log.catalog.segments[-1].place
        self.patch(log.metadata, "apply", fail)
        log.commit(numbered(0, 1), puts={"a": b"1", "b": b"1"}, sync=True)
        log.commit(numbered(1, 2), puts={"a": b"2"}, sync=True)
        assert log.writer.metadata_failing == "disk I/O error"
        assert log.writer.unapplied == segment
        assert log.items() == {}
        crashed = self.copy()
        self.patch(log.metadata, "apply", apply)
        log.commit(numbered(2, 3), sync=True)
        assert log.items() == {"a": b"2", "b": b"1"}
        assert log.writer.metadata_failing is None
        file = self.path / "metadata.db"
        assert lines == [
            f"history: {file} cannot be written: disk I/O error; messages are still stored, "
            "and segments are kept until it can",
            f"history: {file} can be written again",
        ]
        after = self.log(crashed)
        assert after.items() == {"a": b"2", "b": b"1"}

    def test_segments_that_end_meanwhile_are_listed_later(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        apply = log.metadata.apply

        def fail(*given: Any) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        logged(self)
        self.patch(log.metadata, "apply", fail)
        for number in range(3):
            log.commit(numbered(number, number + 1), puts={"a": b"1"}, sync=True)
        ended = [one.place for one in log.catalog.segments[:-1]]
        assert len(ended) == 3
        assert log.metadata.segments() == []
        assert log.writer.unapplied == ended[0]
        self.patch(log.metadata, "apply", apply)
        log.commit(numbered(3, 4), sync=True)
        listed = [(row.base, row.sequence) for row in log.metadata.segments()]
        assert listed[:3] == ended
        assert log.writer.unapplied > ended[-1]

    def test_commits_without_values_do_not_add_up_while_metadata_cannot_be_written(self) -> None:
        log = self.log()

        def fail(*given: Any) -> None:
            raise sqlite3.OperationalError("disk I/O error")

        logged(self)
        self.patch(log.metadata, "apply", fail)
        log.commit(numbered(0, 1), puts={"a": b"1"}, sync=True)
        for number in range(1, 20):
            log.commit(numbered(number, number + 1), sync=True)
        assert len(log.writer._copy.waiting) == 2

    def test_metadata_that_another_program_has_locked_hold_no_commit_for_long(self) -> None:
        log = self.log()
        other = sqlite3.connect(self.path / "metadata.db", isolation_level=None)
        self.addCleanup(other.close)
        other.execute("BEGIN IMMEDIATE")
        began = time.monotonic()
        log.commit(numbered(0, 1), puts={"a": b"1"}, sync=True)
        assert time.monotonic() - began < 5
        assert log.writer.metadata_failing == "database is locked"
        other.execute("ROLLBACK")
        log.commit(numbered(1, 2), sync=True)
        assert log.items() == {"a": b"1"}

    def test_an_index_that_cannot_be_written_is_made_again(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        log.commit(numbered(0, 3), sync=True)
        real = log.directory.open

        def fail(name: str, flags: int) -> int:
            if name.endswith(".index"):
                raise OSError(errno.ENOSPC, "no space")
            return real(name, flags)

        self.patch(log.directory, "open", fail)
        before = self.names(".index")
        log.commit(numbered(3, 5), sync=True)
        assert self.names(".index") == before
        assert len(log.read()[0]) == 5
        log.kill()
        assert len(self.payloads()) == 5


class CloseTests(FaultCase):
    """What a log that was closed properly promises"""

    def test_a_power_loss_after_it_loses_nothing(self) -> None:
        log = self.log()
        log.commit(numbered(0, 10))
        log.close()
        for path in list(self.faults.unsynced):
            self.faults.lose(path)
        self.check(10)

    def test_a_power_loss_while_the_next_broker_begins_loses_nothing(self) -> None:
        log = self.log()
        log.commit(numbered(0, 10))
        log.close()
        # No zeros follow a record, so that the half of what is written is a part of it.
        self.patch(log_writer, "_GROWTH", 1)
        calls: list[str] = []

        def fails(call: str) -> int | None:
            # The end and the index of the last segment, and the head of the next one, are written.
            calls.append(call)
            return errno.EIO if calls.count("pwritev") > 3 else None

        self.faults.fails = fails
        raised(OSError, self.log)
        self.works()
        assert len(self.names()) == 2
        self.check(10)

    def check(self, stop: int) -> None:
        """Check that the messages are there after another boot, and no offset is left out."""
        self.boot = OTHER_BOOT
        log = self.log()
        assert (log.recovered.offset, log.recovered.lost) == (stop, None)
        log.kill()
        assert len(self.payloads()) == stop

    def test_offsets_that_were_lost_later_are_not_used_again(self) -> None:
        log = self.log()
        log.commit(numbered(0, 10), sync=True)
        size = log.catalog.segments[-1].index.end
        log.commit(numbered(10, 15), sync=True)
        log.close()
        os.truncate(self.path / self.names()[-1], size)
        (self.path / POSITION).unlink()
        log = self.log()
        assert log.recovered.lost == (10, log.recovered.offset)
        assert log.recovered.offset >= 15


class ResourceTests(LogCase):
    """What is on disk takes neither memory nor descriptors"""

    def test_segments_that_are_complete_are_closed(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        for number in range(20):
            log.commit(numbered(number, number + 1), sync=True)
        assert len(self.names()) == 21
        assert sum(name.endswith(".log") for name in open_files(self.path)) == 1

    def test_messages_that_are_on_disk_are_released(self) -> None:
        log = self.log()
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        before, _ = tracemalloc.get_traced_memory()
        batch = batch_of([bytes(4 * 2**20)])
        batch.offset = log.offset
        log.writer.write(WriteGroup([record_of(batch)]), True)
        del batch
        after, _ = tracemalloc.get_traced_memory()
        assert after - before < 2**20


class PieceTests(FaultCase):
    """A group of several records"""

    def group(self, log: Log) -> WriteGroup:
        """Messages before and behind the end of a topic, each with a value."""
        group = log.group(numbered(0, 2, "old"), puts={"k": b"1"})
        group.end(End("old", log.offset))
        more = log.group(numbered(2, 4), puts={"k": b"2"})
        group.runs += more.runs
        group.puts = more.puts
        return group

    def fail_from(self, number: int) -> None:
        """Let the write with this number fail, and all after it."""
        calls: list[str] = []

        def fails(call: str) -> int | None:
            calls.append(call)
            return errno.EIO if calls.count("pwritev") >= number else None

        self.faults.fails = fails

    def test_a_value_is_never_there_without_its_messages(self) -> None:
        for fails_at in range(1, 3):
            self.works()
            self.path = scratch(self) / "log"
            log = self.log()
            self.fail_from(fails_at)
            group = self.group(log)
            raised(OSError, log.writer.write, group, False)
            self.works()
            after = self.log(self.copy())
            there = len(after.read()[0])
            assert after.items() == ({} if fails_at == 1 else {"k": b"1"})
            assert there == 2 * (fails_at - 1)
            # The written groups are not written again.
            log.writer.write(group, True)
            assert log.items() == {"k": b"2"}
            assert log.catalog.stop == 4
            log.kill()
            assert len(self.log().read()[0]) == 2
            with closing(LogCheck(self.path)) as check:
                assert not list(check.problems())


class DirectoryTests(FaultCase):
    """A directory that is removed or replaced under the broker"""

    def test_the_directory_is_removed(self) -> None:
        log = self.log()
        log.commit(numbered(0, 1), sync=True)
        shutil.rmtree(self.path)
        assert "removed" in str(raised(OSError, log.commit, numbered(1, 2), sync=True))
        raised(OSError, log.sync)

    def test_it_is_replaced_and_put_back(self) -> None:
        log = self.log()
        log.commit(numbered(0, 1), sync=True)
        aside = self.path.with_name("aside")
        self.path.rename(aside)
        assert raised(OSError, log.sync).errno == errno.ENOENT
        self.path.mkdir()
        assert "replaced" in str(raised(OSError, log.commit, numbered(1, 2), sync=True))
        self.path.rmdir()
        aside.rename(self.path)
        log.commit(numbered(2, 3), sync=True)
        log.kill()
        assert self.payloads() == [b"0", b"1", b"2"]

    def test_the_segment_is_removed(self) -> None:
        log = self.log()
        log.commit(numbered(0, 1), sync=True)
        (self.path / self.names()[-1]).unlink()
        assert "newest segment was removed" in str(raised(OSError, log.commit, numbered(1, 2)))


@dataclass
class Acknowledged:
    """The messages of the writer: all, and those on disk."""

    messages: list[Stored] = field(default_factory=list)
    synced: int = 0
    value: int = -1
    """The number under the key ``k``."""


class RandomTests(FaultCase):
    """All calls fail at random"""

    @settings(examples(0.5), suppress_health_check=list(HealthCheck))
    @given(
        st.integers(0, 2**32),
        st.sampled_from([0.02, 0.1, 0.4]),
        st.sampled_from([1, 3000, 2**20]),
        st.booleans(),
    )
    def test_acknowledged_messages_are_stored(
        self, seed: int, share: float, segment_bytes: int, power: bool
    ) -> None:
        draw = random.Random(seed)
        self.patch(log_writer, "SEGMENT_BYTES", segment_bytes)
        self.works()
        self.boot = b"b" * 16
        path = scratch(self) / "log"
        expected = Acknowledged()
        log = self.log(path)

        def fails(call: str) -> int | None:
            return draw.choice((errno.ENOSPC, errno.EIO)) if draw.random() < share else None

        for number in range(25):
            self.faults.fails = fails
            self.write(log, number, draw, expected)
            assert log.catalog.stop == len(expected.messages)
        self.works()
        assert log.read() == (expected.messages, [])
        self.end(log, draw.random() < 0.5, power)
        after = self.log(path)
        if power:
            self.check_synced(after, expected)
        else:
            assert after.read() == (expected.messages, [])
            assert after.items() == {"k": b"24"}
        after.kill()

    def write(self, log: Log, number: int, draw: random.Random, expected: Acknowledged) -> None:
        """Write a batch and the value ``number``, until that succeeds."""
        batch = batch_of(
            [b"%d" % number * draw.randrange(20)] * draw.randrange(1, 5), "ab"[number % 2]
        )
        group = log.group(batch, puts={"k": b"%d" % number})
        sync = draw.random() < 0.5
        for attempt in range(1000):
            if attempt == 20:
                self.works()
            try:
                log.writer.write(group, sync)
            except OSError:
                # As ``CommitStateMachine`` does.
                sync = True
            else:
                break
        expected.messages += [
            Stored(batch.offset + i, batch.topic, payload)
            for i, payload in enumerate(batch.payloads())
        ]
        if sync:
            expected.synced = len(expected.messages)
            expected.value = number

    def end(self, log: Log, fails: bool, power: bool) -> None:
        """Kill the writer, perhaps within a write, or have the power fail."""
        last = log.group(batch_of([b"never acknowledged"] * 3))
        if fails:
            self.break_calls("pwritev")
            raised(OSError, log.writer.write, last, False)
            self.works()
        if power:
            for lost in list(self.faults.unsynced):
                self.faults.lose(lost)
            self.boot = b"c" * 16
        log.kill()
        self.faults.unsynced.clear()

    def check_synced(self, after: Log, expected: Acknowledged) -> None:
        """After a power failure all is there that was on disk, and nothing is numbered again."""
        found, damaged = after.read()
        assert found == expected.messages[: len(found)]
        assert len(found) >= expected.synced
        assert after.recovered.offset >= len(expected.messages)
        assert not damaged or damaged[0][0] == len(found)
        assert int(after.items().get("k", b"-1")) >= expected.value
