"""Gaps of a log in the histories of other brokers."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.positions.missing_messages import MISSING, MissingBefore, MissingMessages
from pubsub.backplane.positions.shared_position import KnownRuns, SharedPosition


class MissingMessagesTests(SynchronousTestCase):
    """They are kept in the metadata, with the mark of what may still come after a gap."""

    def setUp(self) -> None:
        self.table: dict[str, bytes] = {}

    def made(self) -> MissingMessages:
        """Return them as the next process has them."""
        found = MissingMessages(
            lambda table, key, value: self.table.update({key: value}),
            lambda table, key: self.table.pop(key, None),
        )
        found.restore(self.table.items())
        return found

    def test_nothing_is_missing_without_a_gap(self) -> None:
        missing = self.made()
        missing.arrived("a", MissingBefore(1, 7, 0), (0, 0))
        assert missing.offset == 0
        assert self.table == {}

    def test_messages_that_follow_those_before(self) -> None:
        self.made().expect(["a"])
        missing = self.made()
        missing.arrived("a", MissingBefore(1, 7, 30), (1, 7))
        assert missing.offset == 0
        assert set(self.table) == {"*"}

    def test_messages_behind_a_gap(self) -> None:
        self.made().expect(["a"])
        self.made().arrived("a", MissingBefore(1, 9, 30), (1, 7))
        missing = self.made()
        assert missing.offset == 30
        assert missing.before(29).origins == {}
        assert missing.before(30).origins == {"a": {1: 9}}
        # The origin has no gap after this.
        missing.arrived("a", MissingBefore(1, 20, 50), (1, 10))
        assert missing.offset == 30

    def test_messages_that_come_again(self) -> None:
        self.made().expect(["a"])
        missing = self.made()
        assert not missing.arrived("a", MissingBefore(1, 5, 30), (1, 7))
        assert missing.offset == 0
        missing.expect(["a"])
        assert missing.arrived("a", MissingBefore(1, 8, 30), (1, 7))

    def test_the_first_messages_of_an_origin_behind_a_gap(self) -> None:
        self.made().expect([])
        missing = self.made()
        missing.arrived("new", MissingBefore(5, 3, 8), (0, 0))
        missing.arrived("other", MissingBefore(6, 0, 9), (0, 0))
        assert self.made().before(100).origins == {"new": {5: 3}, "other": {6: 0}}

    def test_gaps_of_several_origins(self) -> None:
        self.made().keep("a", MissingBefore(1, 9, 30))
        self.made().keep("b", MissingBefore(2, 9, 70))
        self.made().keep("c", MissingBefore(3, 9, 50))
        assert self.made().offset == 70

    def test_a_gap_is_not_forgotten_when_another_one_may_follow(self) -> None:
        self.made().keep("a", MissingBefore(1, 9, 30))
        self.made().expect(["a"])
        assert self.made().offset == 30
        self.made().arrived("a", MissingBefore(1, 12, 60), (1, 12))
        assert self.made().offset == 30

    def test_ranges(self) -> None:
        runs = KnownRuns()
        runs.add("a", 1)
        runs.add("b", 2)
        missing = self.made()
        missing.keep("a", MissingBefore(1, 9, 30))

        def lacks(low: dict[str, dict[int, int]], high: dict[str, dict[int, int]] | None) -> bool:
            present = runs.extent_of({1: 20, 2: 5})
            end = None if high is None else runs.extent(SharedPosition(0, high))
            return missing.lacks(runs.extent(SharedPosition(0, low)), end, present)

        assert lacks({"a": {1: 8}}, None)
        assert not lacks({"a": {1: 9}}, None)
        assert lacks({}, {"a": {1: 3}})
        assert not lacks({}, {"b": {2: 3}})
        assert not lacks({}, {"b": {2: 9}})
        # An origin whose messages in the stream were all removed.
        missing.expect([])
        assert lacks({}, {"b": {2: 9}})
        assert not lacks({"b": {2: 9}}, {"b": {2: 9}})
        assert MISSING == "shared-missing"
