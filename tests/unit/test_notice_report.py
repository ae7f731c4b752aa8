"""The notices of the client library as lines of ``pubsub sub``."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.client import Gap, Reconnected, Refusal, Uncertain
from pubsub.commands.notice_report import line_of


class LineTests(SynchronousTestCase):
    def test_a_reconnection_says_nothing_about_missing_messages(self) -> None:
        """The line of the Gap before it does, and a resumed session of cafe has one too."""
        assert line_of(Reconnected(True, "broken")) == "connected again, the session was resumed"

    def test_a_reconnection_does_not_name_the_failure_before_it(self) -> None:
        assert line_of(Reconnected(False, "connection refused")) == "connected again"

    def test_a_gap(self) -> None:
        gap = Gap(("a", "b"), "the session was lost", 7)
        text = "a, b: messages may be missing after offset 7: the session was lost"
        assert line_of(gap) == text

    def test_numbers_of_messages(self) -> None:
        assert line_of(Refusal(1, "too long")) == "1 message was refused: too long"
        assert line_of(Refusal(2, "too long")) == "2 messages were refused: too long"
        assert line_of(Uncertain(1, "x")) == "1 message may not have been published: x"
