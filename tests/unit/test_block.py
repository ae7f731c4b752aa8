"""Blocks: the columns of a record decode to the messages that they were made of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.routing.batch import Batch
from pubsub.kernel import Columns
from pubsub.store.records.block import (
    Block,
    decode_block,
    encode_block,
    join_blocks,
)
from pubsub.store.records.stored_runs import RunRecord, record_of, topics_of
from tests.unit.block_batches import TOPICS, batches
from tests.unit.fakes import batch_of, mixed_batch

COLUMNS = ("names", "runs", "lengths", "headers", "payloads")


def rows(appended: list[Batch], base: int) -> tuple[list[RunRecord], Block]:
    """Consecutive batches from the offset ``base`` on, and their block."""
    at = base
    runs = []
    for batch in appended:
        batch.offset = at
        at += batch.count
        runs.append(record_of(batch))
    return runs, encode_block(runs, 7, base, at)


class RoundTripTests(SynchronousTestCase):
    """Encoding and decoding"""

    @given(st.lists(batches(), min_size=1, max_size=8), st.integers(0, 2**40))
    def test_every_batch_comes_back_as_it_was(self, appended: list[Batch], base: int) -> None:
        _, block = rows(appended, base)
        assert [run.batch() for run in decode_block(block)] == appended
        assert (block.base, block.stop) == (base, base + sum(b.count for b in appended))
        stamps = [batch.timestamp for batch in appended]
        assert (block.first, block.last) == (min(stamps), max(stamps))
        assert block.topics() == {batch.topic for batch in appended}

    @given(st.lists(st.lists(batches(), min_size=1, max_size=4), min_size=1, max_size=5))
    def test_joined_neighbours_equal_one_block(self, groups: list[list[Batch]]) -> None:
        at = 100
        blocks = []
        for appended in groups:
            blocks.append(rows(appended, at)[1])
            at = blocks[-1].stop
        _, whole = rows([batch for appended in groups for batch in appended], 100)
        assert join_blocks(blocks) == whole

    @given(
        st.lists(batches(), min_size=1, max_size=8),
        st.frozensets(st.sampled_from([*TOPICS, "absent"])),
    )
    def test_some_topics_of_a_block(self, appended: list[Batch], topics: frozenset[str]) -> None:
        _, block = rows(appended, 10)
        found = [run.batch() for run in decode_block(block, topics)]
        assert found == [batch for batch in appended if batch.topic in topics]

    @given(st.lists(batches(), min_size=1, max_size=8))
    def test_a_decoded_block_encodes_to_the_same_bytes(self, appended: list[Batch]) -> None:
        _, block = rows(appended, 3)
        again = encode_block(
            [run.record() for run in decode_block(block)], block.run, block.base, block.stop
        )
        assert again == block

    def test_a_part_keeps_its_offsets(self) -> None:
        _, block = rows([batch_of([b"1", b"2"], "a"), batch_of([b"3"], "b")], 5)
        kept = [run.record() for run in decode_block(block, frozenset("b"))]
        (run,) = decode_block(encode_block(kept, 7, block.base, block.stop))
        assert (run.offset, run.data) == (7, b"3")

    def test_totals_by_topic(self) -> None:
        runs, _ = rows([batch_of([b"12", b"3"]), batch_of([b""], "u"), batch_of([b"4"])], 0)
        # With the sender, alice, of each message.
        assert topics_of(runs) == {"t": (3, 4 + 15), "u": (1, 5)}

    def test_totals_include_senders_of_messages_of_the_same_topics(self) -> None:
        topics = ("t", "u")
        sent = [mixed_batch([("t", b"12"), ("u", b"3")], topics) for _ in range(2)]
        sent[1].sender = b"somebody else"
        runs, block = rows(sent, 0)
        senders = len(b"alice") + len(b"somebody else")
        assert topics_of(runs) == {"t": (2, 4 + senders), "u": (2, 2 + senders)}
        assert block.totals() == topics_of(runs)

    def test_totals_include_headers(self) -> None:
        headed = batch_of([b"12", b"3"], headers=[{"ü": b"value"}, {}])
        mixed = batch_of([b"1", b"23"], headers=[{"a": b"bc"}, {"d": b""}])
        mixed.topics = ("t", "u")
        mixed.columns = Columns.of([b"1", b"23"], [0, 1])
        runs, block = rows([headed, mixed], 0)
        assert topics_of(runs) == {"t": (3, 3 + 10 + 7 + 1 + 5 + 3), "u": (1, 2 + 5 + 1)}
        assert block.totals() == topics_of(runs)
