"""nsd's encoded batches."""

from __future__ import annotations

import json
from array import array

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.routing.batch import Batch
from pubsub.protocols.nsd.codec import messages
from pubsub.protocols.nsd.encoded_batches import EncodedBatches, encode_batch
from pubsub.store.reading.joined_runs import JoinedRuns
from tests.unit.fakes import batch_of

ODD = (b'"', b"\\", b"\\n", b'\\"', b"\n", b"\r", b"\0", b"\xff", b"\xc3", b"\xbc", "ü".encode())
BODIES = st.lists(st.sampled_from([b"a", b"b ", b"}}", *ODD]), max_size=5).map(b"".join)


class EncodedBatchTests(SynchronousTestCase):
    """Batches in responses"""

    @given(st.lists(st.one_of(BODIES, st.binary(max_size=4)), min_size=1, max_size=6), BODIES)
    @example([b""], b"")
    @example([b'"', b"a"], b"\\")
    @example([b"\xff", b"\0"], b"\xc3")
    def test_an_encoded_batch_equals_its_messages(
        self, payloads: list[bytes], sender: bytes
    ) -> None:
        batch = _batch(payloads, sender)
        assert encode_batch(batch) == b",".join(messages(batch))
        json.loads(b"[" + encode_batch(batch) + b"]")

    def test_encoded_batches_are_cached_within_a_bound(self) -> None:
        first, second = _batch([b"a" * 100], b"x"), _batch([b"b" * 100], b"x")
        second.offset = 1
        encoded = EncodedBatches(700, MemoryBudget(0))
        assert encoded.encode(first) is encoded.encode(first)
        made = encoded.encode(first)
        assert encoded.encode(second) != made
        assert encoded.encode(first) is not made
        assert encoded.encode(first) == made

    def test_encoded_batches_are_a_cache_of_the_memory_bound(self) -> None:
        memory = MemoryBudget(100_000)
        encoded = EncodedBatches(10_000, memory)
        for offset in range(100):
            batch = _batch([b"a"], b"x")
            batch.offset = offset
            encoded.encode(batch)
        # Each is so short that its key takes more.
        assert 9_000 < memory.cached == memory.used <= 10_000
        memory.add(100_000)
        assert memory.used == 100_000


def _batch(payloads: list[bytes], sender: bytes) -> Batch:
    batch = batch_of(payloads, offset=0)
    batch.sender = sender
    return batch


class JoinedTests(SynchronousTestCase):
    """Batches with rows"""

    @given(
        st.lists(
            st.tuples(
                st.lists(st.one_of(BODIES, st.binary(max_size=2)), min_size=1, max_size=3),
                BODIES,
                st.integers(0, 3),
            ),
            min_size=1,
            max_size=6,
        ),
        st.sampled_from((0, 1000)),
    )
    def test_they_equal_their_messages(
        self, runs: list[tuple[list[bytes], bytes, int]], shift: int
    ) -> None:
        parts, (batch,) = joined(runs)
        encoded = EncodedBatches(10_000, MemoryBudget(0)).encode(batch, shift)
        for part in parts:
            part.offset += shift
        assert encoded == b",".join([one for part in parts for one in messages(part)])

    def test_batches_of_other_topics_that_begin_at_the_same_offset(self) -> None:
        encoded = EncodedBatches(10_000, MemoryBudget(0))
        (first,) = joined([([b"1"], b"a", 0), ([b"2"], b"b", 0)])[1]
        (second,) = joined([([b"1"], b"a", 0), ([b"3"], b"b", 1)])[1]
        assert encoded.encode(first) != encoded.encode(second)
        assert encoded.encode(first) is encoded.encode(first)

    def test_the_cache_is_emptied_of_them(self) -> None:
        memory = MemoryBudget(0)
        encoded = EncodedBatches(2_000, memory)
        for number in range(50):
            encoded.encode(joined([([b"1"], b"a", number), ([b"2"], b"b", 0)])[1][0])
        assert 1_000 < memory.cached <= 2_000


def joined(runs: list[tuple[list[bytes], bytes, int]]) -> tuple[list[Batch], list[Batch]]:
    """Return runs with these payloads, senders and offsets left out before, alone and joined."""
    found: list[Batch] = []
    parts, together, offset = [], JoinedRuns(found), 0
    for payloads, sender, gap in runs:
        offset += gap
        part = _batch(payloads, sender)
        part.offset = offset
        parts.append(part)
        sizes = array("I", map(len, payloads))
        row = len(payloads), "t", offset, 0, part.timestamp, sender, sizes, b"".join(payloads)
        together.add(row, "nsd", 0)
        offset += len(payloads)
    together.finish()
    return parts, found
