"""Damage: the ranges of offsets that a log cannot give."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.store.catalog.damage import Damage


class DamageTests(SynchronousTestCase):
    """Noted ranges are known once, in order, and for as long as the log has them."""

    def setUp(self) -> None:
        self.damage = Damage()

    def test_nothing(self) -> None:
        assert self.damage.ranges(0) == []

    def test_ranges_are_in_order(self) -> None:
        assert self.damage.note(50, 60)
        assert self.damage.note(10, 20)
        assert self.damage.ranges(0) == [(10, 20), (50, 60)]

    def test_known_damage_is_not_new(self) -> None:
        """A reader may begin within a range."""
        self.damage.note(10, 20)
        for start, stop in ((10, 20), (12, 20), (10, 11)):
            assert not self.damage.note(start, stop)
        assert self.damage.ranges(0) == [(10, 20)]

    def test_ranges_that_touch_are_one(self) -> None:
        self.damage.note(10, 20)
        self.damage.note(30, 40)
        assert self.damage.note(15, 30)
        assert self.damage.ranges(0) == [(10, 40)]

    def test_expired_ranges_are_forgotten(self) -> None:
        self.damage.note(10, 20)
        self.damage.note(30, 40)
        assert self.damage.ranges(15) == [(15, 20), (30, 40)]
        assert self.damage.ranges(20) == [(30, 40)]
        assert self.damage.note(10, 20)

    def test_not_more_than_a_thousand_are_remembered(self) -> None:
        for number in range(1100):
            assert self.damage.note(2 * number, 2 * number + 1)
        assert len(self.damage.ranges(0)) == 1000
