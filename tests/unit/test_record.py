"""Records of the log: decoding reverses encoding, and damage is detected."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch
from pubsub.errors import NewerVersion
from pubsub.store.reading.run_log import RunLog
from pubsub.store.records.block import decode_block as runs_of_block
from pubsub.store.records.record import (
    CLOSED,
    COMPRESSED,
    HEAD_BYTES,
    LOST,
    START,
    Begin,
    End,
    Operation,
    Put,
    Record,
    decode_block,
    decode_head,
    decode_operations,
    encode,
    encode_operations,
    is_intact,
    operations_of,
    record_of_block,
)
from pubsub.store.records.stored_runs import topics_of
from tests.profiles import examples
from tests.unit.fakes import batch_of
from tests.unit.logs import any_batches, messages, runs_of
from tests.unit.record_bytes import OTHER_SALT, SALT, encoded, record_of

_TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
OPERATIONS = st.lists(
    st.builds(Put, _TEXTS, _TEXTS, st.none() | st.binary(max_size=20))
    | st.builds(End, _TEXTS, st.integers(0, 2**63))
    | st.builds(
        Begin,
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**62),
        st.binary(min_size=16, max_size=16),
    ),
    max_size=4,
)
GROUPS = st.lists(any_batches(), max_size=5)


class RoundTripTests(SynchronousTestCase):
    """Encoding and decoding"""

    @given(GROUPS, OPERATIONS, st.integers(0, 2**50), st.booleans())
    def test_messages_and_operations_are_those_that_were_encoded(
        self, group: list[Batch], operations: list[Operation], base: int, compress: bool
    ) -> None:
        data = memoryview(encoded(record_of(group, base, operations), compress=compress))
        head = decode_head(data, SALT)
        assert head is not None
        assert is_intact(head, data)
        assert (head.base, head.stop) == (base, base + sum(batch.count for batch in group))
        assert (head.epoch, head.ceiling, head.run) == (3, 2**40, 7)
        assert head.flags in ((0, COMPRESSED) if compress else (0,))
        assert operations_of(head, data) == operations
        block = decode_block(head, data)
        found = [run.batch() for run in runs_of_block(block)]
        assert messages(found) == messages(group)
        assert [b.timestamp for b in found] == [b.timestamp for b in group]
        log = RunLog(2**62, 2**30)
        assert block.totals() == topics_of(runs_of(group, log))
        # A rewrite makes a record of the block.
        again = encoded(record_of_block(block))
        assert decode_block(decode_head(again, SALT) or head, memoryview(again)).runs == block.runs

    def test_large_payloads_are_not_copied(self) -> None:
        payloads = [bytes([n]) * (20_000 + n) for n in range(3)]
        record = record_of([batch_of([payload]) for payload in payloads])
        buffers, length = encode(record, SALT, 3, 2**40)
        assert [id(one) for one in buffers[1:]] == [id(one) for one in record.payloads]
        data = memoryview(b"".join(buffers))
        head = decode_head(data, SALT)
        assert head is not None
        assert is_intact(head, data)
        assert head.length == length == len(data)
        assert decode_block(head, data).payloads == b"".join(payloads)

    def test_other_payloads_are_one_buffer(self) -> None:
        record = record_of([batch_of([b"x" * 16_000]) for _ in range(3)])
        buffers, _ = encode(record, SALT, 3, 2**40)
        assert buffers[1:] == [b"x" * 48_000]

    @given(OPERATIONS)
    def test_operations_alone(self, operations: list[Operation]) -> None:
        assert decode_operations(encode_operations(operations)) == operations

    @given(OPERATIONS, st.data())
    def test_operations_that_are_cut(
        self, operations: list[Operation], data: st.DataObject
    ) -> None:
        whole = encode_operations(operations)
        cut = whole[: data.draw(st.integers(0, len(whole)))]
        try:
            found = decode_operations(cut)
        except (ValueError, struct.error):
            return
        assert encode_operations(found) == cut
        assert found == operations[: len(found)]

    def test_a_value_that_is_cut(self) -> None:
        data = encode_operations([End("t", 1), Put("t", "k", b"value")])
        with pytest.raises(ValueError, match="the last operation is not complete"):
            decode_operations(data[:-1])

    def test_a_slow_value_is_made_when_it_is_encoded(self) -> None:
        data = encode_operations([Put("t", "k", lambda: b"made")])
        assert decode_operations(data) == [Put("t", "k", b"made")]

    def test_flags(self) -> None:
        for flags in (LOST, CLOSED, LOST | CLOSED):
            head = decode_head(encoded(Record(5, 10, flags=flags)), SALT)
            assert head is not None
            assert (head.flags, head.base, head.stop) == (flags, 5, 15)


class DamageTests(SynchronousTestCase):
    """Bytes that have changed"""

    @examples(0.3)
    @given(st.lists(any_batches(), min_size=1, max_size=3), OPERATIONS, st.data())
    def test_any_byte(
        self, group: list[Batch], operations: list[Operation], data: st.DataObject
    ) -> None:
        good = encoded(record_of(group, 9, operations))
        at = data.draw(st.integers(0, len(good) - 1))
        changed = bytearray(good)
        changed[at] ^= data.draw(st.integers(1, 255))
        head = decode_head(bytes(changed), SALT)
        # The checksum of the record is not covered by that of its head.
        in_head = at < HEAD_BYTES and not 8 <= at < 12
        assert (head is None) == in_head
        if head is not None:
            assert (head.base, head.length) == (9, len(good))
            assert not is_intact(head, memoryview(changed))

    def test_every_byte_of_a_head(self) -> None:
        good = encoded(Record(1, flags=CLOSED))
        for at in range(len(good)):
            changed = bytearray(good)
            changed[at] ^= 1
            head = decode_head(bytes(changed), SALT)
            assert head is None or not is_intact(head, memoryview(changed)), at

    @given(st.integers(0, 300))
    def test_a_record_that_is_cut(self, size: int) -> None:
        good = encoded(record_of([batch_of([b"x" * 200])]))
        data = memoryview(good)[:size]
        head = decode_head(data, SALT)
        assert (head is None) == (size < HEAD_BYTES)
        assert head is None or is_intact(head, data) == (size >= len(good))

    def test_a_record_with_the_salt_of_another_segment(self) -> None:
        data = encoded(record_of([batch_of([b"x"])]), OTHER_SALT)
        assert data.startswith(START)
        assert decode_head(data, SALT) is None

    def test_flags_of_a_later_version(self) -> None:
        data = encoded(Record(0, flags=1 << 15))
        with pytest.raises(NewerVersion, match="version 1 and the flags 0x8000"):
            decode_head(data, SALT)
        # Without a right checksum it is damage.
        assert decode_head(data[:-1] + b"\0", SALT) is None
