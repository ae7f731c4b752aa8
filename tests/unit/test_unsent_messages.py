"""The bounds of messages that the shared stream lacks."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.spool import SharedLimits
from pubsub.backplane.unsent_messages import UnsentMessages
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

    def test_older_messages_count(self) -> None:
        self.unsent.found(10, 3, 2000)
        assert self.unsent.figures() == {
            "history_unreplicated": 3,
            "history_unreplicated_bytes": 2000,
        }
        assert self.unsent.trouble() is not None
        self.unsent.reached(10)
        assert self.unsent.trouble() is None
