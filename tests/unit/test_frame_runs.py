"""Rows of equal frames: cut like one by one, joined like one by one."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.message_run import MIXED
from pubsub.wire.frame_runs import cut_run, join_run

HEADS = st.sampled_from([b"h", b"\0\0", b"head", b"abab", bytes(40)])
# Payloads of few different bytes, so that heads turn up inside of them.
PAYLOADS = st.text("hab\0", max_size=3).map(str.encode)


def head(length: int) -> bytes:
    return b"<%d>" % length


def naive(data: bytes, at: int, head: bytes, size: int) -> list[bytes]:
    """What ``cut_run`` promises, a frame at a time."""
    payloads = []
    while data[at : at + len(head)] == head and at + len(head) + size <= len(data):
        payloads.append(data[at + len(head) : at + len(head) + size])
        at += len(head) + size
    return payloads


class CutTests(SynchronousTestCase):
    """cut_run"""

    def test_nothing_is_cut_from_nothing(self) -> None:
        assert cut_run(b"", 0, b"h", 3) == []
        assert cut_run(b"habc", 4, b"h", 3) == []

    def test_a_frame_that_is_not_all_there_is_left(self) -> None:
        assert cut_run(b"habcha", 0, b"h", 3) == [b"abc"]
        assert cut_run(b"hab", 0, b"h", 3) == []

    def test_rows_of_every_length_are_cut_whole(self) -> None:
        for count in range(200):
            payloads = [b"%03d" % number for number in range(count)]
            row = b"".join(b"head" + payload for payload in payloads)
            assert cut_run(b"xx" + row, 2, b"head", 3) == payloads
            assert cut_run(b"xx" + row + b"hea", 2, b"head", 3) == payloads
            assert cut_run(b"xx" + row + b"tail123", 2, b"head", 3) == payloads

    def test_a_row_ends_at_a_different_head_wherever_it_is(self) -> None:
        for at in range(130):
            frames = [b"head%03d" % number for number in range(130)]
            frames[at] = b"heax" + frames[at][4:]
            assert cut_run(b"".join(frames), 0, b"head", 3) == [f[4:] for f in frames[:at]]

    def test_empty_payloads_are_cut(self) -> None:
        assert cut_run(b"head" * 100, 0, b"head", 0) == [b""] * 100

    @given(HEADS, st.integers(0, 3), st.data())
    def test_it_finds_what_is_there(self, head: bytes, size: int, data: st.DataObject) -> None:
        pieces = st.one_of(
            st.integers(0, 80).map(lambda count: (head + b"\0" * size) * count),
            PAYLOADS.map(lambda payload: head + payload.ljust(size, b"h")),
            PAYLOADS,
        )
        stream = b"".join(data.draw(st.lists(pieces, max_size=5)))
        at = data.draw(st.integers(0, 3))
        assert cut_run(stream, at, head, size) == naive(stream, at, head, size)


class JoinTests(SynchronousTestCase):
    """join_run"""

    def test_equal_lengths(self) -> None:
        assert join_run(head, [b"ab", b"cd"], 2) == b"<2>ab<2>cd"
        assert join_run(head, [b"", b""], 0) == b"<0><0>"

    def test_mixed_lengths(self) -> None:
        assert join_run(head, [b"ab", b"", b"c", b"de"], MIXED) == b"<2>ab<0><1>c<2>de"

    def test_a_head_is_made_once_a_length(self) -> None:
        asked: list[int] = []

        def counted(length: int) -> bytes:
            asked.append(length)
            return head(length)

        join_run(counted, [b"a", b"bb", b"c", b"dd", b"e"], MIXED)
        assert asked == [1, 2]

    @given(st.lists(st.binary(max_size=3), min_size=1))
    @example([b""])
    @example([b"", b"a"])
    @example([b"ab"] * 65)
    def test_both_ways_give_the_same(self, payloads: list[bytes]) -> None:
        one_by_one = b"".join(head(len(payload)) + payload for payload in payloads)
        assert join_run(head, payloads, MIXED) == one_by_one
        if len({len(payload) for payload in payloads}) == 1:
            assert join_run(head, payloads, len(payloads[0])) == one_by_one
