"""The turns of clients with many frames."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.clients.frame_turns import FRAMES, FrameTurns
from pubsub.broker.slices import STEPS, Slices
from tests.unit.slice_ticks import Ticks


class FrameTurnsTests(SynchronousTestCase):
    """FrameTurns"""

    def setUp(self) -> None:
        self.ticks = Ticks()
        at_tick_end = self.ticks.waiting_for
        self.turns = FrameTurns(Slices(at_tick_end), at_tick_end)
        self.handled: list[str] = []

    def client(self, name: str, frames: int) -> None:
        """Handle the frames of a read, as a connection does."""
        left = frames

        def parse() -> None:
            nonlocal left
            while left:
                left -= 1
                self.handled.append(name)
                if self.turns.count():
                    return

        parse()
        if left:
            self.turns.run_later(parse, lambda: self.handled.append(f"{name} reads"))

    def tick(self) -> list[str]:
        """End the tick; return what the next one begins with."""
        del self.handled[:]
        self.ticks.turn()
        return self.handled

    def test_few_frames_are_handled_at_once(self) -> None:
        self.client("a", FRAMES - 1)
        assert self.handled == ["a"] * (FRAMES - 1)
        self.ticks.turn()
        assert not self.ticks.waiting

    def test_all_clients_share_a_tick(self) -> None:
        for name in "abc":
            self.client(name, FRAMES)
        assert [self.handled.count(name) for name in "abc"] == [FRAMES, 1, 1]

    def test_a_tick_is_as_short_with_many_clients(self) -> None:
        for clients in range(1, 60):
            self.setUp()
            for number in range(clients):
                self.client(str(number), FRAMES + 1000)
            for _ in range(10):
                assert len(self.tick()) <= 4 * STEPS + 20, clients

    def test_the_rest_is_handled_in_turns(self) -> None:
        self.client("a", FRAMES + 1000)
        self.client("b", 1000)
        found = self.tick()
        assert 4 * STEPS <= len(found) <= 4 * STEPS + 20
        assert found.count("a") == found.count("b")
        # New clients are served beside them.
        self.client("c", 3)
        assert self.handled[-3:] == ["c"] * 3
        ended: list[str] = []
        while self.ticks.waiting:
            ended += [one for one in self.tick() if one.endswith("reads")]
        assert sorted(ended) == ["a reads", "b reads"]
