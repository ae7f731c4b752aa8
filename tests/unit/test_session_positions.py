"""Positions of sessions, in their form for all brokers."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, ensureDeferred, succeed
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from pubsub.backplane.positions.shared_position import SharedPosition
from pubsub.backplane.sessions.session_entry import SessionEntry
from pubsub.backplane.sessions.session_positions import SessionPositions
from pubsub.broker.clients.session_sharing import SessionContent


class OneBroker:
    """Positions of a history of which each message is one of a single run."""

    def at(self, offset: int) -> Deferred[SharedPosition]:
        return succeed(SharedPosition(0, {"origin": {1: offset}}))


class EntryTests(SynchronousTestCase):
    """Topics that are behind"""

    def written(self, behind: dict[str, int]) -> SessionEntry:
        positions: Any = OneBroker()
        made = SessionPositions(positions, 1, Clock()).entry("r", SessionContent((), behind), True)
        found = self.successResultOf(ensureDeferred(made))
        assert isinstance(found, SessionEntry)
        return found

    def places(self, entry: SessionEntry) -> dict[str, int]:
        """Return the offsets at which topics continue."""
        return {
            name: entry.positions[number].origins["origin"][1]
            for name, number in entry.behind.items()
        }

    def test_each_topic_continues_at_its_position(self) -> None:
        behind = {f"t{number}": 7 * (number % 64) for number in range(100)}
        entry = self.written(behind)
        assert self.places(entry) == behind
        assert len(entry.positions) == 64

    def test_of_many_positions_some_become_the_next_lower_one(self) -> None:
        behind = {f"t{number}": 10 * number for number in range(1000)}
        entry = self.written(behind)
        assert len(entry.positions) <= 64
        for name, place in self.places(entry).items():
            assert 0 <= behind[name] - place < 10 * 1000 / 50
