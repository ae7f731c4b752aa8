"""The bounds of messages that the shared stream lacks."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.history.spool import SharedLimits
from pubsub.backplane.history.unsent_messages import UnsentMessages
from tests.unit.fakes import batch_of


class HoldTests(SynchronousTestCase):
    """Publishers are held for an engine that is there, and only for that"""

    def setUp(self) -> None:
        self.clock = Clock()
        limits = SharedLimits(spool=2000, held=1000)
        self.unsent = UnsentMessages(self.clock, limits, lambda topic: True, lambda: None)

    def publish(self) -> None:
        """Append more than the engine may lack while publishers go on."""
        self.unsent.appended(batch_of([bytes(1001)], offset=0))
        self.unsent.hold()
        assert self.unsent.gate.shut

    def test_they_are_released_when_the_engine_goes_away(self) -> None:
        self.publish()
        self.unsent.release()
        assert not self.unsent.gate.shut
        assert not self.clock.getDelayedCalls()
        # It has come back.
        self.unsent.hold()
        assert self.unsent.gate.shut

    def test_they_are_released_when_it_has_half_of_that(self) -> None:
        self.publish()
        self.unsent.reached(1)
        assert not self.unsent.gate.shut
        assert not self.clock.getDelayedCalls()

    def test_they_are_held_for_some_seconds_only(self) -> None:
        self.publish()
        self.clock.advance(4.9)
        self.unsent.hold()
        assert self.unsent.gate.shut
        self.clock.advance(0.1)
        assert not self.unsent.gate.shut
        # The engine is no faster than before.
        self.unsent.appended(batch_of([b"x"], offset=1))
        self.unsent.hold()
        assert not self.unsent.gate.shut
        assert not self.clock.getDelayedCalls()
        # It has caught up, and is behind again.
        self.unsent.reached(2)
        self.publish()
        self.unsent.release()
        self.unsent.release()
        assert not self.clock.getDelayedCalls()

    def test_calls_that_wait_are_made_at_the_end(self) -> None:
        self.publish()
        results: list[bool] = []
        first, later = (self.unsent.after_stored(results.append) for _ in range(2))
        first(True)
        assert not results
        self.unsent.end()
        later(True)
        assert results == [False, False]
        self.unsent.release()
        assert not self.clock.getDelayedCalls()

    def test_older_messages_count(self) -> None:
        self.unsent.found(10, 3, 2000)
        assert self.unsent.figures() == {
            "history_unreplicated": 3,
            "history_unreplicated_bytes": 2000,
            "history_full": False,
        }
        assert self.unsent.trouble() is not None
        self.unsent.reached(10)
        assert self.unsent.trouble() is None
