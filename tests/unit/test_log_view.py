"""A log that is read while another process writes it."""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import StartError
from pubsub.store.catalog.catalog import Catalog
from pubsub.store.reading.log_reader import topics_in
from pubsub.store.reading.log_view import LogView
from pubsub.store.segments.segment import SegmentHead
from tests.histories import History, damage, history
from tests.unit.fakes import scratch
from tests.unit.raising import raised
from tests.unit.shown_log import Shown, numbers, shown


class ViewCase(SynchronousTestCase):
    """A log that a broker writes, and a view of it."""

    def setUp(self) -> None:
        self.path = scratch(self) / "history"
        self.broker = History(self.path, 10**15)
        self.addCleanup(lambda: self.broker.close())

    def put(self, *ranges: range, topic: str = "t") -> None:
        for each in ranges:
            self.broker.put(topic, numbers(each))

    def restart(self) -> None:
        """Begin another segment."""
        self.broker.close()
        self.broker = History(self.path, 10**15)

    def view(self) -> LogView:
        view = LogView(self.path)
        self.addCleanup(view.close)
        return view

    def segments(self) -> list[Path]:
        return sorted(self.path.glob("*.log"))


class FollowingTests(ViewCase):
    """Messages that the broker appends"""

    def test_records_are_shown_when_they_are_written(self) -> None:
        view = self.view()
        assert shown(view.refresh()) == ([], [])
        for start in range(0, 50, 10):
            self.put(range(start, start + 10))
            assert shown(view.refresh()) == (numbers(range(start + 10)), [])
            if start % 20:
                self.restart()
        assert len(self.segments()) == 3
        assert [name for name, _ in view.epochs][-1] == self.broker.epoch
        assert len(view.epochs) == 3

    def test_the_bounds_of_segments(self) -> None:
        for _ in range(3):
            self.put(range(10))
            self.restart()
        view = self.view()
        assert view.segment_bounds(0, 30) == [10, 20]
        assert view.segment_bounds(5, 20) == [10]

    def test_a_topic_ends_before_the_metadata_have_a_copy_of_it(self) -> None:
        view = self.view()
        self.put(range(5), topic="a")
        self.put(range(5, 8), topic="b")
        self.broker.end("a", sync=False)
        self.put(range(8, 9), topic="a")
        assert self.broker.metadata.ended() == {}
        for one in (view, self.view()):
            assert shown(one.refresh())[0] == numbers(range(5, 9))
            assert topics_in(one.refresh(), 0, 9)["a"][0] == 1
        self.broker.writer.sync()
        assert shown(view.refresh())[0] == numbers(range(5, 9))

    def test_horizons_apply_in_the_order_of_the_patterns(self) -> None:
        view = self.view()
        self.put(range(5), topic="z/a")
        self.put(range(5, 7), range(7, 9), topic="b")
        self.broker.metadata.set_horizons([("z/*", 0), ("*", 7)])
        assert shown(view.refresh())[0] == numbers(range(5), range(7, 9))
        self.broker.metadata.set_horizons([("z/*", 5), ("*", 9)])
        assert shown(view.refresh()) == ([], [])
        assert view.refresh().first == 5


class EndTests(ViewCase):
    """The end of the newest segment"""

    @given(st.integers(0, 2000), st.binary(max_size=300))
    def test_an_incomplete_record_is_neither_read_nor_damage(
        self, left: int, behind: bytes
    ) -> None:
        self.put(range(self.broker.next, self.broker.next + 10))
        self.put(range(self.broker.next, self.broker.next + 30))
        copied = scratch(self) / "copy"
        shutil.copytree(self.path, copied)
        (newest,) = copied.glob("*.log")
        with newest.open("r+b") as file:
            data = file.read().rstrip(b"\0")
            file.truncate(max(len(data) - left, 64))
            file.seek(0, os.SEEK_END)
            file.write(behind)
        view = LogView(copied)
        try:
            found, damaged = shown(view.refresh())
        finally:
            view.close()
        assert damaged == []
        assert found == numbers(range(len(found)))
        assert len(found) % 10 == 0

    def test_damage_before_a_record_that_is_intact_is_reported(self) -> None:
        self.put(range(5), range(5, 8), range(8, 12))
        view = self.view()
        self.broker.writer.sync()
        damage(self.path, 5)
        assert shown(self.view().refresh()) == (numbers(range(5), range(8, 12)), [(5, 8)])
        # The records that were verified before are read again.
        assert shown(view.refresh()) == (numbers(range(5), range(8, 12)), [(5, 8)])

    def test_a_record_that_is_completed_while_it_is_read_is_shown(self) -> None:
        self.put(range(5), range(5, 8))
        (newest,) = self.segments()
        whole = newest.read_bytes()
        damage(self.path, 0)
        real = os.pread
        calls = iter(range(100))

        def reading(file: int, size: int, position: int) -> bytes:
            # The first read of records sees the record as it was while it was written.
            data = real(file, size, position)
            if size > 1000 and next(calls) == 0:
                newest.write_bytes(whole)
            return data

        with patch("os.pread", reading):
            assert shown(self.view().refresh()) == (numbers(range(8)), [])


class FileTests(ViewCase):
    """Files that are removed, missing or strange"""

    def setUp(self) -> None:
        super().setUp()
        for start in (0, 10, 20):
            self.put(range(start, start + 10))
            self.restart()

    def test_a_missing_segment_is_a_damaged_range(self) -> None:
        self.segments()[1].unlink()
        assert shown(self.view().refresh()) == (numbers(range(10), range(20, 30)), [(10, 20)])

    def test_a_segment_goes_missing_while_it_is_read(self) -> None:
        view = self.view()
        self.segments()[1].unlink()
        found = view.read(shown, refresh=False)
        assert found == (numbers(range(10), range(20, 30)), [(10, 20)])

    def test_the_newest_segments_are_missing(self) -> None:
        self.put(range(30, 33))
        self.broker.store("t", "k", b"v")
        for path in self.segments()[2:]:
            path.unlink()
        assert shown(self.view().refresh()) == (numbers(range(20)), [(20, 33)])

    def test_a_segment_that_has_expired_is_no_damage(self) -> None:
        view = self.view()
        oldest, metadata = self.segments()[0], self.broker.metadata

        def expire() -> None:
            metadata.replace_segments([(0, 1)], [], 10)
            oldest.unlink()

        def read(catalog: Catalog) -> Shown:
            for call in expiring:
                call()
            return shown(catalog)

        expiring: Iterator[partial[None]] = iter([partial(expire)])
        assert view.read(read) == (numbers(range(10, 30)), [])
        assert view.refresh().first == 10

    def test_a_segment_that_was_rewritten_is_read_once(self) -> None:
        """For a moment both files are there; the one with the larger number is valid."""
        view = self.view()
        oldest, second = self.segments()[:2]
        shutil.copy(second, second.with_name(f"{10:020}-{99:08}.log"))
        with second.with_name(f"{10:020}-{99:08}.log").open("r+b") as file:
            head = SegmentHead.decode(file.read(64))
            file.seek(0)
            file.write(dataclasses.replace(head, sequence=99).encode())
        assert shown(view.refresh()) == (numbers(range(30)), [])
        second.unlink()
        assert shown(view.refresh()) == (numbers(range(30)), [])
        assert oldest.exists()

    def test_a_segment_that_was_cut_is_damaged_from_there(self) -> None:
        path = self.segments()[1]
        os.truncate(path, 300)
        assert shown(self.view().refresh()) == (numbers(range(10), range(20, 30)), [(10, 20)])

    def test_files_that_do_not_belong_there(self) -> None:
        other = scratch(self) / "other"
        with history(other) as log:
            log.put("t", [b"other"] * 50)
        (foreign,) = other.glob("*.log")
        foreign.rename(self.path / f"{10:020}-{77:08}.log")
        (self.path / f"{10:020}-{78:08}.log").symlink_to(self.segments()[1])
        (self.path / "notes.log").write_text("text")
        (self.path / f"{10:020}-{79:08}.log").write_bytes(b"")
        view = self.view()
        assert shown(view.refresh()) == (numbers(range(30)), [])
        reasons = [view.unusable[name] for name in sorted(view.unusable)]
        assert len(reasons) == 3
        assert "belongs to another history" in reasons[0]
        assert "not a regular file" in reasons[1]
        assert "not that of a segment" in reasons[2]

    def test_no_metadata(self) -> None:
        (self.path / "metadata.db").rename(self.path / "metadata.old")
        reason = str(raised(StartError, LogView, self.path))
        assert reason.endswith(f"with pubsub history repair --store log:{self.path}")

    def test_a_directory_that_cannot_be_written_in(self) -> None:
        self.broker.close()
        for rest in self.path.glob("metadata.db-*"):
            rest.unlink()
        with patch("os.access", side_effect=lambda _, mode, **__: not mode & os.W_OK):
            assert shown(self.view().refresh())[0] == numbers(range(30))
        assert not list(self.path.glob("metadata.db-*"))
        self.broker = History(self.path, 10**15)
