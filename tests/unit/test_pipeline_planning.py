"""Offsets, limits and tasks: every offset is read, and none twice."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import ConfigurationError
from pubsub.pipeline.histories.history import PartitionBounds, TopicSize
from pubsub.pipeline.histories.topic_amounts import estimate_amount, requested_topics
from pubsub.pipeline.options.connector_options import source_options
from pubsub.pipeline.options.offset_options import Start
from pubsub.pipeline.options.topic_selection import TopicSelection
from pubsub.pipeline.positions.offsets import PartitionPosition, from_json, to_json
from pubsub.pipeline.positions.topic_starts import check_partitions, resolve_offset
from pubsub.pipeline.readers.batch_limits import divide_limit, fitting_stop
from pubsub.pipeline.tasks.planning import Task, cuts_by_bytes, plan_tasks
from tests.unit.fake_history import FakeHistory
from tests.unit.raising import raised

BOUNDS = [PartitionBounds(10, 100, "1-a", 100), PartitionBounds(0, 0, "1-b", 0)]


class OffsetTests(SynchronousTestCase):
    def test_json_and_back(self) -> None:
        offsets = {1: PartitionPosition(0, "1-b"), 0: PartitionPosition(2**40, "3-a")}
        value = to_json(offsets)
        assert list(value) == ["0", "1"]
        assert from_json(value, 2) == offsets

    def test_a_checkpoint_of_other_brokers(self) -> None:
        value = to_json({0: PartitionPosition(1, "a")})
        raised(ConfigurationError, from_json, value, 2)
        raised(ConfigurationError, from_json, {}, 1)

    def test_a_checkpoint_of_another_source(self) -> None:
        values: list[Any] = [
            {"orders": {"0": 23}},
            {"0": {"0": 23}},
            {"0": 23},
            {"0": {"next": "x"}},
        ]
        for value in values:
            error = raised(ConfigurationError, from_json, value, 1)
            assert "of another source" in str(error)

    def test_starting_offsets(self) -> None:
        def places(start: Start, default: str = "earliest") -> list[int]:
            return [
                resolve_offset(start, number, each, default) for number, each in enumerate(BOUNDS)
            ]

        assert places("earliest") == [10, 0]
        assert places("latest") == [100, 0]
        assert places({0: 50}) == [50, 0]
        assert places({1: "earliest"}, "latest") == [100, 0]
        # Before the first offset: the loss is reported when the query reads.
        assert places({0: 3}) == [3, 0]
        raised(ConfigurationError, places, {0: 101})
        check_partitions([0, 1], 2)
        for wrong in (2, -1):
            raised(ConfigurationError, check_partitions, [0, wrong], 2)


class ShareTests(SynchronousTestCase):
    @given(
        st.integers(1, 10_000),
        st.dictionaries(st.integers(0, 9), st.integers(0, 10_000), min_size=1),
    )
    @example(1, {0: 0})
    @example(1, {0: 1, 1: 1, 2: 1})
    @example(10_000, {0: 1, 1: 10_000})
    def test_shares_add_up_to_the_limit(self, limit: int, backlogs: dict[int, int]) -> None:
        found = divide_limit(limit, backlogs)
        assert set(found) == set(backlogs)
        assert sum(found.values()) == min(limit, sum(backlogs.values()))
        for number, share in found.items():
            assert 0 <= share <= backlogs[number], (found, backlogs)

    def test_in_proportion(self) -> None:
        assert divide_limit(100, {0: 300, 1: 100}) == {0: 75, 1: 25}


class FittingStopTests(SynchronousTestCase):
    @given(
        st.lists(st.integers(0, 50), min_size=1, max_size=5000),
        st.integers(1, 5000),
        st.integers(0, 20),
    )
    @example([0], 1, 0)
    @example([50], 1, 0)
    @example([1] * 5000, 5000, 0)
    def test_the_range_is_within_the_limit_or_one_message(
        self, sizes: list[int], limit: int, start: int
    ) -> None:
        start = min(start, len(sizes) - 1)
        stop = fitting_stop(lambda a, b: sum(sizes[a:b]), start, len(sizes), limit)
        assert start < stop <= len(sizes)
        assert stop == start + 1 or sum(sizes[start:stop]) <= limit

    def test_all_if_it_fits(self) -> None:
        assert fitting_stop(lambda a, b: b - a, 5, 100000, 10**9) == 100000

    def test_the_range_is_nearly_the_largest(self) -> None:
        stop = fitting_stop(lambda a, b: 10 * (b - a), 0, 10**9, 10**6)
        assert 90000 <= stop <= 100000, stop

    def test_nothing_to_read(self) -> None:
        assert fitting_stop(lambda a, b: 1, 7, 7, 5) == 7

    def test_a_range_smaller_than_its_blocks(self) -> None:
        amount = estimate_amount([TopicSize("a", 1000, 64_000)], 10)
        assert (amount.rows, amount.nbytes) == (10, 640)
        assert estimate_amount([], 10).rows == 0


def subscription(**given: str) -> TopicSelection:
    options = source_options({"path": "/x", **given}, False)
    return TopicSelection(options.topics, options.pattern)


class SubscriptionTests(SynchronousTestCase):
    def test_covered_topics(self) -> None:
        everything = subscription()
        assert everything.covers("a")
        assert not everything.covers("$SYS/events")
        assert not everything.selective
        named = subscription(subscribe="a,$SYS/events")
        assert named.covers("$SYS/events")
        assert not named.covers("ab")
        pattern = subscription(subscribepattern="a.*|.*events")
        assert pattern.covers("ab")
        assert not pattern.covers("ba")
        assert not pattern.covers("$SYS/events")

    def test_requested_topics(self) -> None:
        history = FakeHistory("ab", "ba", "a")
        assert requested_topics(subscription(), history, 0, 9) is None
        named = subscription(subscribe="x")
        assert requested_topics(named, history, 0, 9) == frozenset({"x"})
        found = requested_topics(subscription(subscribepattern="a.*"), history, 0, 9)
        assert found == frozenset({"a", "ab"})


class PlanTests(SynchronousTestCase):
    @given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(1, 10**6))
    @example(0, 0, 1)
    @example(5, 1, 10**6)
    @example(0, 10**6, 10**6)
    def test_every_offset_once(self, start: int, width: int, rows: int) -> None:
        rows = max(rows, width // 1000)
        whole = Task(1, start, start + width, "1-a", None)
        tasks = plan_tasks(FakeHistory(), whole, subscription(), max(rows, 1))
        at = start
        for task in tasks:
            assert (task.partition, task.epoch, task.start) == (1, "1-a", at)
            assert 0 < task.stop - task.start <= rows
            at = task.stop
        assert at == start + width

    def test_a_rare_topic_is_one_task(self) -> None:
        whole = Task(0, 0, 10**6, "1-a", frozenset({"rare"}))
        rare = subscription(subscribe="rare")
        assert len(plan_tasks(FakeHistory("rare", messages=3), whole, rare, 1000)) == 1
        assert len(plan_tasks(FakeHistory("rare", messages=5000), whole, rare, 1000)) == 5

    def test_tasks_end_where_segments_do_if_that_is_near(self) -> None:
        whole = Task(0, 0, 4000, "1-a", None)
        found = FakeHistory()
        found.good = [0, 900, 1030, 2240, 3300, 4000]
        tasks = plan_tasks(found, whole, subscription(), 1000)
        assert [(task.start, task.stop) for task in tasks] == [
            (0, 1030), (1030, 2240), (2240, 3000), (3000, 4000),
        ]  # fmt: skip

    def test_no_topics_no_tasks(self) -> None:
        whole = Task(0, 0, 10**6, "1-a", frozenset())
        assert plan_tasks(FakeHistory(), whole, subscription(subscribepattern="x"), 1000) == []


class SizedHistory(FakeHistory):
    """A history with a message of the size ``sizes[n]`` at each offset from 100 on."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.sizes = sizes

    def topics(self, start: int, stop: int) -> list[TopicSize]:
        return [TopicSize("any", stop - start, sum(self.sizes[start - 100 : stop - 100]))]


class CutTests(SynchronousTestCase):
    """Ranges with about equally many bytes"""

    @given(st.lists(st.integers(0, 1000), min_size=1, max_size=200), st.integers(1, 8))
    @example([0] * 200, 4)
    @example([1000] * 10 + [0] * 190, 4)
    @example([0] * 190 + [1000] * 10, 4)
    def test_each_cut_is_in_its_place(self, sizes: list[int], count: int) -> None:
        stop = 100 + len(sizes)
        history = SizedHistory(sizes)
        cuts = cuts_by_bytes(history, subscription(), 100, stop, count)
        assert (len(cuts), cuts[0], cuts[-1]) == (count + 1, 100, stop)
        assert cuts == sorted(cuts)
        costs = [size + 64 for size in sizes]
        # The bytes are measured in cells, each of which counts as even.
        width = len(sizes) // min(4 * count, len(sizes)) + 1
        cell = max(sum(costs[at : at + width]) for at in range(len(costs)))
        for number, cut in enumerate(cuts):
            assert abs(sum(costs[: cut - 100]) - sum(costs) * number / count) <= cell + 1

    def test_large_messages_within_a_cell_are_divided(self) -> None:
        history = SizedHistory([4] * 100_000 + [1_000_000] * 20 + [4] * 100_000)
        cuts = cuts_by_bytes(history, subscription(), 100, 200_120, 5)
        large = [len([at for at in range(100_100, 100_120) if a <= at < b])
                 for a, b in pairwise(cuts)]  # fmt: skip
        assert max(large) <= 10, cuts

    def test_there_are_as_many_tasks_as_are_demanded(self) -> None:
        history = SizedHistory([4] * 1000 + [50_000] * 20)
        for count in (100, 500, 1020):
            whole = Task(0, 100, 1120, "1-a", None)
            tasks = plan_tasks(history, whole, subscription(), 10_000, count)
            assert len(tasks) == count
            assert [task.start for task in tasks[1:]] == [task.stop for task in tasks[:-1]]
            assert (tasks[0].start, tasks[-1].stop) == (100, 1120)

    def test_even_messages_are_divided_evenly(self) -> None:
        for size in (0, 500):
            history = SizedHistory([size] * 1000)
            for count in (2, 3, 7):
                cuts = cuts_by_bytes(history, subscription(), 100, 1100, count)
                for number, cut in enumerate(cuts):
                    assert abs(cut - 100 - 1000 * number / count) <= 1
