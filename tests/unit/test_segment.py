"""Segments: heads, scanning behind damage, and reading entries."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch
from pubsub.store.records.block import decode_block
from pubsub.store.records.record import (
    HEAD_BYTES,
    LOST,
    SEALED,
    START,
    Found,
    Put,
    Record,
    decode_head,
)
from pubsub.store.segments import segment_scan
from pubsub.store.segments.segment import (
    SEGMENT_HEAD_BYTES,
    NotASegment,
    Segment,
    SegmentHead,
    index_name,
    segment_name,
)
from pubsub.store.segments.segment_index import LOST as LOST_TOPIC
from pubsub.store.segments.segment_index import SegmentIndex
from pubsub.store.segments.segment_scan import is_sealed, scan, survey
from tests.profiles import examples
from tests.unit.fakes import batch_of, scratch
from tests.unit.logs import messages
from tests.unit.raising import raised
from tests.unit.record_bytes import SALT, encoded, record_of

HEAD = SegmentHead(0, 1, SALT, b"thelogid", 5)


class HeadTests(SynchronousTestCase):
    """The head of a segment"""

    @given(st.integers(0, 2**62), st.integers(0, 2**62), st.integers(0, 62), st.integers(1, 255))
    def test_any_byte_that_has_changed(self, base: int, created: int, at: int, bits: int) -> None:
        head = SegmentHead(base, 3, SALT, b"thelogid", created)
        data = bytearray(head.encode())
        assert len(data) == SEGMENT_HEAD_BYTES
        assert SegmentHead.decode(bytes(data)) == head
        data[min(at, SEGMENT_HEAD_BYTES - 5)] ^= bits
        raised(NotASegment, SegmentHead.decode, bytes(data))

    def test_files_that_are_no_segment(self) -> None:
        for data, reason in (
            (b"", "empty"),
            (bytes(100), "empty"),
            (b"x" * 100, "not a segment"),
            (HEAD.encode()[:30], "not a segment"),
        ):
            assert reason in str(raised(NotASegment, SegmentHead.decode, data))

    def test_names_are_in_the_order_of_offsets(self) -> None:
        places = [(0, 1), (0, 2), (9, 3), (10, 1), (10**15, 4)]
        names = [segment_name(*place) for place in places]
        assert names == sorted(names)
        assert index_name(names[0]).endswith("-00000001.index")


class SegmentCase(SynchronousTestCase):
    """A segment in a file."""

    def setUp(self) -> None:
        self.directory = scratch(self)
        self.path = self.directory / segment_name(0, 1)

    def make(self, *records: bytes) -> list[int]:
        """Write a segment; return the positions of its records."""
        self.path.write_bytes(HEAD.encode() + b"".join(records))
        at, positions = SEGMENT_HEAD_BYTES, []
        for record in records:
            positions.append(at)
            at += len(record)
        return positions

    def survey(self) -> tuple[list[int], list[tuple[int, int]], SegmentIndex]:
        """The bases of intact records, the damaged ranges, and the index."""
        return survey_of(self.path)

    def records(self, count: int, size: int = 50) -> list[bytes]:
        """Records of ten messages each."""
        return [
            encoded(record_of([batch_of([b"%d" % n * size] * 10)], 10 * n)) for n in range(count)
        ]


def survey_of(path: Path) -> tuple[list[int], list[tuple[int, int]], SegmentIndex]:
    """Survey a file."""
    index = SegmentIndex(0, SEGMENT_HEAD_BYTES)
    bases, damaged = [], []
    file = os.open(path, os.O_RDONLY)
    try:
        for item in survey(file, SALT, index):
            if isinstance(item, Found):
                bases.append(item.head.base)
            else:
                damaged.append(item)
    finally:
        os.close(file)
    return bases, damaged, index


class SurveyTests(SegmentCase):
    """All records of a file, which may be damaged"""

    def test_a_whole_one(self) -> None:
        self.make(*self.records(4))
        bases, damaged, index = self.survey()
        assert (bases, damaged) == ([0, 10, 20, 30], [])
        assert (index.stop, index.end) == (40, self.path.stat().st_size)

    def test_zeros_behind_the_last(self) -> None:
        for zeros in (1, HEAD_BYTES, 300_000):
            self.make(*self.records(2), bytes(zeros))
            bases, damaged, index = self.survey()
            assert (bases, damaged, index.stop) == ([0, 10], [], 20)
            assert index.end == self.path.stat().st_size - zeros

    def test_a_record_that_is_being_written(self) -> None:
        positions = self.make(*self.records(2))
        real = os.fstat

        def earlier(file: int) -> os.stat_result:
            # The size as it was when half of the last record was written.
            found = list(real(file))
            found[stat.ST_SIZE] = positions[1] + HEAD_BYTES + 10
            return os.stat_result(found)

        self.patch(os, "fstat", earlier)  # type: ignore[no-untyped-call]
        self.patch(segment_scan, "_CHUNK", 2 * HEAD_BYTES)  # type: ignore[no-untyped-call]
        bases, damaged, index = self.survey()
        assert (bases, damaged, index.end) == ([0], [], positions[1])

    def test_a_torn_tail_of_any_length(self) -> None:
        records = self.records(3)
        self.make(*records)
        whole = self.path.read_bytes()
        last = len(whole) - len(records[2])
        for size in range(last, len(whole), 7):
            self.path.write_bytes(whole[:size])
            bases, damaged, index = self.survey()
            assert (bases, damaged, index.stop, index.end) == ([0, 10], [], 20, last), size

    def test_a_record_that_is_damaged_among_others(self) -> None:
        for where in (0, HEAD_BYTES - 1, HEAD_BYTES, 300):
            positions = self.make(*self.records(5))
            data = bytearray(self.path.read_bytes())
            data[positions[2] + where] ^= 1
            self.path.write_bytes(data)
            bases, damaged, index = self.survey()
            assert (bases, damaged) == ([0, 10, 30, 40], [(20, 30)])
            assert index.totals()[LOST_TOPIC] == (10, 0)
            assert (index.stop, index.end) == (50, len(data))

    def test_several_that_are_missing(self) -> None:
        records = self.records(6)
        self.make(records[0], bytes(len(records[1])), records[2][:77], records[3], b"", records[5])
        bases, damaged, _ = self.survey()
        assert (bases, damaged) == ([0, 30, 50], [(10, 30), (40, 50)])

    def test_a_damaged_record_of_metadata(self) -> None:
        metadata = bytearray(encoded(Record(10, operations=[Put("t", "k", b"v")])))
        metadata[-1] ^= 1
        records = self.records(2)
        self.make(records[0], bytes(metadata), records[1])
        bases, damaged, index = self.survey()
        assert (bases, damaged) == ([0, 10], [(10, 10)])
        assert LOST_TOPIC not in index.totals()

    def test_a_payload_that_holds_a_record_is_not_taken_for_one(self) -> None:
        forged = encoded(record_of([batch_of([b"forged"])], 15), b"guessed!")
        payload = b"x" * 10 + forged + START * 20
        carrier = encoded(record_of([batch_of([payload])], 10))
        follower = encoded(record_of([batch_of([b"x"])], 11))
        positions = self.make(self.records(1)[0], carrier, follower)
        assert self.survey()[:2] == ([0, 10, 11], [])
        data = bytearray(self.path.read_bytes())
        data[positions[1] + HEAD_BYTES + 3] ^= 1
        self.path.write_bytes(data)
        assert self.survey()[:2] == ([0, 11], [(10, 11)])
        self.path.write_bytes(data[: positions[2] - 3])
        assert self.survey()[:2] == ([0], [])

    def test_a_megabyte_of_heads_is_passed_quickly(self) -> None:
        # Each would be read to the end of the file if its length were believed.
        forged = encoded(Record(20, 10), b"guessed!")[:HEAD_BYTES]
        first, last = self.records(2)
        self.make(first, b"\1" + forged * 10_000, last)
        bases, damaged, _ = self.survey()
        assert (bases, damaged) == ([0, 10], [(10, 10)])

    def test_a_record_across_the_bounds_of_two_reads(self) -> None:
        first, second, third = self.records(3)
        for gap in range(1024**2 - HEAD_BYTES - 3, 1024**2 + 3, 13):
            self.make(first, b"\1" * gap, second, third)
            bases, damaged, _ = self.survey()
            assert (bases, damaged) == ([0, 10, 20], [(10, 10)])

    @settings(examples(0.5), suppress_health_check=list(HealthCheck))
    @given(st.lists(st.integers(0, 3999), max_size=3), st.integers(0, 4000), st.data())
    def test_no_damage_makes_up_messages(
        self, places: list[int], cut: int, data: st.DataObject
    ) -> None:
        records = self.records(6, 5)
        positions = self.make(*records)
        changed = bytearray(self.path.read_bytes())
        for place in places:
            changed[SEGMENT_HEAD_BYTES + place % (len(changed) - SEGMENT_HEAD_BYTES)] ^= data.draw(
                st.integers(1, 255)
            )
        changed = changed[: max(len(changed) - cut, SEGMENT_HEAD_BYTES)]
        self.path.write_bytes(changed)
        bases, damaged, index = self.survey()
        good = [
            10 * n
            for n, (position, record) in enumerate(zip(positions, records, strict=True))
            if changed[position : position + len(record)] == record
        ]
        assert bases == good
        covered = {offset for base in bases for offset in range(base, base + 10)}
        for start, stop in damaged:
            assert covered.isdisjoint(range(start, stop))
            covered.update(range(start, stop))
        assert covered == set(range(index.stop))
        # The index finds the same as the survey.
        found: list[Batch] = []
        lost: list[tuple[int, int]] = []
        segment = Segment(os.open(self.directory, os.O_RDONLY), HEAD, index.stop)
        self.addCleanup(os.close, segment._directory)
        for number in range(len(index)):
            for item in segment.records(index.entry(number)):
                if isinstance(item, Found):
                    found += [run.batch() for run in decode_block(item.block())]
                elif item[0] < item[1]:
                    lost.append(item)
        assert [one.offset for one in messages(found)] == [
            offset for base in bases for offset in range(base, base + 10)
        ]
        assert sum(stop - start for start, stop in lost) == index.stop - 10 * len(bases)


class ScanTests(SegmentCase):
    """Records up to the first that is not intact"""

    def test_from_a_position(self) -> None:
        positions = self.make(*self.records(40, 5000))
        file = os.open(self.path, os.O_RDONLY)
        self.addCleanup(os.close, file)
        assert [one.head.base for one in scan(file, positions[30], SALT)] == list(
            range(300, 400, 10)
        )
        assert [one.position for one in scan(file, SEGMENT_HEAD_BYTES, SALT)] == positions
        assert not list(scan(file, positions[1] + 1, SALT))

    def test_whether_a_segment_is_sealed(self) -> None:
        sealed = encoded(Record(20, flags=SEALED))
        for records, stop in (
            ([*self.records(2), sealed], 20),
            (self.records(2), None),
            ([sealed, *self.records(1)], None),
            ([*self.records(2), sealed, b"\0"], None),
            ([], None),
        ):
            self.make(*records)
            file = os.open(self.path, os.O_RDONLY)
            assert is_sealed(file, self.path.stat().st_size, SALT) == stop
            os.close(file)

    def test_a_record_of_lost_messages(self) -> None:
        self.make(
            encoded(Record(0, 1000, flags=LOST)), encoded(record_of([batch_of([b"x"])], 1000))
        )
        bases, _, index = self.survey()
        assert bases == [0, 1000]
        assert index.totals() == {LOST_TOPIC: (1000, 0), "t": (1, 6)}


class ReadTests(SegmentCase):
    """Entries, by an index of a file that was damaged later"""

    def test_only_damaged_records_are_lost(self) -> None:
        records = self.records(5)
        positions = self.make(*records)
        _, _, index = self.survey()
        assert len(index) == 1
        directory = os.open(self.directory, os.O_RDONLY)
        self.addCleanup(os.close, directory)
        whole = self.path.read_bytes()
        for number in range(5):
            for where in (3, HEAD_BYTES - 2, HEAD_BYTES + 1):
                data = bytearray(whole)
                data[positions[number] + where] ^= 4
                self.path.write_bytes(data)
                segment = Segment(directory, HEAD, 50)
                found = [
                    item.head.base if isinstance(item, Found) else item
                    for item in segment.records(index.entry(0))
                ]
                expected: list[object] = [10 * n for n in range(5)]
                expected[number] = (10 * number, 10 * number + 10)
                assert found == expected

    def test_a_file_that_was_cut(self) -> None:
        positions = self.make(*self.records(5))
        _, _, index = self.survey()
        os.truncate(self.path, positions[3] + 9)
        directory = os.open(self.directory, os.O_RDONLY)
        self.addCleanup(os.close, directory)
        found = list(Segment(directory, HEAD, 50).records(index.entry(0)))
        assert found[-1] == (30, 50)
        assert len(found) == 4

    def test_an_index_is_made_again(self) -> None:
        self.make(*self.records(5))
        directory = os.open(self.directory, os.O_RDONLY)
        self.addCleanup(os.close, directory)
        assert Segment(directory, HEAD, 50).index.totals()["t"][0] == 50
        # Of a file that is shorter than it was, the rest is lost.
        os.truncate(self.path, self.path.stat().st_size - 1)
        index = Segment(directory, HEAD, 50).index
        assert index.stop == 50
        assert index.totals()[LOST_TOPIC] == (10, 0)
        (self.directory / index_name(self.path.name)).symlink_to("elsewhere")
        assert Segment(directory, HEAD, 50).index.stop == 50

    def test_a_segment_that_was_released_is_read_again(self) -> None:
        self.make(*self.records(1))
        directory = os.open(self.directory, os.O_RDONLY)
        self.addCleanup(os.close, directory)
        segment = Segment(directory, HEAD, 10)
        for _ in range(2):
            assert segment.index.stop == 10
            head = decode_head(segment.read(SEGMENT_HEAD_BYTES, SEGMENT_HEAD_BYTES + 200), SALT)
            assert head is not None
            segment.release()
