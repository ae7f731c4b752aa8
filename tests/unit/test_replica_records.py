"""Replica records and who takes them: what is encoded comes back, and each record counts once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.history.replica_progress import Progress, Reached
from pubsub.backplane.history.replica_record import (
    RecordPart,
    cut,
    decode_batches,
    decode_part,
    encode_batches,
    nbytes_of,
    parts_of,
)
from pubsub.backplane.history.replica_stream import StreamAway
from pubsub.backplane.messages.record import MalformedRecord
from pubsub.broker.routing.batch import Batch
from pubsub.kernel import Columns
from tests.unit.fakes import batch_of
from tests.unit.logs import any_batches

RUN = 0x123456789ABCDEF


def fields(batch: Batch) -> list[tuple[object, ...]]:
    """Return what each message of a batch has."""
    found: list[tuple[object, ...]] = []
    for _, one in batch.runs():
        for place, payload in enumerate(one.payloads()):
            headers = {} if one.headers is None else dict(one.headers[place])
            found.append(
                (one.run, one.sequence + place, one.timestamp, one.topic, one.sender,
                 one.protocol, payload, headers)
            )  # fmt: skip
    return found


class RecordTests(SynchronousTestCase):
    """Bytes"""

    @given(st.lists(any_batches(), min_size=1, max_size=4), st.sets(st.text(max_size=5)))
    def test_batches_come_back(self, given_batches: list[Batch], keyed: set[str]) -> None:
        batches = [replace(one, run=RUN) for one in given_batches]
        found, topics = decode_batches(encode_batches(batches, keyed), RUN)
        assert [fields(one) for one in found] == [fields(one) for one in batches]
        assert topics == keyed

    @given(st.lists(any_batches(), min_size=1, max_size=2), st.data())
    def test_damaged_records_are_refused(self, batches: list[Batch], data: st.DataObject) -> None:
        record = bytearray(encode_batches(batches, ()))
        for _ in range(data.draw(st.integers(1, 3))):
            record[data.draw(st.integers(0, len(record) - 1))] = data.draw(st.integers(0, 255))
        del record[data.draw(st.integers(0, len(record))) :]
        try:
            found, _ = decode_batches(bytes(record), RUN)
        except MalformedRecord:
            return
        assert found

    @given(st.binary(max_size=300))
    def test_any_bytes_are_refused(self, data: bytes) -> None:
        with pytest.raises(MalformedRecord):
            decode_part(data)
        with pytest.raises(MalformedRecord):
            decode_batches(data[:40], RUN)

    def test_a_message_without_a_topic_is_refused(self) -> None:
        for indexes in ([0, 2], [2, 0], [1, 9]):
            columns = Columns.of([b"x", b"y"], indexes)
            batch = Batch(("a", "b"), columns, 1, 0, b"me", "spot", run=RUN)
            with pytest.raises(MalformedRecord, match="a message has no topic"):
                decode_batches(encode_batches([batch], ()), RUN)

    def test_parts(self) -> None:
        part = RecordPart(2, 3, RUN, 0, 1, b"data")
        whole = part.encode()
        assert decode_part(whole) == part
        for place in range(len(whole)):
            damaged = bytearray(whole)
            damaged[place] ^= 1
            if place != 3:
                with pytest.raises(MalformedRecord):
                    decode_part(bytes(damaged))
        pieces = parts_of(bytes(1000), len(whole) + 96)
        assert b"".join(pieces) == bytes(1000)
        assert max(map(len, pieces)) == 100

    def test_large_batches_are_cut(self) -> None:
        batch = batch_of([b"x" * 100] * 100, sequence=7, offset=50)
        found = list(cut(batch, 2000))
        assert max(map(nbytes_of, found)) <= 2000
        assert [place for one in found for place in range(one.count)]
        assert [one.sequence - 7 for one in found] == [one.offset - 50 for one in found]
        assert sum([one.count for one in found]) == 100
        assert [one.count for one in cut(batch_of([b"x" * 9000]), 2000)] == [1]


class ProgressTests(SynchronousTestCase):
    """Which records are taken"""

    def setUp(self) -> None:
        self.progress = Progress(())
        self.at = 0

    def take(
        self, term: int, number: int, origin: str = "a", place: int = 0, parts: int = 1
    ) -> bool:
        self.at += 1
        self.progress.arrive(self.at)
        data = b"%d.%d " % (term, number)
        record = self.progress.take(origin, RecordPart(term, number, RUN, place, parts, data))
        if record is not None:
            self.record = record
            self.progress.settle(origin, RUN, number)
        return record is not None

    def test_numbers_follow(self) -> None:
        taken = [(1, 1), (1, 2), (1, 2), (1, 4), (1, 3), (1, 5), (1, 4), (1, 2)]
        assert [self.take(*one) for one in taken] == [1, 1, 0, 0, 1, 0, 1, 0]

    def test_a_term_ends_those_before(self) -> None:
        taken = [(1, 1), (1, 2), (3, 1), (1, 3), (2, 1), (2, 2), (3, 2), (4, 1)]
        assert [self.take(*one) for one in taken] == [1, 1, 1, 0, 0, 0, 1, 1]

    def test_origins_are_apart(self) -> None:
        assert self.take(1, 1)
        assert self.take(1, 1, "b")
        assert not self.take(1, 3, "b")
        assert self.take(1, 2)

    def test_a_term_without_its_beginning(self) -> None:
        for origin in ("a", "b"):
            self.setUp()
            assert self.take(1, 1)
            self.miss(2, 2, origin)
            assert self.progress.lacks(self.at)
            self.progress.restart()
            assert not self.progress.lacks(self.at)
            # A part of a former stream has no beginning: its origin sends it again.
            self.at = 0
            assert not self.take(2, 2, origin)
            assert not self.take(2, 3, origin)
            assert self.take(3, 1, origin)
            assert self.take(3, 2, origin)
            assert self.progress.gaps == 0
            # Another loss is another reason.
            self.miss(5, 2, origin)

    def miss(self, term: int, number: int, origin: str) -> None:
        with pytest.raises(StreamAway, match="has lost messages"):
            self.take(term, number, origin)

    def test_parts_of_a_former_stream_are_left_out_of_the_next_one(self) -> None:
        """Their origin sends those that were lost between them again, in another term."""
        assert self.take(1, 1)
        self.progress.restart()
        self.at = 0
        assert not self.take(1, 3)
        assert self.take(2, 1)
        assert self.take(2, 2)

    def test_parts_are_joined_and_read_again_after_a_restart(self) -> None:
        assert self.take(1, 1)
        assert not self.take(1, 2, place=0, parts=3)
        assert not self.take(1, 3, place=1, parts=3)
        assert self.take(1, 1, "b")
        stored = {name: one.encode() for name, one in self.progress.reached.items()}
        stored["a"] = Reached(1, 1, 1, RUN, 1).encode()
        again = Progress(stored.items())
        assert again.sequence == 1
        assert self.progress.held == len(b"1.2 1.3 ")
        assert self.take(1, 4, place=2, parts=3)
        assert self.record == b"1.2 1.3 1.4 "
        assert self.progress.held == 0
        self.progress.rewind()
        assert self.progress.sequence == self.at

    def test_the_connection_ends_within_a_record(self) -> None:
        assert self.take(1, 1)
        assert not self.take(1, 2, place=0, parts=2)
        self.progress.rewind()
        assert self.progress.held == 0
        # The next one begins after the last whole record.
        self.at = self.progress.sequence
        assert not self.take(1, 2, place=0, parts=2)
        assert self.take(1, 3, place=1, parts=2)
        assert self.record == b"1.2 1.3 "

    def test_another_stream_is_read_from_its_beginning(self) -> None:
        assert self.take(1, 1)
        assert self.take(1, 1, "b")
        assert [one.resume for one in self.progress.restart().values()] == [0, 0]
        assert self.progress.sequence == 0
        self.at = 0
        assert self.take(2, 1)
        # Another connection does not begin at a place of the former stream.
        self.progress.rewind()
        assert self.progress.sequence == 1

    def test_a_gap_is_accepted_once(self) -> None:
        assert self.take(1, 1)
        self.at = 10
        # It was taken before the gap.
        assert not self.take(1, 1)
        assert self.take(1, 7)
        assert self.progress.gaps == 1
        assert not self.take(1, 9)
        assert not self.take(1, 3)
        assert self.take(1, 8)
        # An origin of which nothing was read before.
        assert self.take(5, 5, "b")
        assert not self.take(5, 9, "b")
        assert self.progress.gaps == 1

    def test_the_beginning_of_a_record_is_gone(self) -> None:
        assert self.take(1, 1)
        self.at = 10
        assert not self.take(1, 7, place=1, parts=2)
        assert self.take(1, 8)
