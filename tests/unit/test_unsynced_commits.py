"""Atomic commits that are not on disk: other brokers get no message of them."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.commits.unsynced_commits import UnsyncedCommits


class UnsyncedCommitsTests(SynchronousTestCase):
    """UnsyncedCommits"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.waiting: list[Callable[[bool], None]] = []
        self.released = 0
        self.commits = UnsyncedCommits(self.waiting.append, self.clock.callLater, self.release)

    def release(self) -> None:
        self.released += 1

    def state(self) -> tuple[int | None, int]:
        """Return where the oldest begins, and how often some were released."""
        return self.commits.begins, self.released

    def commit(self, offset: int) -> None:
        """Begin a commit, and end it."""
        self.commits.begin(offset)
        self.commits.end()

    def answer(self, is_on_disk: bool) -> None:
        """Call the oldest callback."""
        self.waiting.pop(0)(is_on_disk)

    def test_they_are_released_in_order(self) -> None:
        assert self.state() == (None, 0)
        self.commit(10)
        self.commit(20)
        self.commits.begin(30)
        assert self.state() == (10, 0)
        self.answer(True)
        assert self.state() == (20, 1)
        self.answer(True)
        # The third has not ended.
        assert self.state() == (30, 2)
        self.commits.end()
        assert self.state() == (30, 2)
        self.answer(True)
        assert self.state() == (None, 3)

    def test_a_sync_covers_earlier_ones(self) -> None:
        self.commit(10)
        self.commit(20)
        self.waiting.pop(1)(True)
        assert self.state() == (None, 1)
        self.answer(True)
        assert self.state() == (None, 1)

    def test_they_wait_while_the_history_cannot_be_written(self) -> None:
        self.commit(10)
        self.commit(20)
        for _ in range(3):
            while self.waiting:
                self.answer(False)
            assert self.state() == (10, 0)
            self.clock.advance(0.5)
            # One attempt for all of them.
            assert len(self.waiting) == 1
        self.answer(True)
        assert self.state() == (None, 1)
        assert not self.clock.getDelayedCalls()

    def test_one_that_has_begun_meanwhile_is_not_covered(self) -> None:
        """All input so far may be on disk before the commit has its first message."""
        self.commit(10)
        self.answer(False)
        self.commits.begin(20)
        self.clock.advance(0.5)
        self.answer(True)
        assert self.state() == (20, 1)
        self.commits.end()
        self.answer(True)
        assert self.state() == (None, 2)

    def test_nothing_happens_after_the_end(self) -> None:
        self.commit(10)
        self.commit(20)
        self.answer(False)
        self.commits.close()
        assert not self.clock.getDelayedCalls()
        self.answer(False)
        assert not self.clock.getDelayedCalls()
        self.commits.end()
        self.answer(True)
        assert self.released == 0
