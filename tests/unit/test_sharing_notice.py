"""Log lines about a shared history."""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.history.sharing_notice import SharingNotice
from tests.unit.streams import logged

AWAY = "backplane: the history is not shared: away"
AGAIN = "backplane: the history is shared again"


class SharingNoticeTests(SynchronousTestCase):
    """SharingNotice"""

    def setUp(self) -> None:
        self.clock = Clock()
        self.notice = SharingNotice(self.clock)
        self.lines = logged(self)

    def test_a_reason_and_its_end_are_logged_once(self) -> None:
        for _ in range(2):
            self.notice.warn("away")
            self.notice.interrupted()
        self.notice.recovered()
        self.notice.recovered()
        self.clock.advance(5)
        self.notice.recovered()
        self.clock.advance(5)
        assert self.lines == [AWAY, AGAIN]

    def test_sessions_that_end_at_once_are_no_recovery(self) -> None:
        for _ in range(20):
            self.notice.warn("away")
            self.notice.recovered()
            self.clock.advance(0.5)
            self.notice.interrupted()
        assert self.lines == [AWAY]

    def test_nothing_is_logged_without_a_reason(self) -> None:
        self.notice.recovered()
        assert not self.clock.getDelayedCalls()
