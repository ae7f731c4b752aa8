"""The spool of a shared history: what the stream lacks, and calls that wait for the stream."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.history.spool import SYNC_SECONDS, Spool, Waiters

GRAIN = 64 * 1024


class SpoolTests(SynchronousTestCase):
    """Messages that wait for the stream"""

    @given(
        st.lists(st.tuples(st.integers(1, 9), st.integers(0, 90_000)), max_size=30),
        st.tuples(st.integers(0, 9), st.integers(0, 90_000)),
    )
    @example([(1, 40_000)] * 4, (0, 0))
    @example([], (3, 5))
    def test_what_the_stream_lacks_is_counted(
        self, sizes: list[tuple[int, int]], older: tuple[int, int]
    ) -> None:
        spool, end, added = Spool(), 10, []
        for messages, nbytes in sizes:
            end += messages
            spool.add(end, messages, nbytes)
            added.append((end, messages, nbytes))
        if older[0]:
            added.append((10, *older))
        spool.add_older(10, *older)
        assert spool.end == max([end for end, _, _ in added], default=0)
        for offset in range(end + 1):
            spool.free(offset)
            lacking = [one for one in added if one[0] > offset]
            # Small additions are freed together.
            assert sum(one[1] for one in lacking) <= spool.messages
            assert 0 <= spool.nbytes - sum(one[2] for one in lacking) <= GRAIN
        assert (spool.messages, spool.nbytes) == (0, 0)


class WaitersTests(SynchronousTestCase):
    """Calls that wait until the stream has the messages before an offset"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.waiters = Waiters(self.clock)
        self.called: list[tuple[int, bool]] = []

    def ask(self, end: int, stored: bool = True) -> None:
        self.waiters.after(end, lambda done: self.called.append((end, done)))(stored)

    def taken(self) -> list[tuple[int, bool]]:
        called, self.called = self.called, []
        return called

    def test_they_are_made_in_order(self) -> None:
        for end in (5, 7, 9):
            self.ask(end)
        self.waiters.reached(4)
        assert self.taken() == []
        self.waiters.reached(7)
        assert self.taken() == [(5, True), (7, True)]
        self.waiters.reached(9)
        assert self.taken() == [(9, True)]
        self.clock.advance(SYNC_SECONDS)
        assert self.taken() == []

    def test_the_stream_has_the_messages_already(self) -> None:
        self.waiters.reached(5)
        self.waiters.reached(3)
        assert self.waiters.settled == 5
        self.ask(5)
        assert self.taken() == [(5, True)]
        assert not self.clock.getDelayedCalls()

    def test_messages_that_were_not_stored(self) -> None:
        self.waiters.reached(5)
        self.ask(5, stored=False)
        assert self.taken() == [(5, False)]

    def test_each_has_a_deadline(self) -> None:
        self.ask(5)
        later = self.waiters.after(7, lambda done: self.called.append((7, done)))
        self.clock.advance(SYNC_SECONDS / 2)
        # The time since the messages were published counts.
        later(True)
        self.ask(9)
        self.clock.advance(SYNC_SECONDS / 2)
        assert self.taken() == [(5, False), (7, False)]
        self.clock.advance(SYNC_SECONDS / 4)
        assert self.taken() == []
        self.clock.advance(SYNC_SECONDS / 4)
        assert self.taken() == [(9, False)]
        assert not self.clock.getDelayedCalls()

    def test_the_end(self) -> None:
        later = self.waiters.after(8, lambda done: self.called.append((8, done)))
        self.ask(5)
        self.ask(7)
        self.waiters.end()
        assert self.taken() == [(5, False), (7, False)]
        self.waiters.reached(9)
        later(True)
        assert self.taken() == [(8, False)]
        assert not self.clock.getDelayedCalls()
