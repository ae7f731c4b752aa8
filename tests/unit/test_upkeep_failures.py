"""Upkeep of the log while files are missing, or the metadata or the disk cannot be written."""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Callable, Iterable
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.metadata.metadata import Metadata
from pubsub.store.segments import segment
from pubsub.store.segments.log_directory import METADATA, RESERVE, LogDirectory
from pubsub.store.segments.segment import Segment
from pubsub.store.upkeep import rewrite
from pubsub.store.upkeep.retention_limits import MICROSECONDS, RetentionLimits
from tests.unit.fakes import scratch
from tests.unit.raising import raised
from tests.unit.streams import logged
from tests.unit.upkeep_log import NOW, Log


class FailureCase(SynchronousTestCase):
    """A log of segments of 100 messages."""

    def setUp(self) -> None:
        self.path = scratch(self) / "history"
        # The disk of the machine that runs the tests may be nearly full.
        self.free = self.total = 2**40
        self.patch(LogDirectory, "free_bytes", lambda _: (self.free, self.total))  # type: ignore[no-untyped-call]

    def fill(self, segments: int, *limits: RetentionLimits) -> Log:
        """Return the log, with so many segments that are complete."""
        log = Log(self.path, *limits)
        self.addCleanup(log.close)
        for _ in range(100 * segments):
            log.put(("a", b"%d" % log.next), age=1000)
            if not log.next % 100:
                log.seal()
        return log


class RewriteTests(FailureCase):
    """A rewritten segment that cannot be put in its place"""

    def lock(self, log: Log) -> Callable[[], object]:
        """Lock the metadata as another program does; return the end of that."""
        log.metadata.wait_for_locks(0)
        other = sqlite3.connect(self.path / METADATA, isolation_level=None)
        self.addCleanup(other.close)
        other.execute("BEGIN IMMEDIATE")
        return lambda: other.execute("ROLLBACK")

    def test_locked_metadata_leave_one_file(self) -> None:
        log = self.fill(1)
        end = self.lock(log)
        before = log.messages()
        for _ in range(5):
            raised(sqlite3.OperationalError, log.rest)
        sources = log.catalog.segments[:1]
        new = set(log.directory.segments()) - {one.name for one in log.catalog.segments}
        assert len(new) == 1
        end()
        log.rest()
        assert log.files() == 2
        assert {log.catalog.segments[0].name} == new
        assert not {one.name for one in sources} & set(log.directory.segments())
        assert log.messages() == before

    def test_it_is_removed_if_the_disk_becomes_full(self) -> None:
        log = self.fill(2)
        end = self.lock(log)
        raised(sqlite3.OperationalError, log.rest)
        self.free = 2**27
        end()
        assert log.upkeep.step(NOW)
        self.free = self.total
        log.rest()
        assert log.files() == 2
        assert list(log.messages()) == [*range(100, 200)]

    def test_names_that_cannot_be_synced(self) -> None:
        log = self.fill(1)
        before, names = log.messages(), set(os.listdir(self.path))
        broken = OSError(errno.EIO, os.strerror(errno.EIO))
        for name in ("rename", "sync"):
            with mock.patch.object(LogDirectory, name, side_effect=broken):
                for _ in range(2):
                    assert raised(OSError, log.rest) is broken
            assert set(os.listdir(self.path)) <= names | {"reserve"}
        log.rest()
        assert log.files() == 2
        assert log.messages() == before


class UnreadableTests(FailureCase):
    """A segment that cannot be read, with its index, does not stop the upkeep of the others"""

    def check(self, log: Log) -> None:
        """Check the upkeep of a log without its second segment, whose messages expire."""
        begin, stop = 100, 200
        lines = logged(self)
        for _ in range(3):
            log.rest()
        reports = [one for one in lines if "damaged" in one]
        assert reports == [f"history: offsets {begin} to {stop - 1} are damaged"]
        assert log.catalog.damage.ranges(0) == [(begin, stop)]
        first, second, *_ = log.catalog.segments
        assert (first.base, second.base) == (0, begin)
        # The others are rewritten.
        assert first.index.records < 10
        log.rest(NOW + 10_000 * MICROSECONDS)
        assert log.files() == 1
        assert log.catalog.first == 400

    def test_files_that_were_removed(self) -> None:
        log = self.fill(4, RetentionLimits("*", seconds=5000))
        for one in log.catalog.segments[:-1]:
            one.release()
        name = log.catalog.segments[1].name
        for suffix in (".log", ".index"):
            (self.path / name).with_suffix(suffix).unlink()
        self.check(log)

    def test_a_broken_part_of_the_disk(self) -> None:
        log = self.fill(4, RetentionLimits("*", seconds=5000))
        for one in log.catalog.segments[:-1]:
            one.release()
        self.fail_to_open(log.catalog.segments[1], errno.EIO)
        self.check(log)

    def fail_to_open(self, broken: Segment, number: int) -> None:
        """Let the files of a segment fail to open with this error."""
        opened = segment._open
        stem = broken.name.removesuffix(".log")

        def fail(directory: int, name: str) -> int:
            if name.startswith(stem):
                raise OSError(number, os.strerror(number))
            return opened(directory, name)

        self.patch(segment, "_open", fail)  # type: ignore[no-untyped-call]

    def test_an_error_that_passes_is_no_damage(self) -> None:
        log = self.fill(2, RetentionLimits("*", seconds=5000))
        before = log.messages()
        for one in log.catalog.segments[:-1]:
            one.release()
        opened = segment._open
        suffixes: tuple[str, ...] = (".log", ".index")

        def fail(directory: int, name: str) -> int:
            if name.endswith(suffixes):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            return opened(directory, name)

        with mock.patch.object(segment, "_open", fail):
            assert raised(OSError, log.rest).errno == errno.EMFILE
            suffixes = (".log",)
            assert raised(OSError, log.rest).errno == errno.EMFILE
        log.rest()
        assert not log.catalog.damage.ranges(0)
        assert log.files() == 3
        assert all(one.index.records < 10 for one in log.catalog.segments)
        assert log.messages() == before


class FullDiskTests(FailureCase):
    """A disk on which nothing can be written until the reserve is given back"""

    def test_what_has_expired_is_removed(self) -> None:
        log = self.fill(3, RetentionLimits("*", seconds=5000))
        log.rest()
        stored = Metadata.set_horizons

        def store(metadata: Metadata, horizons: Iterable[tuple[str, int]]) -> None:
            if (self.path / RESERVE).exists() and not self.free:
                raise sqlite3.OperationalError("database or disk is full")
            stored(metadata, horizons)

        self.patch(Metadata, "set_horizons", store)  # type: ignore[no-untyped-call]
        self.patch(LogDirectory, "keep_reserve", lambda _: None)  # type: ignore[no-untyped-call]
        self.free = 0
        log.upkeep.step(NOW + 10_000 * MICROSECONDS)
        self.free = self.total
        log.rest(NOW + 10_000 * MICROSECONDS)
        assert log.files() == 1
        assert log.catalog.first == 300


class PaceTests(FailureCase):
    """What the next steps need"""

    def test_segments_expire_early_one_after_another(self) -> None:
        """Not one in each second: messages may come faster than that."""
        log = self.fill(3)
        self.free = 2**27
        assert [log.upkeep.step(NOW) for _ in range(4)] == [True, True, True, False]
        assert log.catalog.first == 300

    def test_new_limits_are_kept_in_the_next_segments_too(self) -> None:
        log = self.fill(0)
        log.put(("a", b"x"))
        log.upkeep.reconfigure([RetentionLimits("a", messages=8)], False)
        log.upkeep.step(NOW)
        log.seal()
        for _ in range(50):
            log.put(("a", b"x"))
        log.rest()
        assert len(log.read("a")) == 8


class CheckTests(FailureCase):
    """The check after a crash, while upkeep removes segments"""

    def test_it_goes_on_behind_a_segment_that_was_removed(self) -> None:
        limits = RetentionLimits("*", seconds=5000)
        log = Log(self.path, limits)
        for number, age in enumerate((1000, 1000, 0)):
            log.put(("a", b"message %d" % number), age=age)
            log.seal()
        log.metadata.close()
        log.directory.close()
        third = sorted(self.path.glob("*.log"))[2]
        third.write_bytes(third.read_bytes().replace(b"message 2", b"message x"))
        log = Log(self.path, limits)
        self.addCleanup(log.close)
        lines = logged(self)
        # The check begins with three segments, of which the first two expire at once.
        log.upkeep.step(NOW)
        for one in log.catalog.segments[:3]:
            one.release()
        for _ in range(10):
            log.upkeep.step(NOW + 4500 * MICROSECONDS)
        assert log.catalog.low == 2
        assert "history: offsets 2 to 2 are damaged" in lines
        assert "history: the check is complete; damaged records: 1" in lines

    def test_it_goes_on_after_an_error_that_passes(self) -> None:
        """Too many open files are no damage, and do not end the check."""
        log = Log(self.path)
        for number in range(3):
            log.put(("a", b"message %d" % number))
            log.seal()
        log.metadata.close()
        log.directory.close()
        log = Log(self.path)
        self.addCleanup(log.close)
        lines = logged(self)
        opened, first = segment._open, log.catalog.segments[0].name.removesuffix(".log")
        # The other steps, which fail before it, are tried again anyway.
        self.patch(log.upkeep, "_rewrite_step", lambda: False)  # type: ignore[no-untyped-call]
        for suffixes in ((".log", ".index"), (".log",)):
            log.upkeep.step(NOW)
            for one in log.catalog.segments[:3]:
                one.release()

            def fail(directory: int, name: str, failing: tuple[str, ...] = suffixes) -> int:
                if name.endswith(failing) and not name.startswith(first):
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return opened(directory, name)

            with mock.patch.object(segment, "_open", fail):
                for _ in range(3):
                    assert raised(OSError, log.rest).errno == errno.EMFILE
        log.rest()
        assert not log.catalog.damage.ranges(0)
        assert lines == ["history: the check is complete; damaged records: 0"]


class DeadTests(FailureCase):
    """Segments of which most has expired, among many"""

    def test_all_of_them_are_looked_at_again_and_again(self) -> None:
        self.patch(rewrite, "_EXAMINED", 2)  # type: ignore[no-untyped-call]
        self.patch(rewrite, "_SMALL_SEGMENT", 0)  # type: ignore[no-untyped-call]
        log = Log(self.path)
        self.addCleanup(log.close)
        for number in range(7):
            log.put((f"topic {number}", bytes(10_000)), ("kept", b"%d" % number))
            log.seal()
        log.rest()
        # In an order in which each is found only by another pass.
        for number in (6, 1, 4):
            log.end(f"topic {number}")
            log.rest()
            for _ in range(5):
                log.upkeep.step(NOW)
            assert log.catalog.segments[number].index.end < 1000
        assert [payload for _, _, payload in log.read("kept")] == [b"%d" % n for n in range(7)]
