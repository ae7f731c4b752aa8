"""Batch: parts of it, and the messages within a limit."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from tests.unit.fakes import batch_of

PAYLOADS = st.lists(st.binary(max_size=8), max_size=10)


class PartTests(SynchronousTestCase):
    """part"""

    def test_a_part_has_its_sequence_offset_and_headers(self) -> None:
        headers = [{"n": b"%d" % n} for n in range(4)]
        part = batch_of([b"a", b"b", b"c", b"d"], "t", headers, 70, 30).slice(1, 3)
        assert part.payloads() == [b"b", b"c"]
        assert part.headers == headers[1:3]
        assert (part.sequence, part.offset, part.nbytes, part.count) == (71, 31, 2, 2)
        assert (part.topic, part.sender, part.protocol) == ("t", b"alice", "toy")

    @given(PAYLOADS, st.integers(0, 10))
    @example([], 0)
    @example([b""], 0)
    @example([b"", b"a"], 1)
    def test_two_parts_are_the_whole(self, payloads: list[bytes], cut: int) -> None:
        batch = batch_of(payloads)
        cut = min(cut, len(payloads))
        first, second = batch.slice(0, cut), batch.slice(cut, len(payloads))
        assert first.payloads() + second.payloads() == payloads
        assert first.nbytes + second.nbytes == batch.nbytes
        assert second.sequence == first.sequence + first.count


class SinceTests(SynchronousTestCase):
    """since"""

    def test_messages_from_a_number_on(self) -> None:
        batch = batch_of([b"5", b"6", b"7"], "t", None, 5, 9)
        found = [batch.since(number) for number in (0, 5, 6, 7, 8, 2**60)]
        payloads = [one and one.payloads() for one in found]
        assert payloads == [[b"5", b"6", b"7"]] * 2 + [[b"6", b"7"], [b"7"], None, None]
        assert found[2] is not None
        assert found[2].sequence == 6


class WithinTests(SynchronousTestCase):
    """within"""

    def test_messages_over_the_limit_are_removed_with_their_headers(self) -> None:
        headers = [{"n": b"0"}, {"n": b"1"}, {}]
        batch = batch_of([b"ok", b"large", b"fit"], "t", headers, 7, 9).within(3)
        assert batch is not None
        assert batch.payloads() == [b"ok", b"fit"]
        assert batch.headers == [{"n": b"0"}, {}]
        assert (batch.nbytes, batch.count, batch.timestamp) == (5, 2, 1_700_000_000_000_000)
        assert (batch.topic, batch.sender, batch.protocol) == ("t", b"alice", "toy")

    def test_without_a_message_it_is_none(self) -> None:
        assert batch_of([b"large", b"larger"]).within(3) is None

    @given(PAYLOADS.filter(len), st.integers(0, 8))
    @example([b""], 0)
    @example([b"a"], 0)
    @example([b"aa", b"a", b"aa"], 1)
    def test_remaining_messages_keep_their_order(self, payloads: list[bytes], limit: int) -> None:
        batch = batch_of(payloads).within(limit)
        expected = [payload for payload in payloads if len(payload) <= limit]
        assert (batch.payloads() if batch else []) == expected
        if batch:
            assert batch.nbytes == sum(map(len, expected))
