"""Upkeep of the log: expiry, removal, rewriting, the check after a crash, and a full disk."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable
from itertools import pairwise
from unittest import mock
from uuid import uuid4

from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.catalog.catalog import Catalog
from pubsub.store.commits.write_group import WriteGroup
from pubsub.store.maintenance.log_backup import copy_log
from pubsub.store.metadata.metadata import Metadata
from pubsub.store.opening import recovery
from pubsub.store.reading.log_reader import read_page, topics_in
from pubsub.store.records.block import Block, encode_block
from pubsub.store.records.record import Put
from pubsub.store.records.stored_runs import record_of
from pubsub.store.segments.log_directory import METADATA, RESERVE, LogDirectory
from pubsub.store.segments.segment import Segment
from pubsub.store.upkeep import rewrite, segment_builder
from pubsub.store.upkeep.retention_limits import MICROSECONDS, RetentionLimits
from pubsub.store.upkeep.segment_builder import SegmentBuilder
from tests.unit.fakes import batch_of, copy_still, open_files, scratch
from tests.unit.raising import raised
from tests.unit.streams import logged
from tests.unit.upkeep_log import NOW, Log


def offsets(found: Iterable[tuple[int, str, bytes]]) -> list[int]:
    """The offsets of messages."""
    return [offset for offset, _, _ in found]


class LogCase(SynchronousTestCase):
    """A directory for a log."""

    def setUp(self) -> None:
        self.path = scratch(self) / "history"
        # The disk of the machine that runs the tests may be nearly full.
        self.free = self.total = 2**40
        self.patch(LogDirectory, "free_bytes", lambda _: (self.free, self.total))  # type: ignore[no-untyped-call]

    def open(self, *limits: RetentionLimits) -> Log:
        """Return the log."""
        self.log = Log(self.path, *limits)
        self.addCleanup(self.log.close)
        return self.log

    def reopen(self, *limits: RetentionLimits) -> Log:
        """Close the log and return it, open."""
        self.log.close()
        self._cleanups.pop()
        return self.open(*limits)


class ReconfigurationTests(LogCase):
    """Other limits while the log is open"""

    def test_limits_of_a_new_pattern(self) -> None:
        log = self.open(RetentionLimits("*", seconds=1000))
        for number in range(40):
            log.put(("a", b"%d" % number), ("b", b""), age=100)
        log.rest()
        log.upkeep.reconfigure(
            [RetentionLimits("a", messages=8), RetentionLimits("*", seconds=1000)], False
        )
        log.rest()
        # They are in one entry of the index, which was made for the old limits.
        assert len(log.read("a")) == 40
        for number in range(40, 80):
            log.put(("a", b"%d" % number), age=100)
        log.rest()
        assert [payload for _, _, payload in log.read("a")] == [b"%d" % n for n in range(72, 80)]
        assert len(log.read("b")) == 40
        assert list(log.metadata.horizons()) == ["a", "*"]

    def test_expired_messages_stay_hidden(self) -> None:
        log = self.open(RetentionLimits("*", messages=8))
        for number in range(100):
            log.put(("a", b"%d" % number))
        log.rest()
        first = log.catalog.first
        log.upkeep.reconfigure([RetentionLimits("a", messages=1000)], False)
        log.rest()
        assert offsets(log.read()) == list(range(first, 100))
        log.upkeep.reconfigure([RetentionLimits("*", messages=4)], False)
        log.rest()
        assert offsets(log.read()) == list(range(96, 100))

    def test_the_same_limits_change_nothing(self) -> None:
        limits = [RetentionLimits("*", messages=8)]
        log = self.open(*limits)
        for number in range(100):
            log.put(("a", b"%d" % number))
        log.rest()
        before = log.read()
        log.upkeep.reconfigure(limits, False)
        log.rest()
        assert log.read() == before

    @staticmethod
    def size(log: Log) -> int:
        """Return the bytes of all segments but the last."""
        return sum((log.directory.path / s.name).stat().st_size for s in log.catalog.segments[:-1])

    def test_compression(self) -> None:
        log = self.open(RetentionLimits("*", seconds=1000))
        for _ in range(100):
            log.put(("a", b"the same again and again" * 100))
        log.seal()
        log.put(("a", b"last"))
        log.rest()
        size = self.size(log)
        log.upkeep.reconfigure([RetentionLimits("*", seconds=1000)], True)
        log.rest()
        assert self.size(log) < size / 2
        assert len(log.read()) == 101


class ExpiryTests(LogCase):
    """Limits by age, messages and bytes, for each pattern"""

    def test_age(self) -> None:
        log = self.open(RetentionLimits("*", seconds=60))
        log.put(("a", b"1"), age=100)
        log.rest()
        log.put(("a", b"2"), age=30)
        log.rest()
        assert log.read() == [(1, "a", b"2")]
        assert log.catalog.first == 1
        log.rest(NOW + 40 * MICROSECONDS)
        assert log.read() == []
        assert log.catalog.first == log.catalog.stop == 2

    def test_number_of_messages(self) -> None:
        log = self.open(RetentionLimits("*", messages=8))
        for number in range(100):
            log.put(("a", b"%d" % number))
        log.rest()
        assert offsets(log.read()) == list(range(92, 100))

    def test_as_many_are_left_in_segments_that_are_complete(self) -> None:
        log = self.open(RetentionLimits("*", messages=8))
        for number in range(100):
            log.put(("a", b"%d" % number))
        log.seal()
        log.rest()
        assert offsets(log.read()) == list(range(92, 100))

    def test_many_messages_expire_in_several_steps(self) -> None:
        log = self.open(RetentionLimits("*", messages=8))
        for number in range(700):
            log.put(("a", b"%d" % number))
        first, is_more = [0], True
        while is_more:
            is_more = log.upkeep.step(NOW)
            first.append(log.catalog.first)
        assert first[-1] == 692
        assert max(after - before for before, after in pairwise(first)) <= 256

    def test_lost_offsets_are_no_messages(self) -> None:
        """A loss of power costs up to 16,384, of which few have had a message."""
        limits = RetentionLimits("*", messages=8)
        log = self.open(limits)
        for number in range(6):
            log.put(("a", b"%d" % number))
        crashed = self.path.with_name("crashed")
        copy_still(self.path, crashed)
        boot = self.path.with_name("boot_id")
        boot.write_text(str(uuid4()))
        self.patch(recovery, "_BOOT_ID", boot)  # type: ignore[no-untyped-call]
        after = Log(crashed, limits)
        self.addCleanup(after.close)
        lost = after.next - 6
        assert lost > 10_000
        after.rest()
        assert offsets(log.read()) == self.offsets_of(after) == list(range(6))
        # All of them are in one entry of the index, which was made again.
        for number in range(7):
            after.put(("a", b"%d" % number))
        after.rest()
        assert self.offsets_of(after) == [*range(6), *range(6 + lost, 13 + lost)]
        after.put(("a", b"last"))
        after.rest()
        assert self.offsets_of(after) == list(range(6 + lost, 14 + lost))
        # The lost ones expire in their turn.
        after.put(("a", b"more"))
        after.rest()
        assert offsets(after.read()) == list(range(7 + lost, 15 + lost))

    @staticmethod
    def offsets_of(log: Log) -> list[int]:
        """Return the offsets of the messages that can be read, also beside lost ones."""
        page = read_page(log.catalog, 0, None, 2**30)
        return [one.offset + at for one in page.batches for at in range(one.count)]

    def test_so_are_if_the_index_is_made_again(self) -> None:
        log = self.open()
        for number in range(100):
            log.put(("a", b"%d" % number))
        log.seal()
        (index,) = self.path.glob("*.index")
        index.unlink()
        log = self.reopen(RetentionLimits("*", messages=8))
        for _ in range(50):
            log.put(("a", b"x"))
        log.rest()
        assert offsets(log.read()) == list(range(142, 150))

    def test_small_limits_beside_large_ones(self) -> None:
        """They would expire together if the large ones decided."""
        log = self.open(
            RetentionLimits("a", messages=8),
            RetentionLimits("b", messages=8000),
            RetentionLimits("c", nbytes=1000),
            RetentionLimits("d", nbytes=10**6),
        )
        for _ in range(100):
            log.put(("a", b""), ("b", b""), ("c", bytes(100)), ("d", b""))
        log.rest()
        assert len(log.read("a")) == 8
        assert 8 <= len(log.read("c")) <= 10
        assert len(log.read("b")) == len(log.read("d")) == 100

    def test_bytes(self) -> None:
        log = self.open(RetentionLimits("*", nbytes=1000))
        for _ in range(100):
            log.put(("a", bytes(100)))
        log.rest()
        assert 8 <= len(log.read()) <= 10

    def test_nothing_is_left_of_a_commit_with_more_bytes(self) -> None:
        """Its messages expire together (docs/reliability.md)."""
        log = self.open(RetentionLimits("a", nbytes=1000), RetentionLimits("b", messages=1))
        log.put(*[("a", bytes(100))] * 11, *[("b", b"")] * 11)
        log.rest()
        assert log.read("a") == []
        assert len(log.read("b")) == 11

    def test_senders_and_headers_are_bytes(self) -> None:
        log = self.open(RetentionLimits("a", nbytes=1000), RetentionLimits("b", nbytes=1000))
        for _ in range(100):
            log.put(("a", b""), sender=b"s" * 100)
            log.put(("b", b""), headers={"key": bytes(97)})
        log.rest()
        assert 8 <= len(log.read("a")) <= 10
        assert 8 <= len(log.read("b")) <= 10
        # After a restart they are counted from the file.
        log = self.reopen(RetentionLimits("a", nbytes=400), RetentionLimits("b", nbytes=400))
        log.rest()
        assert len(log.read("a")) <= 4
        assert len(log.read("b")) <= 4

    def test_the_first_pattern_that_matches_applies(self) -> None:
        log = self.open(RetentionLimits("a*", messages=8), RetentionLimits("*", messages=16))
        for number in range(50):
            log.put(("a1", b"%d" % number), ("b", b"x"))
        log.rest()
        assert len(log.read("a1")) == 8
        assert len(log.read("b")) == 16

    def test_entries_grow_while_little_is_retained(self) -> None:
        """Steps end them only where messages are to expire."""
        log = self.open(RetentionLimits("*", seconds=60))
        for _ in range(5):
            log.put(("a", b"x"))
            log.rest()
        index = log.catalog.segments[-1].index
        assert index.closed_entries == len(index) - 1
        entries = len(index)
        log.rest(NOW + 60 * MICROSECONDS)
        assert index.closed_entries == len(index) - 1
        log.rest(NOW + 61 * MICROSECONDS)
        assert (index.closed_entries, len(index)) == (entries, entries)
        assert not log.read()

    def test_a_topic_without_a_pattern_does_not_expire(self) -> None:
        log = self.open(RetentionLimits("a", messages=8))
        for _ in range(50):
            log.put(("a", b"x"), ("b", b"x"))
        log.rest()
        assert len(log.read("b")) == 50
        assert len(log.read("a")) == 8

    def test_a_topic_that_ended_counts_no_longer(self) -> None:
        self.ends(RetentionLimits("*", messages=80))

    def test_its_bytes_count_no_longer(self) -> None:
        self.ends(RetentionLimits("*", nbytes=240))

    def ends(self, limits: RetentionLimits) -> None:
        """Have topics end of which nothing and most is left, with room for 80 messages."""
        log = self.open(limits)

        def put(topic: str, count: int) -> None:
            for _ in range(count):
                log.put((topic, b"x"))

        put("c", 10)
        put("a", 100)
        log.rest()
        assert offsets(log.read()) == list(range(30, 110))
        for topic in "ca":
            log.end(topic)
        put("a", 10)
        put("b", 70)
        log.rest()
        assert offsets(log.read()) == list(range(110, 190))
        put("b", 10)
        log.rest()
        assert offsets(log.read()) == list(range(120, 200))

    def test_the_state_survives_a_restart(self) -> None:
        limits = RetentionLimits("a", messages=8)
        log = self.open(limits)
        for _ in range(50):
            log.put(("a", b"x"), ("b", b"x"))
        log.rest()
        before = log.read()
        log = self.reopen(limits)
        assert log.read() == before
        log.put(*[("a", b"y")] * 8)
        log.rest()
        assert [payload for _, _, payload in log.read("a")] == [b"y"] * 8

    def test_topics_are_counted_without_expired_messages(self) -> None:
        log = self.open(RetentionLimits("a", messages=8))
        for _ in range(50):
            log.put(("a", b"x"), ("b", b"yy"))
        log.rest()
        assert topics_in(log.catalog, 0, 1000) == {"a": (8, 24), "b": (50, 200)}


class RemovalTests(LogCase):
    """Segments of which everything has expired are removed"""

    def test_the_first_segments_are_removed(self) -> None:
        log = self.open(RetentionLimits("*", seconds=60))
        for age in (300, 200, 10):
            log.put(("a", b"%d" % age), age=age)
            log.seal()
        assert log.files() == 4
        log.rest()
        assert log.files() == 2
        assert log.read() == [(2, "a", b"10")]
        log = self.reopen(RetentionLimits("*", seconds=60))
        assert log.catalog.first == 2
        assert log.read() == [(2, "a", b"10")]

    def test_their_space_is_given_back_when_they_are_read_no_longer(self) -> None:
        log = self.open(RetentionLimits("*", seconds=60))
        for number in range(4):
            log.put(("a", b"%d" % number), age=100)
            log.seal()
        reader = log.catalog.segments
        assert len(log.read()) == 4
        log.rest()
        assert log.read() == []
        # One that began before the removal continues.
        log.catalog.use(reader[0])
        assert reader[0].read(0, 4)
        assert self.removed_but_open()
        del reader
        assert not self.removed_but_open()

    def removed_but_open(self) -> list[str]:
        """Return the files of the log that are open, but in no directory any more."""
        found = []
        for file in os.listdir("/proc/self/fd"):
            # The listing itself had one, which is closed.
            with contextlib.suppress(FileNotFoundError):
                found.append(os.readlink(f"/proc/self/fd/{file}"))
        path = str(self.path.resolve())
        return [one for one in found if one.startswith(path) and one.endswith("(deleted)")]

    def test_offsets_go_on_when_all_has_expired(self) -> None:
        log = self.open(RetentionLimits("*", seconds=60))
        log.put(("a", b"1"), ("a", b"2"), age=300)
        log.seal()
        log.rest()
        log = self.reopen(RetentionLimits("*", seconds=60))
        log.put(("a", b"3"))
        assert log.read() == [(2, "a", b"3")]

    def test_the_metadata_of_removed_segments_does_not_depend_on_sqlites_log(self) -> None:
        log = self.open(RetentionLimits("*", seconds=60))
        log.put(("a", b"1"), age=300)
        log.writer.write(WriteGroup(puts={("t", "k"): Put("t", "k", b"v")}), sync=True)
        log.seal()
        log.put(("a", b"2"))
        log.rest()
        copy = self.path.with_name("copy.db")
        shutil.copy(self.path / METADATA, copy)
        metadata = Metadata(copy)
        assert metadata.items() == [("t", "k", b"v")]
        assert metadata.state().first == 1
        metadata.close()

    def test_a_segment_with_one_message_that_is_left_stays(self) -> None:
        log = self.open(RetentionLimits("old", seconds=60))
        log.put(("old", b"1"), ("new", b"2"), age=300)
        log.seal()
        log.put(("old", b"3"), age=300)
        log.seal()
        log.rest()
        assert log.read() == [(1, "new", b"2")]
        assert log.catalog.first == 0

    def test_a_segment_that_was_rewritten_without_messages_is_removed(self) -> None:
        log = self.open()
        log.put(("first", b"1"))
        log.seal()
        log.put(*[("a", bytes(1000))] * 10)
        log.seal()
        log.put(("last", b"2"))
        log.end("a")
        log.seal()
        log.rest()
        # The one before it has a message.
        assert log.catalog.segments[1].index.topics == frozenset()
        log.end("first")
        log.rest()
        assert log.catalog.first == 11
        assert log.read() == [(11, "last", b"2")]

    def test_topics_that_ended_are_forgotten_with_their_messages(self) -> None:
        log = self.open(RetentionLimits("*", seconds=60))
        log.put(("a", b"1"), age=300)
        log.end("a")
        log.put(("b", b"2"), age=0)
        log.end("b")
        log.put(("c", b"3"))
        log.seal()
        log.put(("c", b"4"))
        assert log.metadata.ended() == log.catalog.ended == {"a": 1, "b": 2}
        log.rest(NOW + 30 * MICROSECONDS)
        assert log.metadata.ended() == log.catalog.ended == {"a": 1, "b": 2}
        log.rest(NOW + 90 * MICROSECONDS)
        assert log.catalog.first == 4
        assert log.metadata.ended() == log.catalog.ended == {}

    def test_segments_with_changes_of_the_metadata_that_are_not_synced_stay(self) -> None:
        log = self.open(RetentionLimits("*", seconds=60))
        log.put(("a", b"1"), age=300)
        log.writer.write(WriteGroup(puts={("t", "k"): Put("t", "k", b"v")}), sync=False)
        log.writer._seal(log.next)
        log.writer._roll(log.next)
        log.rest()
        assert log.files() == 2
        log.writer.sync()
        log.rest()
        assert log.files() == 1
        assert log.metadata.items() == [("t", "k", b"v")]

    def test_many_restarts_leave_few_files(self) -> None:
        log = self.open()
        for _ in range(20):
            log = self.reopen()
        log.rest()
        assert log.files() == 1
        log.put(("a", b"1"))
        assert log.read() == [(0, "a", b"1")]


def one_message(offset: int) -> Block:
    """Return a block of one message."""
    batch = batch_of([b"x"])
    batch.offset = offset
    return encode_block([record_of(batch)], 7, offset, offset + 1)


def fail_to_read(case: LogCase, place: tuple[int, int]) -> None:
    """Let the records of one segment be on a broken part of the disk."""
    read = Segment.read

    def fail(segment: Segment, start: int, stop: int) -> bytes:
        if segment.place == place:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(segment, start, stop)

    case.patch(Segment, "read", fail)  # type: ignore[no-untyped-call]


class RewritingTests(LogCase):
    """Small records become large ones, and expired messages are removed"""

    def test_small_records_are_joined(self) -> None:
        log = self.open()
        expected = []
        for number in range(300):
            mixed = [("a", b"%d" % number), ("b", b"-" * (number % 7)), ("a", b"")]
            expected += [(3 * number + at, *one) for at, one in enumerate(mixed)]
            log.put(*mixed)
        log.seal()
        size = sum(path.stat().st_size for path in self.path.glob("*.log"))
        log.rest()
        (first, _) = log.catalog.segments
        assert first.index.records < 10
        assert sum(path.stat().st_size for path in self.path.glob("*.log")) < size
        assert log.read() == expected
        log = self.reopen()
        assert log.read() == expected
        assert log.read("b") == [one for one in expected if one[1] == "b"]

    def test_joined_records_are_not_larger_than_an_entry(self) -> None:
        log = self.open()
        for _ in range(130):
            log.put(("a", bytes(20_000)))
        log.seal()
        log.rest()
        index = log.catalog.segments[0].index
        assert 10 <= index.records <= 13
        for entry in map(index.entry, range(len(index))):
            assert entry.end - entry.position <= 260 * 1024

    def test_small_segments_are_joined(self) -> None:
        log = self.open()
        for number in range(20):
            log.put(("a", b"%d" % number))
            log.seal()
        log.rest()
        assert log.files() <= 8
        assert [payload for _, _, payload in log.read()] == [b"%d" % n for n in range(20)]

    def test_large_segments_are_not_joined(self) -> None:
        self.patch(rewrite, "_NEIGHBOURS", 3)  # type: ignore[no-untyped-call]
        self.patch(rewrite, "_SMALL_SEGMENT", 1000)  # type: ignore[no-untyped-call]
        log = self.open()
        large = []
        for size in (10, 10, 2000, 10, 2000, 2000, 10, 10, 10, 2000, 10, 10):
            if size > 1000:
                large.append(log.catalog.segments[-1].place)
            log.put(("a", bytes(size)))
            log.seal()
        before, files = log.read(), log.files()
        for _ in range(3):
            # A step looks at some of the indexes.
            log.rest()
        assert log.files() == files - 2
        assert {one.place for one in log.catalog.segments}.issuperset(large)
        assert log.read() == before

    def test_segments_of_few_or_large_records_stay(self) -> None:
        log = self.open()
        for count, size in ((60, 10), (70, 40_000)):
            for _ in range(count):
                log.put(("a", bytes(size)))
            log.seal()
        before = [one.place for one in log.catalog.segments]
        for _ in range(3):
            log.rest()
        assert [one.place for one in log.catalog.segments] == before

    def test_segments_with_changes_of_the_metadata_that_are_not_synced_stay(self) -> None:
        log = self.open()
        for number in range(100):
            log.put(("a", b"%d" % number))
        log.writer.write(WriteGroup(puts={("t", "k"): Put("t", "k", b"v")}), sync=False)
        log.writer._seal(log.next)
        log.writer._roll(log.next)
        log.rest()
        crashed = self.path.with_name("crashed")
        copy_still(self.path, crashed)
        after = Log(crashed)
        self.addCleanup(after.close)
        assert after.metadata.items() == [("t", "k", b"v")]
        log.writer.sync()
        log.rest()
        assert log.catalog.segments[0].index.records < 10
        assert log.metadata.items() == [("t", "k", b"v")]
        assert log.read() == after.read()

    def test_expired_messages_are_left_out(self) -> None:
        log = self.open(RetentionLimits("big", messages=8))
        for _ in range(100):
            log.put(("big", bytes(1000)), ("small", b"x"))
        log.seal()
        log.rest()
        assert sum(path.stat().st_size for path in self.path.glob("*.log")) < 50_000
        assert len(log.read("small")) == 100
        assert log.read("big")[0][0] == 184

    def test_a_segment_is_rewritten_when_more_than_half_has_expired(self) -> None:
        log = self.open()
        for number in range(20):
            log.put(("old" if number < 9 else "new", bytes(1000)))
        log.seal()
        (place, *_) = [one.place for one in log.catalog.segments]
        log.end("old")
        log.seal()
        for _ in range(3):
            log.rest()
        assert place in [one.place for one in log.catalog.segments]
        log.put(*[("more", bytes(1000))] * 30)
        log.seal()
        log.end("new")
        log.seal()
        for _ in range(3):
            log.rest()
        assert place not in [one.place for one in log.catalog.segments]
        assert len(log.read()) == 30

    def test_topics_that_ended_are_left_out(self) -> None:
        log = self.open()
        log.put(*[("a", bytes(1000))] * 10, ("b", b"1"))
        log.end("a")
        log.put(("a", b"new"))
        log.seal()
        log.rest()
        assert log.read() == [(10, "b", b"1"), (11, "a", b"new")]
        assert sum(path.stat().st_size for path in self.path.glob("*.log")) < 5000

    def test_damaged_segments_that_are_removed_are_not_remembered(self) -> None:
        log = self.open()
        for number in range(4):
            log.put(("a", b"%d" % number))
            log.seal()
        plan = rewrite.RewritePlan(log.catalog)
        gone, left = log.catalog.segments[:2]
        plan.leave(gone)
        plan.leave(left)
        log.catalog.replace([gone], [])
        plan.next(log.writer.unapplied, log.writer.part)
        assert plan._damaged == {left.head.sequence}

    def test_damaged_segments_are_left_alone(self) -> None:
        log = self.open()
        for number in range(200):
            log.put(("a", b"message %d." % number))
            if number % 100 == 99:
                log.seal()
        for number, segment in zip((50, 150), log.catalog.segments, strict=False):
            path = self.path / segment.name
            data = path.read_bytes()
            path.write_bytes(data.replace(b"message %d." % number, b"message %d?" % number))
        log.rest()
        page = read_page(log.catalog, 0, None, 2**30)
        assert page.damaged == ((50, 51), (150, 151))
        assert sum(batch.count for batch in page.batches) == 198
        assert not list(self.path.glob("*.new"))

    def test_a_segment_that_cannot_be_read_is_left_alone(self) -> None:
        log = self.open()
        for number in range(200):
            log.put(("a", b"%d" % number))
            if number % 100 == 99:
                log.seal()
        unreadable, other = (one.place for one in log.catalog.segments[:2])
        fail_to_read(self, unreadable)
        log.rest()
        places = [one.place for one in log.catalog.segments]
        assert unreadable in places
        assert other not in places
        assert not list(self.path.glob("*.new"))

    def test_an_error_leaves_the_old_segment(self) -> None:
        log = self.open()
        for number in range(100):
            log.put(("a", b"%d" % number))
        log.seal()

        def full(*_: object) -> None:
            raise OSError(28, "No space left on device")

        for owner, name in ((SegmentBuilder, "sync"), (segment_builder, "write_all")):
            with mock.patch.object(owner, name, full):
                raised(OSError, log.rest)
            assert len(log.read()) == 100
            assert not list(self.path.glob("*.new"))
        log.rest()
        assert log.catalog.segments[0].index.records < 10

    def test_a_crash_before_the_metadata_list_the_new_segment(self) -> None:
        log = self.open()
        for number in range(100):
            log.put(("a", b"%d" % number))
        for _ in range(3):
            log.seal()
            log.put(("a", b"more"))

        with mock.patch.object(log.metadata, "replace_segments", side_effect=OSError):
            raised(OSError, log.rest)
        log = self.reopen()
        listed = {(row.base, row.sequence) for row in log.metadata.segments()}
        assert listed == {one.place for one in log.catalog.segments if one.sealed}
        assert len(log.read()) == 103
        # A copy refuses a rewritten segment that the metadata do not list.
        copy_log(self.path, self.path.with_name("copy"))

    def test_a_record_spans_no_more_offsets_than_its_runs_can_number(self) -> None:
        log = self.open()
        far = 2**32
        builder = SegmentBuilder(log.directory, b"12345678", 0, 99, 0)
        builder.add(one_message(0))
        builder.add(encode_block([], 0, 1, far))
        builder.add(one_message(far))
        builder.sync()
        segment, row = builder.finish()
        assert row.stop == far + 1
        read = read_page(Catalog((segment,)), 0, None, 2**30).batches
        assert [batch.offset for batch in read] == [0, far]


class UsageTests(LogCase):
    """The disk that the log takes"""

    def test_it_is_measured_every_few_seconds(self) -> None:
        log = self.open()
        # The clock may be set back.
        for seconds, is_measured in ((0, True), (4, False), (6, True), (-6, True)):
            log.put(("a", bytes(1000)))
            log.seal()
            expected = log.directory.usage() if is_measured else log.upkeep.usage
            log.upkeep.step(NOW + seconds * MICROSECONDS)
            assert log.upkeep.usage == expected


class CheckTests(LogCase):
    """The check after a crash"""

    def crashed(self) -> None:
        """Leave a log of two segments behind that was not closed."""
        log = Log(self.path)
        for number in range(10):
            log.put(("a", b"message %d" % number))
        log.seal()
        log.put(("a", b"last"))
        log.writer._active()
        log.metadata.close()
        log.directory.close()

    def test_damage_is_reported(self) -> None:
        self.crashed()
        first = min(self.path.glob("*.log"))
        data = first.read_bytes()
        first.write_bytes(data.replace(b"message 3", b"message x"))
        lines = logged(self)
        log = self.open()
        log.rest()
        assert log.catalog.damage.ranges(0) == [(3, 4)]
        assert "history: offsets 3 to 3 are damaged" in lines
        assert "history: the check is complete; damaged records: 1" in lines

    def test_a_damaged_record_of_metadata_is_reported(self) -> None:
        log = Log(self.path)
        log.put(("a", b"1"))
        log.writer.write(WriteGroup(puts={("t", "k"): Put("t", "k", b"value")}), sync=True)
        log.put(("a", b"2"))
        log.seal()
        # The next start does not read the first segment.
        for number in (b"3", b"4"):
            log.writer.write(WriteGroup(puts={("t", "j"): Put("t", "j", number)}), sync=True)
            log.seal()
        log.writer._active()
        log.metadata.close()
        log.directory.close()
        first = min(self.path.glob("*.log"))
        first.write_bytes(first.read_bytes().replace(b"value", b"walue"))
        lines = logged(self)
        log = self.open()
        log.rest()
        assert lines == [
            "history: a record of metadata at offset 1 is damaged",
            "history: the check is complete; damaged records: 1",
        ]
        assert log.catalog.damage.ranges(0) == []
        assert log.metadata.items() == [("t", "j", b"4"), ("t", "k", b"value")]

    def test_a_segment_that_cannot_be_read(self) -> None:
        """The others are checked."""
        log = Log(self.path)
        for number in range(3):
            log.put(("a", b"message %d" % number))
            log.seal()
        places = [one.place for one in log.catalog.segments]
        log.writer._active()
        log.metadata.close()
        log.directory.close()
        _, second, third, *_ = sorted(self.path.glob("*.log"))
        third.write_bytes(third.read_bytes().replace(b"message 2", b"message x"))
        fail_to_read(self, places[1])
        lines = logged(self)
        log = self.open()
        for _ in range(20):
            log.upkeep.step(NOW)
        assert f"history: {second.name} cannot be read: [Errno 5] Input/output error" in lines
        assert "history: offsets 1 to 1 are damaged" in lines
        assert "history: offsets 2 to 2 are damaged" in lines
        assert "history: the check is complete; damaged records: 2" in lines

    def test_a_log_that_was_closed_is_not_checked(self) -> None:
        log = self.open()
        log.put(("a", b"1"))
        log = self.reopen()
        lines = logged(self)
        log.rest()
        assert not [line for line in lines if "check" in line]


class DiskTests(LogCase):
    """A disk that is filling up"""

    def test_the_oldest_segments_expire_early(self) -> None:
        log = self.open()
        for number in range(4):
            log.put(("a", b"%d" % number))
            log.seal()
        self.free = 0
        lines = logged(self)
        log.upkeep.step(NOW)
        assert offsets(log.read()) == [1, 2, 3]
        assert log.catalog.first == 1
        assert any("the oldest messages expire early" in line for line in lines)
        assert "history: offsets 0 to 0 expire early, as the disk is filling up" in lines
        self.free = 2**40
        log.rest()
        assert offsets(log.read()) == [1, 2, 3]

    def test_the_space_from_which_on_they_expire(self) -> None:
        """A twentieth of the file system, or 1 GiB if it is large."""
        log = self.open()
        for number in range(4):
            log.put(("a", b"%d" % number))
            log.seal()
        lines = logged(self)
        left = 4
        for total, mark in ((10 * 2**30, 2**29), (20 * 2**30, 2**30), (2**40, 2**30)):
            self.total, self.free = total, mark
            log.rest()
            assert len(log.read()) == left
            self.free = mark - 1
            log.upkeep.step(NOW)
            left -= 1
            assert len(log.read()) == left
            self.free = mark
            log.rest()
            assert lines[-1] == f"history: the disk has {mark} bytes free again"
        # Each is logged once, and not in each step.
        assert sum("the oldest messages" in line for line in lines) == 3
        assert sum("free again" in line for line in lines) == 3

    def test_messages_that_expired_early_are_not_counted(self) -> None:
        log = self.open(RetentionLimits("*", messages=40))
        for _ in range(2):
            for _ in range(30):
                log.put(("a", b"x"))
            log.seal()
        log.rest()
        assert offsets(log.read()) == list(range(20, 60))
        self.free = 0
        log.upkeep.step(NOW)
        assert offsets(log.read()) == list(range(30, 60))
        self.free = 2**40
        for _ in range(10):
            log.put(("a", b"y"))
        log.rest()
        assert offsets(log.read()) == list(range(30, 70))
        log.put(*[("a", b"z")] * 5)
        log.rest()
        assert offsets(log.read()) == list(range(35, 75))

    def test_a_crash_before_a_file_is_removed(self) -> None:
        """No horizon hides the messages, but the log begins behind them."""
        log = self.open()
        for number in range(5):
            log.put(("a", b"%d" % number))
            log.seal()
        self.free = 0
        log.upkeep.step(NOW)
        with mock.patch.object(log.catalog, "replace", side_effect=OSError):
            raised(OSError, log.upkeep.step, NOW)
        self.free = 2**40
        for limits in ((), (RetentionLimits("*", messages=2),)):
            log = self.reopen(*limits)
            assert offsets(log.read()) == [2, 3, 4]
            log.rest()
            assert log.catalog.segments[0].base == (3 if limits else 2)
            assert log.files() == len(log.catalog.segments)
            assert log.catalog.first == (3 if limits else 2)

    def test_several_files_that_a_crash_has_left(self) -> None:
        """The log begins behind all of them, also while they are removed one after another."""
        log = self.open(RetentionLimits("*", seconds=60))
        for number in range(4):
            log.put(("a", b"%d" % number), age=0 if number == 3 else 100)
            log.seal()
        with mock.patch.object(log.catalog, "replace", side_effect=OSError):
            raised(OSError, log.upkeep.step, NOW)
        # Their topics have no horizon any more that would hide the messages.
        log = self.reopen()
        self.free = 0
        for _ in range(3):
            assert offsets(log.read()) == [3]
            assert log.catalog.first == log.metadata.state().first == 3
            log.upkeep.step(NOW)
            self.free = 2**40
        assert log.files() == len(log.catalog.segments)

    def test_what_had_expired_before_stays_hidden(self) -> None:
        log = self.open(RetentionLimits("a", messages=2), RetentionLimits("b"))
        for _ in range(3):
            log.put(*[("a", b"x")] * 10, ("b", b"y"))
            log.seal()
        log.rest()
        before = log.read()
        assert offsets(log.read("b")) == [10, 21, 32]
        self.free = 0
        log.upkeep.step(NOW)
        assert log.read() == [one for one in before if one[0] >= 11]
        self.free = 2**40
        log.rest()
        assert log.read() == [one for one in before if one[0] >= 11]

    def test_a_segment_expires_early_before_all_of_it_is_counted(self) -> None:
        log = self.open(RetentionLimits("*", messages=8))
        for _ in range(300):
            log.put(("a", b"x"))
        log.seal()
        for _ in range(50):
            log.put(("a", b"y"))
        # The first step counts 256 entries.
        self.free = 0
        log.upkeep.step(NOW)
        assert log.catalog.first == 300
        self.free = 2**40
        log.rest()
        assert offsets(log.read()) == list(range(342, 350))

    def test_a_rewrite_is_abandoned(self) -> None:
        log = self.open()
        for _ in range(8):
            for _ in range(4):
                log.put(("a", bytes(300_000)))
            log.seal()
        log.upkeep.step(NOW)
        assert list(self.path.glob("*.log.new"))
        self.free = 0
        log.upkeep.step(NOW)
        assert not list(self.path.glob("*.log.new"))
        assert not [name for name in open_files(self.path) if ".new" in name]
        self.free = 2**40
        log.rest()
        assert min(segment.base for segment in log.catalog.segments) == log.catalog.first == 4
        assert len(log.read()) == 28

    def test_an_abandoned_rewrite_takes_the_place_of_nothing(self) -> None:
        """Not if its file cannot be removed either."""
        log = self.open()
        for _ in range(8):
            for _ in range(4):
                log.put(("a", os.urandom(300_000)))
            log.seal()
        log.upkeep.step(NOW)
        before = log.read()
        self.free = 0
        with mock.patch.object(LogDirectory, "remove", side_effect=OSError(errno.EIO, "broken")):
            raised(OSError, log.upkeep.step, NOW)
        self.free = 2**40
        log.rest()
        assert log.read() == before

    def test_a_small_file_system_has_room_for_several_segments(self) -> None:
        """Otherwise there is none that may expire."""
        found = []
        for self.total in (2**20, 0):
            log = Log(scratch(self) / "history")
            self.addCleanup(log.close)
            for _ in range(2**10):
                log.put(("a", bytes(1000)))
            found.append(len(log.catalog.segments))
        small, without_size = found
        assert 16 <= small <= 20
        assert without_size == 1

    def test_segments_of_the_size_of_a_small_file_system_are_not_joined(self) -> None:
        self.free = self.total = 2**20
        log = self.open()
        for _ in range(20):
            log.put(("a", bytes(10_000)))
            log.seal()
        before = log.files()
        log.rest()
        assert log.files() == before

    def test_the_segment_that_is_written_stays(self) -> None:
        log = self.open()
        log.put(("a", b"1"))
        self.free = 0
        log.rest()
        assert offsets(log.read()) == [0]

    def test_the_reserve_is_used_to_remove_a_segment_and_kept_again(self) -> None:
        log = self.open()
        log.put(("a", b"0"))
        log.seal()
        log.put(("a", b"1"))
        log.rest()
        assert (self.path / RESERVE).exists()
        there: list[bool] = []
        remove = LogDirectory.remove

        def note(directory: LogDirectory, name: str) -> None:
            there.append((self.path / RESERVE).exists())
            remove(directory, name)

        self.patch(LogDirectory, "remove", note)  # type: ignore[no-untyped-call]
        self.free = 2**20
        log.upkeep.step(NOW)
        # There is space to remove a segment and its index.
        assert there == [True, True]
        log.seal()
        there.clear()
        self.free = 0
        log.rest()
        assert offsets(log.read()) == []
        # It removes the reserve itself, then the segment and its index.
        assert there == [True, False, False]
        assert (self.path / RESERVE).exists()

    def test_the_reserve_is_left_to_the_next_start_if_nothing_can_be_removed(self) -> None:
        log = self.open()
        log.put(("a", b"1"))
        log.rest()
        self.free = 0
        log.rest()
        assert (self.path / RESERVE).exists()
