"""Errors of a disk in the middle of a segment: transient ones, and those that stay."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NoReturn

from click.testing import CliRunner
from twisted.trial.unittest import SynchronousTestCase

from pubsub.commands.history import history
from pubsub.store.catalog import read_errors
from pubsub.store.catalog.read_errors import PATIENCE, ReadErrors
from pubsub.store.maintenance import log_backup, log_check
from pubsub.store.maintenance.log_check import LogCheck
from pubsub.store.reading.log_reader import offset_at, read_page, read_parcel, topics_in
from pubsub.store.reading.log_view import LogView
from pubsub.store.segments import segment
from pubsub.store.segments.log_directory import LogDirectory
from pubsub.store.segments.segment import index_name
from tests.unit.fakes import scratch
from tests.unit.raising import raised
from tests.unit.streams import logged
from tests.unit.upkeep_log import Log

# Messages 0 to 39, one of 8 KiB in each record: the broken page is within the message 20.
_LOST = range(20, 21)
_PAYLOAD = bytes(range(256)) * 32


class _Disk:
    """``os`` for the module ``segment``: a page of one file that cannot be read."""

    def __init__(self) -> None:
        self.file = ""
        self.broken: set[int] = set()
        self.names: Sequence[str] = ()
        self.error = errno.EIO
        self.failures = 0

    def __getattr__(self, name: str) -> object:
        return getattr(os, name)

    def pread(self, file: int, size: int, start: int) -> bytes:
        """Read, unless a broken page is touched."""
        name = os.path.basename(os.readlink(f"/proc/self/fd/{file}"))
        touched = (start < page + 4096 and page < start + size for page in self.broken)
        if name == self.file and any(touched):
            self.failures += 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return os.pread(file, size, start)

    def link(self, *given: object, **named: object) -> None:
        """Another disk has no links to files of this one."""
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    def open(self, name: str, *given: object, **named: object) -> int:
        """Open a file, unless it is one of ``names``."""
        if name in self.names:
            self.failures += 1
            raise OSError(self.error, os.strerror(self.error))
        return os.open(name, *given, **named)  # type: ignore[arg-type]


class ReadErrorCase(SynchronousTestCase):
    """A sealed segment with a message across a page that breaks."""

    def setUp(self) -> None:
        self.path = scratch(self) / "history"
        self.log = self.open()
        for _ in range(40):
            self.log.put(("a" if self.log.next % 2 else "b", _PAYLOAD))
        self.log.seal()
        self.disk = _Disk()
        self.now = 0.0
        self.patch(segment, "os", self.disk)  # type: ignore[no-untyped-call]
        self.lines = logged(self)

    def open(self) -> Log:
        log = Log(self.path)
        self.closed = False
        log.catalog.read_errors = ReadErrors(log.catalog.damage, lambda: self.now)
        self.addCleanup(self.close)
        return log

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.log.close()

    def break_page(self, message: int = _LOST.start) -> None:
        (first, *_) = self.log.catalog.segments
        self.disk.file = first.name
        position = (self.path / first.name).read_bytes().index(_PAYLOAD)
        each = (first.index.end - position) // 40
        self.disk.broken = {(position + message * each + 4096) // 4096 * 4096}

    def read(self) -> tuple[set[int], list[tuple[int, int]]]:
        """Return the offsets that are read, and the damaged ranges."""
        found: set[int] = set()
        damaged: list[tuple[int, int]] = []
        at = 0
        while at < 40:
            page = read_page(self.log.catalog, at, None, 2**20)
            for one in page.batches:
                found |= {*range(one.offset, one.offset + one.count)}
            damaged += page.damaged
            at = page.next_offset
        return found, damaged

    def fail_for_long(self) -> None:
        assert raised(OSError, self.read).errno == errno.EIO
        self.now += PATIENCE


class FigureTests(ReadErrorCase):
    """ReadErrors.figures"""

    def unreadable(self) -> float:
        return self.log.catalog.read_errors.figures()["unreadable_segments"]

    def forbid(self) -> None:
        (first, *_) = self.log.catalog.segments
        first.last_timestamp  # noqa: B018
        first.release()
        self.disk.names, self.disk.error = (first.name, index_name(first.name)), errno.EACCES
        assert raised(OSError, self.read).errno == errno.EACCES

    def test_a_segment_that_may_not_be_opened_until_it_may(self) -> None:
        assert self.unreadable() == 0
        self.forbid()
        assert self.unreadable() == 1
        self.disk.names = ()
        self.read()
        assert self.unreadable() == 0

    def test_an_index_in_memory_does_not_show_that_the_messages_can_be_read(self) -> None:
        self.break_page()
        assert raised(OSError, self.read).errno == errno.EIO
        topics_in(self.log.catalog, 0, 40)
        assert self.unreadable() == 1
        self.disk.broken.clear()
        self.read()
        assert self.unreadable() == 0

    def test_a_segment_that_nobody_reads_any_more(self) -> None:
        self.forbid()
        self.now += 599
        assert self.unreadable() == 1
        self.now += 1
        assert self.unreadable() == 0

    def test_a_page_that_fails_until_it_counts_as_damaged(self) -> None:
        self.break_page()
        assert raised(OSError, self.read).errno == errno.EIO
        assert self.unreadable() == 1
        self.now += PATIENCE
        self.read()
        assert self.unreadable() == 0
        assert self.log.catalog.damage.ranges(0) == [(_LOST.start, _LOST.stop)]

    def test_a_file_that_was_replaced_is_no_error(self) -> None:
        (first, *_) = self.log.catalog.segments
        first.release()
        self.disk.names, self.disk.error = (first.name, index_name(first.name)), errno.ENOENT
        self.read()
        assert self.unreadable() == 0


class PersistentTests(ReadErrorCase):
    """A page that cannot be read"""

    rest = {*range(40)} - {*_LOST}
    lost = (_LOST.start, _LOST.stop)

    def test_readers_go_on_with_the_range_reported(self) -> None:
        self.break_page()
        self.fail_for_long()
        for _ in range(3):
            assert self.read() == (self.rest, [self.lost])
        assert self.log.catalog.damage.ranges(0) == [self.lost]
        errors = [one for one in self.lines if "does not give" in one]
        assert len(errors) == 1
        assert "offsets 20 to 20 in" in errors[0]

    def test_other_readers(self) -> None:
        self.break_page()
        self.fail_for_long()
        catalog = self.log.catalog
        parcel = read_parcel(catalog, 0, 40, None, 2**30)
        assert (parcel.stop, parcel.damaged) == (_LOST.stop, self.lost)
        parcel = read_parcel(catalog, _LOST.stop, 40, None, 2**30)
        assert (parcel.stop, parcel.damaged) == (40, None)
        assert topics_in(catalog, 0, 40) == {
            "a": (20, 20 * (len(_PAYLOAD) + 2)),
            "b": (20, 20 * (len(_PAYLOAD) + 2)),
        }
        assert offset_at(catalog, 0) == 0

    def test_the_disk_is_spared_between_attempts(self) -> None:
        self.break_page()
        self.fail_for_long()
        self.read()
        before = self.disk.failures
        for _ in range(10):
            self.read()
        assert self.disk.failures == before
        self.now += 61
        self.read()
        assert self.disk.failures > before
        assert self.log.catalog.read_errors.count > 1

    def test_a_disk_that_fails_altogether(self) -> None:
        """Not each page of an entry is tried."""
        self.break_page()
        self.disk.broken = {*range(0, 2**20, 4096)}
        self.fail_for_long()
        assert self.read() == (set(), [(0, 31), (31, 40)])
        assert self.disk.failures < 40

    def test_neither_index_nor_segment(self) -> None:
        (first, *_) = self.log.catalog.segments
        first.last_timestamp  # noqa: B018
        first.release()
        self.disk.names = (first.name, first.name.replace(".log", ".index"))
        self.fail_for_long()
        assert self.read() == (set(), [(0, 40)])
        assert topics_in(self.log.catalog, 0, 40) == {}
        assert offset_at(self.log.catalog, 0) == 0
        before = self.disk.failures
        assert self.read()[1]
        assert self.disk.failures == before
        self.disk.names = ()
        self.now += 61
        assert self.read() == ({*range(40)}, [])
        assert self.log.catalog.damage.ranges(0) == []


class TransientTests(ReadErrorCase):
    """A page that can be read again"""

    def test_an_error_that_passes_loses_nothing(self) -> None:
        self.break_page()
        assert raised(OSError, self.read).errno == errno.EIO
        self.now += PATIENCE / 2
        assert raised(OSError, self.read).errno == errno.EIO
        self.disk.broken = set()
        self.now += PATIENCE
        assert self.read() == ({*range(40)}, [])
        assert self.log.catalog.damage.ranges(0) == []

    def test_single_errors_far_apart_lose_nothing(self) -> None:
        self.break_page()
        for _ in range(5):
            assert raised(OSError, self.read).errno == errno.EIO
            self.now += 1000

    def test_messages_come_back(self) -> None:
        self.break_page()
        self.fail_for_long()
        assert self.read()[1]
        self.disk.broken = set()
        self.now += 61
        assert self.read() == ({*range(40)}, [])
        assert self.log.catalog.damage.ranges(0) == []
        assert any("gives offsets 20 to 20 again" in one for one in self.lines)

    def test_other_pages_are_broken_the_next_time(self) -> None:
        """Otherwise messages that are read would count as damaged from then on."""
        self.break_page()
        self.fail_for_long()
        assert self.read()[1] == [(20, 21)]
        self.break_page(22)
        self.now += 61
        assert self.read()[1] == [(22, 23)]
        assert self.log.catalog.damage.ranges(0) == [(22, 23)]
        self.disk.broken = set()
        self.now += 61
        assert self.read() == ({*range(40)}, [])
        assert self.log.catalog.damage.ranges(0) == []

    def test_nothing_is_stored(self) -> None:
        before = self.contents()
        self.break_page()
        self.fail_for_long()
        assert self.read()[1]
        for _ in range(20):
            self.log.upkeep.step(0)
        self.disk.broken = set()
        assert self.contents() == before
        self.close()
        self.log = self.open()
        assert self.read() == ({*range(40)}, [])

    def test_the_check_after_a_crash(self) -> None:
        """What it finds is no longer damaged when a reader gets it."""
        self.break_page()
        (first, *_) = self.log.catalog.segments
        errors = self.log.catalog.read_errors
        found = [
            errors.records_at_once(first, first.index.entry(number))
            for number in range(len(first.index))
        ]
        assert [one for items in found for one in items if isinstance(one, tuple)] == [(20, 21)]
        assert self.log.catalog.damage.ranges(0) == [(20, 21)]
        assert raised(OSError, self.read).errno == errno.EIO
        self.disk.broken = set()
        assert self.read() == ({*range(40)}, [])
        assert self.log.catalog.damage.ranges(0) == []

    def test_a_segment_that_upkeep_cannot_open(self) -> None:
        (first, *_) = self.log.catalog.segments
        first.release()
        self.disk.names = (first.name, first.name.replace(".log", ".index"))
        for _ in range(20):
            self.log.upkeep.step(0)
        assert self.log.catalog.damage.ranges(0) == [(0, 40)]
        assert raised(OSError, self.read).errno == errno.EIO
        self.disk.names = ()
        assert self.read() == ({*range(40)}, [])
        assert self.log.catalog.damage.ranges(0) == []

    def contents(self) -> dict[str, bytes]:
        return {one.name: one.read_bytes() for one in self.path.glob("*.log")}


class OtherProcessTests(ReadErrorCase):
    """Processes that read the directory"""

    def view(self, path: Path) -> tuple[list[int], list[tuple[int, int]]]:
        found: list[int] = []
        damaged: list[tuple[int, int]] = []
        with closing(LogView(path)) as view:
            for parcel in view.parcels(0, 40, None):
                for block, _ in parcel.blocks:
                    found += range(block.base, block.base + block.count)
                damaged += [parcel.damaged] if parcel.damaged else []
        return found, damaged

    def test_a_view_waits_and_goes_on(self) -> None:
        slept: list[float] = []
        self.patch(time, "sleep", slept.append)  # type: ignore[no-untyped-call]
        self.patch(read_errors, "PATIENCE", 0.0)  # type: ignore[no-untyped-call]
        self.break_page()
        assert self.view(self.path) == ([n for n in range(40) if n not in _LOST], [(20, 21)])


class CommandTests(ReadErrorCase):
    """``pubsub history``"""

    def run_on(self, command: str) -> tuple[int, str]:
        from pubsub.store.segments import segment_scan

        self.break_page()
        self.close()
        self.patch(segment_scan, "os", self.disk)  # type: ignore[no-untyped-call]
        result = CliRunner().invoke(history, [command, "--store", str(self.path)])
        return result.exit_code, result.output + str(result.exception or "")

    def test_the_check_goes_on(self) -> None:
        _, out = self.run_on("check")
        assert "the disk does not give offsets 20 to 20" in out, out
        assert "39 messages" in out, out

    def test_an_index_that_the_disk_does_not_give(self) -> None:
        """It is made from the segment, so that it is no loss."""
        self.close()
        self.disk.file, self.disk.broken = next(self.path.glob("*.index")).name, {0}
        problem = f"{self.disk.file} cannot be read: Input/output error"
        self.patch(log_check, "os", self.disk)  # type: ignore[no-untyped-call]
        for command, expected in (
            ("check", (f"{problem}\n", "40 messages")),
            ("repair", (f"{problem}; it was made again\n",)),
        ):
            result = CliRunner().invoke(history, [command, "--store", str(self.path)])
            assert result.exception is None or isinstance(result.exception, SystemExit)
            for text in expected:
                assert text in result.output
        self.disk.broken = set()
        with closing(LogCheck(self.path)) as check:
            assert list(check.problems()) == []

    def test_a_repair_changes_nothing(self) -> None:
        _, out = self.run_on("repair")
        assert "make a copy on another disk" in out, out

    def test_a_copy_on_another_disk_has_the_rest(self) -> None:
        self.break_page()
        self.close()
        self.patch(log_backup, "os", self.disk)  # type: ignore[no-untyped-call]
        copy = self.path.with_name("copy")
        result = CliRunner().invoke(history, ["backup", str(copy), "--store", str(self.path)])
        assert "the disk does not give 4096 bytes, which are zeros in the copy" in result.output
        self.disk.broken = set()
        with closing(LogCheck(copy)) as check:
            problems = list(check.problems())
            assert [one.partition(": ")[2] for one in problems] == ["offsets 20 to 20 are damaged"]
            assert check.messages == 39

    def test_errors_without_a_file_name_the_directory(self) -> None:
        error = OSError(errno.EIO, os.strerror(errno.EIO))
        self.close()
        self.patch(LogDirectory, "segments", lambda _: _raise(error))  # type: ignore[no-untyped-call]
        result = CliRunner().invoke(history, ["check", "--store", str(self.path)])
        assert isinstance(result.exception, OSError)
        assert result.exception.filename == str(self.path)


def _raise(error: OSError) -> NoReturn:
    raise error
