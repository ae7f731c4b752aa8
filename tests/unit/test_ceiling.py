"""The ceiling of a log: how far ahead of the messages it is, and when it is raised."""

from __future__ import annotations

from unittest.mock import patch

from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.commits.ceiling import Ceiling

FEWEST, MOST = 2**14, 2**26


class CeilingTests(SynchronousTestCase):
    """Ceiling"""

    def setUp(self) -> None:
        self.now = 0.0
        patched = patch("pubsub.store.commits.ceiling.time.monotonic", lambda: self.now)
        patched.start()
        self.addCleanup(patched.stop)
        self.ceiling = Ceiling()
        self.ceiling.set(100)

    def raised(self, stop: int, after: float) -> int:
        """Raise the ceiling after so many seconds; return how far it is beyond ``stop``."""
        self.now += after
        self.ceiling.raise_beyond(stop)
        return self.ceiling.next - stop

    def test_it_is_at_the_offset_at_first(self) -> None:
        assert (self.ceiling.next, self.ceiling.on_disk) == (100, 100)

    def test_a_sync_makes_the_next_one_the_ceiling(self) -> None:
        assert self.raised(100, 10) == FEWEST
        assert self.ceiling.on_disk == 100
        self.ceiling.synced(self.ceiling.next)
        assert self.ceiling.on_disk == 100 + FEWEST
        self.ceiling.synced(100)
        assert self.ceiling.on_disk == 100 + FEWEST

    def test_it_is_further_ahead_of_many_messages_and_not_for_long(self) -> None:
        assert self.raised(100, 10) == FEWEST
        stop = 100
        for ahead in [2**power for power in range(15, 27)] + [MOST, MOST]:
            stop = self.ceiling.next
            assert self.raised(stop, 1) == ahead
        for ahead in [2**power for power in range(25, 13, -1)] + [FEWEST, FEWEST]:
            stop = self.ceiling.next
            assert self.raised(stop, 10) == ahead

    def test_it_is_never_lowered(self) -> None:
        self.raised(10**6, 10)
        self.raised(100, 10)
        assert self.ceiling.next == 10**6 + FEWEST

    def test_it_is_raised_early_when_half_is_used_up(self) -> None:
        self.raised(100, 10)
        self.now += 10
        self.ceiling.raise_early(100 + FEWEST // 2)
        assert self.ceiling.next == 100 + FEWEST
        self.ceiling.raise_early(101 + FEWEST // 2)
        assert self.ceiling.next == 101 + FEWEST // 2 + FEWEST
