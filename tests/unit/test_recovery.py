"""Opening a log after faults of any kind: the readable messages, and the reports."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

from pubsub.errors import StartError
from pubsub.store.commits import log_writer
from pubsub.store.commits.metadata_copy import MetadataCopy
from pubsub.store.maintenance.log_check import LogCheck
from pubsub.store.metadata.metadata import Metadata
from pubsub.store.opening import recovery
from pubsub.store.opening.recovery import recover
from pubsub.store.records import record
from pubsub.store.records.record import HEAD_BYTES
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.segments.segment import SEGMENT_HEAD_BYTES, SegmentHead, segment_name
from pubsub.store.segments.segment_index import DEFAULT_GRAIN
from pubsub.store.upkeep.rewrite import Rewrite
from tests.histories import of_later_version, with_unknown_operation
from tests.unit.fakes import batch_of, open_files, scratch
from tests.unit.logs import BOOT, OTHER_BOOT, Log, LogCase, numbered
from tests.unit.raising import raised
from tests.unit.streams import logged

# The tests replace it.
boot_id = recovery.boot_id


class RecoveryCase(LogCase):
    """A log of some segments."""

    def make(self, closed: bool = True, segments: int = 4) -> int:
        """Make a log with ten messages in each segment; return the offset after the last."""
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        for number in range(segments):
            log.commit(numbered(10 * number, 10 * number + 10), puts={"k": b"%d" % number})
        log.sync()
        if closed:
            log.close()
        else:
            log.kill()
        return 10 * segments

    def offsets(self, log: Log) -> list[int]:
        """The offsets that can be read; each message is its own offset."""
        found, _ = log.read()
        for one in found:
            assert one.payload == b"%d" % one.offset
        return [one.offset for one in found]

    def refused(self) -> str:
        """The reason why the log cannot be opened."""
        before = open_files(self.path)
        error = raised(StartError, Log, self.path)
        # While the error has a traceback, which keeps everything that was not closed.
        assert open_files(self.path) == before
        reason = str(error)
        assert "\n" not in reason
        assert reason.startswith("history: ")
        return reason

    def remove(self, number: int) -> str:
        """Remove a segment and its index."""
        name = self.names()[number]
        (self.path / name).unlink()
        (self.path / name.replace(".log", ".index")).unlink(missing_ok=True)
        return name


class WholeTests(RecoveryCase):
    """Nothing is missing"""

    def test_closed_and_killed(self) -> None:
        for closed in (True, False):
            lines = logged(self)
            stop = self.make(closed)
            with closing(LogCheck(self.path)) as check:
                assert not list(check.problems())
            log = self.log()
            assert self.offsets(log) == list(range(stop))
            assert (log.recovered.offset, log.recovered.clean) == (stop, closed)
            assert log.items() == {"k": b"3"}
            assert not lines
            log.kill()
            shutil.rmtree(self.path)

    def test_a_crash_before_the_first_segment_was_created(self) -> None:
        LogDirectory(self.path, create=True).close()
        Metadata.create(self.path / "metadata.db", b"12345678").close()
        self.begins_anew(clean=True)

    def test_a_crash_before_the_first_record_was_written(self) -> None:
        LogDirectory(self.path, create=True).close()
        Metadata.create(self.path / "metadata.db", b"12345678").close()
        head = SegmentHead(0, 1, b"saltsalt", b"12345678", 0)
        (self.path / segment_name(0, 1)).write_bytes(head.encode())
        self.begins_anew(clean=False)

    def begins_anew(self, clean: bool) -> None:
        """Check that a log without messages begins at its first offset."""
        lines = logged(self)
        log = self.log()
        assert (log.recovered.offset, log.recovered.clean) == (0, clean)
        log.commit(numbered(0, 10))
        assert self.offsets(log) == list(range(10))
        assert not lines

    def test_operations_are_applied_in_the_order_of_the_log(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        for number in range(3):
            log.commit(numbered(number, number + 1), puts={"k": b"%d" % number})
        log.kill()
        assert self.log().items() == {"k": b"2"}

    def test_a_log_without_messages_keeps_its_metadata(self) -> None:
        for number in range(3):
            log = self.log()
            log.commit(puts={f"{number}": b"v"}, sync=True)
            log.close()
        assert sorted(self.log().items()) == ["0", "1", "2"]

    def test_missing_and_foreign_indexes_are_made_again(self) -> None:
        stop = self.make()
        indexes = self.names(".index")
        (self.path / indexes[0]).unlink()
        (self.path / indexes[1]).write_bytes((self.path / indexes[2]).read_bytes())
        (self.path / indexes[2]).write_bytes(b"")
        assert self.offsets(self.log()) == list(range(stop))

    def test_metadata_without_its_log_take_operations_from_the_records(self) -> None:
        stop = self.make(closed=False)
        before = self.path / "metadata.db"
        log = self.log()
        log.metadata._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        saved = before.read_bytes()
        log.commit(numbered(stop, stop + 1), puts={"k": b"new"}, sync=True)
        log.kill()
        before.write_bytes(saved)
        for ending in ("-wal", "-shm"):
            Path(f"{before}{ending}").unlink(missing_ok=True)
        again = self.log()
        assert again.items() == {"k": b"new"}
        assert self.offsets(again) == list(range(stop + 1))


class PowerTests(RecoveryCase):
    """A loss of power"""

    def test_the_log_continues_at_the_ceiling(self) -> None:
        stop = self.make(closed=False)
        self.boot = OTHER_BOOT
        lines = logged(self)
        log = self.log()
        assert log.recovered.offset > stop
        assert log.recovered.lost == (stop, log.recovered.offset)
        assert self.offsets(log) == list(range(stop))
        assert log.read()[1] == [log.recovered.lost]
        assert len(lines) == 1
        # The next start finds nothing new.
        log.kill()
        again = self.log()
        assert again.recovered.offset == log.recovered.offset
        assert again.recovered.lost is None

    def test_a_crash_before_the_new_segment_has_a_record(self) -> None:
        stop = self.make(closed=False)
        self.boot = OTHER_BOOT
        first = self.copy()
        offset = self.log(first).recovered.offset
        real = log_writer.LogWriter._append

        def fail(*given: object) -> None:
            raise OSError(28, "no space")

        self.patch(log_writer.LogWriter, "_append", fail)
        raised(OSError, Log, self.path)
        self.patch(log_writer.LogWriter, "_append", real)
        for _ in range(2):
            log = self.log()
            assert log.recovered.offset >= offset > stop
            assert self.offsets(log) == list(range(stop))
            log.kill()

    def test_a_crash_before_the_new_segment_was_created(self) -> None:
        log = self.log()
        log.commit(numbered(0, 10))
        log.end("t")
        log.commit(numbered(10, 20), puts={"k": b"v"})
        log.kill()
        for _ in range(3):
            with closing(LogDirectory(self.path)) as directory:
                found = recover(directory)
                found.metadata.close()
            assert (found.offset, found.catalog.ended) == (20, {"t": 10})
            del found
            assert not open_files(self.path)
        log = self.log()
        assert self.offsets(log) == list(range(10, 20))
        assert log.items() == {"k": b"v"}

    def test_a_newest_segment_without_records(self) -> None:
        stop = self.make(closed=False)
        newest = self.path / self.names()[-1]
        os.truncate(newest, SEGMENT_HEAD_BYTES)
        (self.path / "position").unlink()
        self.boot = OTHER_BOOT
        log = self.log()
        assert log.recovered.offset >= 2**14
        assert self.offsets(log) == list(range(stop - 10))

    def test_a_machine_that_does_not_tell_its_starts_apart(self) -> None:
        """Each start may be one after a loss of power."""
        for content in (None, b"", b"no id"):
            file = scratch(self) / "boot_id"
            if content is not None:
                file.write_bytes(content)
            self.patch(recovery, "_BOOT_ID", file)
            found = {boot_id() for _ in range(3)}
            assert [len(one) for one in found] == [16, 16, 16]

    def test_a_kill_soon_after_a_loss_of_power_loses_nothing(self) -> None:
        """The metadata lack the epoch that began after it, as SQLite had no space."""
        self.make(closed=False)
        self.boot = OTHER_BOOT
        self.patch(MetadataCopy, "apply", lambda *given: False)
        log = self.log()
        offset = log.recovered.offset
        log.commit(numbered(offset, offset + 10))
        assert [one.boot for one in log.metadata.epochs()] == [BOOT]
        log.kill()
        again = self.log()
        assert again.recovered.offset == offset + 10
        assert again.recovered.lost is None

    def test_a_closed_log_has_lost_nothing(self) -> None:
        stop = self.make()
        self.boot = OTHER_BOOT
        assert self.log().recovered.offset == stop


class MissingTests(RecoveryCase):
    """Segments that are missing or damaged"""

    def test_one_is_missing(self) -> None:
        # The first segment has no messages.
        for number, gone in ((1, (0, 10)), (2, (10, 20)), (4, (30, 40))):
            stop = self.make()
            self.remove(number)
            lines = logged(self)
            log = self.log()
            found = self.offsets(log)
            assert found == [n for n in range(stop) if not gone[0] <= n < gone[1]]
            assert log.recovered.offset >= stop
            damaged = log.read()[1]
            assert damaged[0][0] == gone[0]
            assert any("are missing" in line for line in lines)
            log.kill()
            shutil.rmtree(self.path)

    def test_all_are_missing(self) -> None:
        for segments in (0, 4):
            self.make(segments=segments)
            for _ in self.names():
                self.remove(0)
            assert "has no segments" in self.refused()
            shutil.rmtree(self.path)

    def test_the_end_is_not_used_again(self) -> None:
        for closed in (True, False):
            for position in (True, False):
                stop = self.make(closed)
                os.truncate(self.path / self.names()[-1], SEGMENT_HEAD_BYTES + HEAD_BYTES + 3)
                if not position:
                    (self.path / "position").unlink()
                log = self.log()
                assert log.recovered.offset >= stop
                assert self.offsets(log) == list(range(stop - 10))
                assert log.read()[1][0][0] == stop - 10
                log.kill()
                shutil.rmtree(self.path)

    def test_it_is_not_used_again_if_the_metadata_lack_it(self) -> None:
        for left in ("nothing", "the head", "all before the last record that they know"):
            for position in (True, False):
                log = self.log()
                log.commit(numbered(0, 10))
                log.close()
                log = self.log()
                log.commit(numbered(10, 20), puts={"k": b"v"})
                log.sync()
                known = log.metadata.state().applied.position
                log.commit(numbered(20, 60))
                log.sync()
                log.kill()
                newest = self.path / self.names()[-1]
                if left == "nothing":
                    newest.unlink()
                else:
                    os.truncate(newest, SEGMENT_HEAD_BYTES if left == "the head" else known)
                if not position:
                    (self.path / "position").unlink()
                log = self.log()
                offset = log.recovered.offset
                assert offset >= 60
                assert log.recovered.lost == (10, offset)
                assert self.offsets(log) == list(range(10))
                log.kill()
                shutil.rmtree(self.path)

    def test_the_position_is_noted_beside_the_log(self) -> None:
        log = self.log()
        log.commit(numbered(0, 10), puts={"k": b"v"})
        log.sync()
        log.commit(numbered(10, 50))
        log.sync()
        log.kill()
        newest = self.path / self.names()[-1]
        newest.write_bytes(newest.read_bytes().rstrip(b"\0")[:-10])
        log = self.log()
        assert log.recovered.lost == (10, 50)
        assert log.recovered.offset == 50
        assert self.offsets(log) == list(range(10))

    def test_a_torn_tail_that_was_not_committed_is_cut(self) -> None:
        stop = self.make(closed=False)
        newest = self.path / self.names()[-1]
        data = newest.read_bytes().rstrip(b"\0")
        newest.write_bytes(data + data[SEGMENT_HEAD_BYTES : SEGMENT_HEAD_BYTES + 150])
        lines = logged(self)
        log = self.log()
        assert log.recovered.offset == stop
        assert self.offsets(log) == list(range(stop))
        assert not lines

    def test_a_bad_record_in_the_middle(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 2**20)
        log = self.log()
        for number in range(3):
            log.commit(batch_of([b"%d" % number * 100]))
        log.sync()
        log.kill()
        newest = self.path / self.names()[-1]
        data = bytearray(newest.read_bytes())
        data[data.index(b"1" * 100)] ^= 1
        newest.write_bytes(data)
        lines = logged(self)
        again = self.log()
        assert [one.offset for one in again.read()[0]] == [0, 2]
        assert again.read()[1] == [(1, 2)]
        assert sum("offsets 1 to 1 are damaged" in line for line in lines) == 1
        assert again.recovered.catalog.damage.ranges(0) == [(1, 2)]

    def test_a_bad_record_of_metadata(self) -> None:
        log = self.log()
        log.commit(numbered(0, 10))
        log.commit(puts={"k": b"unique value"})
        log.commit(numbered(10, 20), puts={"other": b"v"})
        log.kill()
        newest = self.path / self.names()[-1]
        newest.write_bytes(newest.read_bytes().replace(b"unique value", b"unique walue"))
        lines = logged(self)
        log = self.log()
        assert lines == ["history: a record of metadata at offset 10 is damaged"]
        assert self.offsets(log) == list(range(20))
        assert log.read()[1] == []
        assert log.items() == {"other": b"v"}

    def test_a_segment_that_has_changed(self) -> None:
        stop = self.make()
        path = self.path / self.names()[1]
        data = path.read_bytes() + b"x" * 100
        path.write_bytes(data)
        for _ in range(2):
            lines = logged(self)
            log = self.log()
            assert self.offsets(log) == list(range(stop))
            assert lines == [f"history: {path.name} has changed since it was written"]
            log.kill()
        # The broker leaves it as it is, to be looked at.
        assert path.read_bytes() == data

    def test_a_head_that_is_damaged_keeps_the_file(self) -> None:
        stop = self.make(closed=False)
        name = self.names()[-1]
        data = bytearray((self.path / name).read_bytes())
        data[20] ^= 1
        (self.path / name).write_bytes(data)
        lines = logged(self)
        log = self.log()
        assert log.recovered.offset >= stop
        assert f"history: {name} cannot be read: the head of the segment is damaged" in lines
        assert (self.path / name).read_bytes() == data

    def test_the_only_segment_has_a_damaged_head(self) -> None:
        log = self.log()
        log.commit(numbered(0, 10), sync=True)
        log.kill()
        (name,) = self.names()
        data = bytearray((self.path / name).read_bytes())
        data[20] ^= 1
        (self.path / name).write_bytes(data)
        log = self.log()
        offset = log.recovered.offset
        assert offset >= 10
        assert log.read() == ([], [(0, offset)])
        assert (self.path / name).read_bytes() == data

    def test_a_segment_that_was_not_ended_is_completed(self) -> None:
        self.patch(log_writer, "SEGMENT_BYTES", 1)
        log = self.log()
        log.commit(numbered(0, 10))
        log.commit(numbered(10, 20))
        log.kill()
        first = self.path / self.names()[0]
        os.truncate(first, first.stat().st_size - HEAD_BYTES)
        for _ in range(2):
            lines = logged(self)
            again = self.log()
            assert self.offsets(again) == list(range(20))
            assert not lines
            listed = [(row.base, row.sequence) for row in again.metadata.segments()]
            assert listed == [one.place for one in again.catalog.segments[:-1]]
            again.kill()

    def test_segments_with_each_others_names(self) -> None:
        self.make()
        one, other = (self.path / name for name in self.names()[:2])
        os.truncate(one, one.stat().st_size - 1)
        aside = self.path / "aside"
        one.rename(aside)
        other.rename(one)
        aside.rename(other)
        lines = logged(self)
        log = self.log()
        for name in (one.name, other.name):
            assert f"history: {name} cannot be read: its name is that of another segment" in lines
        assert set(self.offsets(log)) <= set(range(40))
        assert log.read()[1][0][0] == 0


class RefusedTests(RecoveryCase):
    """Logs that cannot be used; the reason is one line"""

    def test_metadata(self) -> None:
        self.make()
        path = self.path / "metadata.db"
        whole = path.read_bytes()
        path.unlink()
        position = self.path / "position"
        aside, segments = self.path.with_name("aside"), self.path.with_name("segments")
        assert "is missing" in self.refused()
        # The segments without the position, and the position without the segments.
        position.rename(aside)
        assert "is missing" in self.refused()
        aside.rename(position)
        segments.mkdir()
        for name in self.names():
            (self.path / name).rename(segments / name)
        assert "is missing" in self.refused()
        for one in segments.iterdir():
            one.rename(self.path / one.name)
        path.write_bytes(b"")
        assert "is empty" in self.refused()
        path.write_bytes(b"not a database" * 1000)
        assert "not a database" in self.refused()
        path.unlink()
        sqlite3.connect(path).execute("CREATE TABLE mine (x)").connection.close()
        assert "not the metadata" in self.refused()
        path.write_bytes(whole)
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA user_version = 99")
        connection.close()
        assert "version 99" in self.refused()

    def test_symbolic_links(self) -> None:
        self.make()
        for name in (self.names()[0], self.names()[-1], "metadata.db", "position", "lock"):
            file, target = self.path / name, self.path.parent / "target"
            file.rename(target)
            file.symlink_to(target)
            assert "symbolic link" in self.refused() or "regular" in self.refused(), name
            file.unlink()
            target.rename(file)
        assert self.offsets(self.log()) == list(range(40))

    def test_another_broker(self) -> None:
        self.make()
        self.log()
        assert f"in use by another broker (process {os.getpid()})" in self.refused()

    def test_the_names_of_new_directories_are_synced(self) -> None:
        synced: list[str] = []
        real = os.fsync

        def fsync(file: int) -> None:
            synced.append(os.readlink(f"/proc/self/fd/{file}"))
            real(file)

        self.patch(os, "fsync", fsync)
        path = self.path.resolve()
        LogDirectory(path / "a" / "b", create=True).close()
        assert synced == [str(path / "a"), str(path), str(path.parent)]
        LogDirectory(path / "a" / "b", create=True).close()
        assert len(synced) == 3

    def test_a_file_system_without_locks(self) -> None:
        self.make()

        def no_locks(file: int, operation: int) -> None:
            raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

        self.patch(fcntl, "flock", no_locks)
        error = raised(OSError, Log, self.path)
        assert error.errno == errno.ENOLCK

    def test_a_segment_of_another_history(self) -> None:
        self.make()
        other = self.path.with_name("other")
        shutil.move(self.path, other)
        self.make()
        shutil.copy(other / self.names()[0], self.path / "00000000000000000040-00000099.log")
        (self.path / self.names()[0]).write_bytes((other / self.names()[0]).read_bytes()[:-1])
        assert "belongs to another history" in self.refused()

    def test_a_segment_of_a_later_version(self) -> None:
        self.make(closed=False)
        path = self.path / self.names()[-1]
        data = of_later_version(path)
        problem = "a segment has version 2, and this broker supports up to 1; use the version that"
        assert problem in self.refused()
        assert path.read_bytes() == data

    def test_operations_of_a_later_version(self) -> None:
        """They are not taken for others, and the messages of their record stay."""
        log = self.log()
        with with_unknown_operation():
            log.commit(numbered(0, 10), puts={"k": b"v"})
        log.kill()
        path = self.path / self.names()[-1]
        data = path.read_bytes()
        reason = self.refused()
        assert "the record at offset 0 has operations that this version cannot read" in reason
        assert "unknown code 9" in reason
        assert path.read_bytes() == data

    def test_a_record_of_a_later_version(self) -> None:
        """It is not taken for the end of the log."""
        log = self.log()
        log.commit(numbered(0, 10))
        with patch.object(record, "VERSION", 2):
            log.commit(numbered(10, 10))
        log.kill()
        path = self.path / self.names()[-1]
        data = path.read_bytes()
        assert "a record has version 2 and the flags 0x0, which this" in self.refused()
        assert path.read_bytes() == data

    def test_a_file_that_is_no_segment(self) -> None:
        self.make()
        for name in ("notes.log", f"{0:020}-{2**63:08}.log", f"{2**63:020}-{9:08}.log"):
            (self.path / name).write_bytes(b"x")
            assert f"{name} is not the name of a segment: move it away, or" in self.refused()
            (self.path / name).unlink()

    def test_a_segment_that_was_renamed(self) -> None:
        """It would be looked for under the name that its head stands for."""
        self.make()
        name = self.names()[1]
        base, sequence = map(int, name.removesuffix(".log").split("-"))
        for other in (f"{base}-{sequence}.log", f"{base:020}-{sequence:09}.log"):
            (self.path / name).rename(self.path / other)
            assert f"{other} is not the name of a segment" in self.refused()
            (self.path / other).rename(self.path / name)

    def test_a_file_in_the_place_of_the_directory(self) -> None:
        self.path.write_bytes(b"x")
        assert "is a file" in self.refused()


class LeftoverTests(RecoveryCase):
    """The files of an interrupted rewrite"""

    def test_incomplete_files_are_removed(self) -> None:
        stop = self.make()
        for name in (
            "00000000000000000000-00000099.log.new",
            "00000000000000000000-00000099.index",
        ):
            (self.path / name).write_bytes(b"x" * 100)
        assert self.offsets(self.log()) == list(range(stop))
        assert not [name for name in os.listdir(self.path) if "00000099" in name]

    def rewrite(self, first: int, stop: int) -> tuple[list[Path], Path]:
        """Crash when segments have been rewritten; return the old files and the new one."""
        log = self.log()
        sources = log.catalog.segments[first:stop]
        number = log.writer.take_sequence()
        rewrite = Rewrite(log.directory, log.catalog, sources, number, DEFAULT_GRAIN)
        for _ in rewrite.steps():
            pass
        new, _ = rewrite.finish()
        log.kill()
        return [self.path / one.name for one in sources], self.path / new.name

    def test_segments_that_were_rewritten_are_removed(self) -> None:
        stop = self.make()
        old, new = self.rewrite(2, 4)
        for _ in range(2):
            lines = logged(self)
            log = self.log()
            assert self.offsets(log) == list(range(stop))
            assert log.recovered.offset == stop
            listed = [(row.base, row.sequence) for row in log.metadata.segments()]
            assert listed == [one.place for one in log.catalog.segments[:-1]]
            assert not lines
            log.kill()
            for path in old:
                assert not path.exists()
                assert not path.with_suffix(".index").exists()
            assert new.exists()

    def test_they_stay_while_the_new_one_is_not_whole(self) -> None:
        stop = self.make()
        old, new = self.rewrite(2, 4)
        whole = new.read_bytes()
        for data in (whole[:-1], whole[:-HEAD_BYTES] + bytes(9)):
            new.write_bytes(data)
            new.with_suffix(".index").unlink(missing_ok=True)
            path = self.copy()
            log = self.log(path)
            assert self.offsets(log) == list(range(stop))
            for one in old:
                assert (path / one.name).exists()

    def test_they_stay_while_the_metadata_lack_their_operations(self) -> None:
        """The file is one of before, as a backup of it would be."""
        self.make()
        saved = self.path.with_name("saved")
        shutil.copy(self.path / "metadata.db", saved)
        log = self.log()
        log.commit(numbered(40, 50), puts={"k": b"new"})
        log.sync()
        log.close()
        self.rewrite(4, 6)
        for path in self.path.glob("metadata.db*"):
            path.unlink()
        saved.rename(self.path / "metadata.db")
        for _ in range(2):
            log = self.log()
            assert log.items() == {"k": b"new"}
            assert self.offsets(log) == list(range(50))
            log.kill()

    def test_a_segment_whose_creation_was_interrupted(self) -> None:
        for size in (0, SEGMENT_HEAD_BYTES - 1, SEGMENT_HEAD_BYTES):
            stop = self.make()
            name = f"{stop:020}-00000099.log"
            (self.path / name).write_bytes(bytes(size))
            lines = logged(self)
            log = self.log()
            assert self.offsets(log) == list(range(stop))
            assert log.recovered.offset == stop
            assert name not in os.listdir(self.path)
            assert not lines
            log.kill()
            shutil.rmtree(self.path)
