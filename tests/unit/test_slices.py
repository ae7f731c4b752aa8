"""Work in slices."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.slices import STEPS, Slices, Work
from tests.unit.slice_ticks import Ticks


class SlicesTests(SynchronousTestCase):
    """Slices"""

    def setUp(self) -> None:
        self.ticks = Ticks()
        self.slices = Slices(self.ticks.waiting_for)
        self.done: list[object] = []

    def work(self, steps: Iterable[object]) -> Work:
        """Note each step as done."""
        try:
            for step in steps:
                self.done.append(step)
                yield
        finally:
            self.done.append("closed")

    def turn(self) -> list[object]:
        """End the tick; return the steps of the next one."""
        del self.done[:]
        self.ticks.turn()
        return self.done

    def test_little_work_is_done_at_once(self) -> None:
        assert self.slices.run(self.work("ab"), lambda: self.done.append("then")) is None
        assert self.done == ["a", "b", "closed"]
        self.ticks.turn()
        assert not self.ticks.waiting

    def test_much_work_is_done_in_slices(self) -> None:
        work = self.work(range(2 * STEPS))
        assert self.slices.run(work, lambda: self.done.append("then")) is not None
        assert self.done == list(range(STEPS))
        assert self.turn() == list(range(STEPS, 2 * STEPS))
        assert self.turn() == ["closed", "then"]
        assert self.turn() == []
        assert not self.ticks.waiting

    def test_work_that_begins_when_the_only_other_ends_takes_no_more_of_a_tick(self) -> None:
        def begin_next() -> None:
            self.slices.run_later(self.work(range(3 * STEPS)), begin_next)

        begin_next()
        for _ in range(100):
            # Each piece of work has a last step, which finds that there is no further one.
            assert len(self.turn()) <= STEPS + 1
            assert len(self.ticks.waiting) == 1

    def test_all_work_shares_a_tick(self) -> None:
        for name in "abc":
            self.slices.run(self.work(name * STEPS))
        assert self.done == ["a"] * STEPS
        assert len(self.slices) == 3
        # The work that was begun continues in turns.
        done = self.turn()
        assert len(done) in (STEPS, STEPS + 2)
        assert abs(done.count("b") - done.count("c")) <= 1

    def test_work_that_is_stopped_is_closed(self) -> None:
        rest = self.slices.run(self.work(range(2 * STEPS)), lambda: self.done.append("then"))
        assert rest is not None
        rest.stop()
        rest.stop()
        assert self.turn() == ["closed"]
        rest.stop()
        assert len(self.slices) == 0

    def test_work_may_stop_itself(self) -> None:
        def steps() -> Iterable[int]:
            yield from range(STEPS)
            assert rest is not None
            rest.stop()
            yield -1

        rest = self.slices.run(self.work(steps()))
        assert self.turn() == [-1, "closed"]

    def test_an_error_ends_the_work_alone(self) -> None:
        def steps() -> Iterable[int]:
            yield from range(STEPS)
            raise ValueError

        self.slices.run(self.work(steps()), lambda: self.done.append("then"))
        self.slices.run(self.work("b"))
        assert self.turn() == ["closed", "b", "closed"]
        assert len(self.flushLoggedErrors(ValueError)) == 1  # type: ignore[no-untyped-call]

    def test_an_error_at_once_is_the_callers(self) -> None:
        def work() -> Work:
            raise ValueError("not now")
            yield

        with pytest.raises(ValueError, match="not now"):
            self.slices.run(work())
        assert len(self.slices) == 0

    def test_objects_are_given_up_a_little_in_each_tick(self) -> None:
        objects = list(range(10_000))
        self.slices.release(objects)
        left = [len(objects)]
        while self.ticks.waiting:
            self.ticks.turn()
            left.append(len(objects))
        assert left[-1] == 0
        assert 0 < max(before - after for before, after in pairwise(left)) <= 1_000

    def test_no_objects_to_give_up(self) -> None:
        self.slices.release([])
        assert not self.ticks.waiting
