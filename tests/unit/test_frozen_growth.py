"""The survivors of a long run of the garbage collector are left out of later ones."""

from __future__ import annotations

import gc

from twisted.trial.unittest import SynchronousTestCase

from pubsub.server.frozen_growth import FrozenGrowth
from tests.unit.tunings import restore_collector


class FrozenGrowthTests(SynchronousTestCase):
    """``FrozenGrowth``"""

    def setUp(self) -> None:
        restore_collector(self)
        gc.unfreeze()
        self.now = 0.0
        self.ended = 0
        self.growth = FrozenGrowth(lambda: self.ended, lambda: self.now)

    def run_collector(self, seconds: float, generation: int = 2) -> bool:
        """Tell of a run that takes as long; return whether its survivors are left out later."""
        info = {"generation": generation}
        self.growth._on_run("start", info)
        self.now += seconds
        self.growth._on_run("stop", info)
        return gc.get_freeze_count() > 0

    def test_the_survivors_of_a_long_run_are_left_out(self) -> None:
        assert not self.run_collector(0.001)
        assert not self.run_collector(0.1, generation=1)
        assert self.run_collector(0.1)
        assert self.run_collector(0.001)

    def test_after_many_ended_connections_a_run_visits_all(self) -> None:
        """Each may have left a cycle, which would not be freed otherwise."""
        self.ended = 50_000
        assert self.run_collector(0.1)
        self.ended = 59_999
        assert self.run_collector(0.001)
        self.ended = 60_000
        assert not self.run_collector(0.001)
        assert self.run_collector(0.1)
        self.ended = 69_999
        assert self.run_collector(0.001)

    def test_the_objects_of_the_start_stay_left_out_if_nothing_else_is(self) -> None:
        """All cycles of connections are visited anyway."""
        gc.freeze()
        self.ended = 100_000
        assert self.run_collector(0.001)

    def test_it_ends_with_the_broker(self) -> None:
        before = list(gc.callbacks)
        self.growth.startService()
        assert len(gc.callbacks) == len(before) + 1
        assert self.run_collector(0.1)
        self.growth.stopService()
        assert gc.callbacks == before
        assert gc.get_freeze_count() == 0
