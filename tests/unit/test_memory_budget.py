"""MemoryBudget: the account of the memory that clients make the broker hold."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import (
    INPUT,
    SUBSCRIBERS,
    SUBSCRIPTIONS,
    CacheAccount,
    MemoryBudget,
)
from pubsub.errors import MemoryExhausted
from tests.unit.fakes import Big, Held


class MemoryBudgetTests(SynchronousTestCase):
    """MemoryBudget"""

    def test_it_is_full_at_the_bound(self) -> None:
        memory = MemoryBudget(100)
        memory.reserve(99)
        assert not memory.full
        memory.reserve(50)
        assert memory.full
        assert memory.used == 149
        with pytest.raises(MemoryExhausted):
            memory.reserve(0)
        assert memory.used == 149

    def test_memory_taken_already_is_added_beyond_the_bound(self) -> None:
        memory = MemoryBudget(100)
        memory.add(100)
        memory.add(7)
        assert memory.used == 107
        memory.free(8)
        assert not memory.full

    def test_zero_is_no_bound(self) -> None:
        memory = MemoryBudget(0)
        memory.reserve(2**60)
        assert not memory.full
        memory.reserve(1)

    def test_waiting_publishers_go_on_below_the_bound(self) -> None:
        memory = MemoryBudget(100)
        memory.add(150)
        publishers = [Held(), Held()]
        for publisher in publishers:
            memory.wait(publisher)
            assert publisher.reasons == {memory}
        memory.free(50)
        assert [p.releases for p in publishers] == [0, 0]
        memory.free(1)
        assert [p.releases for p in publishers] == [1, 1]
        memory.free(1)
        assert [p.releases for p in publishers] == [1, 1]

    def test_a_publisher_may_wait_again_while_it_is_released(self) -> None:
        memory = MemoryBudget(100)

        class Eager(Held):
            def release(self, reason: object) -> None:
                super().release(reason)
                memory.add(100)
                memory.wait(self)

        publisher = Eager()
        memory.add(100)
        memory.wait(publisher)
        memory.free(60)
        assert publisher.releases == 1
        assert publisher.reasons == {memory}
        memory.free(100)
        assert publisher.releases == 2

    def test_the_largest_holder_is_the_one_that_holds_most_now(self) -> None:
        memory = MemoryBudget(100)
        assert memory.largest() is None
        small, large = Big(10), Big(20)
        memory.holders |= {small, large}
        assert memory.largest() is large
        small.held = 30
        assert memory.largest() is small
        memory.holders.discard(small)
        assert memory.largest() is large


class AccountTests(SynchronousTestCase):
    """The bytes of holders and of subscriptions"""

    @given(
        st.lists(
            st.tuples(st.integers(0, 2), st.sampled_from([SUBSCRIBERS, INPUT]), st.integers(0, 99))
        ),
        st.integers(0, 99),
    )
    def test_each_account_has_the_bytes_of_its_holders(
        self, changes: list[tuple[int, str, int]], mark: int
    ) -> None:
        memory, holders = MemoryBudget(100), [Big(0) for _ in range(3)]
        held = {(number, account): 0 for number in range(3) for account in (SUBSCRIBERS, INPUT)}
        publisher = Held()
        for number, account, now in changes:
            memory.charge(holders[number], held[number, account], now, mark, account)
            held[number, account] = now
            assert memory.used == sum(held.values())
            for one in (SUBSCRIBERS, INPUT):
                assert memory.held[one] == sum(held[at, one] for at in range(3))
            assert (holders[number] in memory.holders) is (now > mark)
            if memory.full and not publisher.reasons:
                memory.wait(publisher)
            assert bool(publisher.reasons) is memory.full

    def test_subscriptions(self) -> None:
        memory, publisher = MemoryBudget(100), Held()
        memory.count(SUBSCRIPTIONS, 60)
        memory.count(SUBSCRIPTIONS, 40)
        memory.wait(publisher)
        assert (memory.used, memory.held[SUBSCRIPTIONS]) == (100, 100)
        memory.count(SUBSCRIPTIONS, -60)
        assert (memory.used, memory.held[SUBSCRIPTIONS]) == (40, 40)
        assert not publisher.reasons


class WorkTests(SynchronousTestCase):
    """Memory for the work on one request"""

    def test_it_is_counted_while_it_lasts(self) -> None:
        memory = MemoryBudget(100)
        with memory.work(40):
            assert memory.used == 40
        with pytest.raises(KeyError), memory.work(40):
            raise KeyError
        assert memory.used == 0

    def test_a_quarter_of_the_unreserved_memory_is_left_to_others(self) -> None:
        memory = MemoryBudget(140)
        memory.set_aside(40)
        assert (memory.used, memory.work_limit) == (40, 50)
        with memory.work(50), memory.work(25):
            with pytest.raises(MemoryExhausted), memory.work(1):
                pass
            assert memory.used == 115
        memory.add(60)
        with pytest.raises(MemoryExhausted), memory.work(16):
            pass

    def test_without_a_bound_there_is_no_limit(self) -> None:
        memory = MemoryBudget(0)
        memory.set_aside(10)
        with memory.work(2**40):
            assert memory.work_limit > 2**40
        assert memory.used == 10


class CacheTests(SynchronousTestCase):
    """CacheAccount"""

    def setUp(self) -> None:
        self.memory = MemoryBudget(100)
        self.forgotten: list[str] = []

    def cache(self, name: str, limit: int = 1000) -> CacheAccount:
        return self.memory.cache(limit, lambda: self.forgotten.append(name))

    def test_a_cache_is_charged_until_it_is_cleared(self) -> None:
        cache = self.cache("a")
        cache.charge(60)
        cache.charge(-10)
        assert (self.memory.used, cache.nbytes) == (50, 50)
        cache.clear()
        cache.clear()
        assert (self.memory.used, cache.nbytes, self.forgotten) == (0, 0, ["a"])

    def test_a_cache_has_a_limit_of_its_own(self) -> None:
        cache = self.cache("a", 30)
        cache.charge(30)
        assert self.forgotten == []
        cache.charge(1)
        assert (self.memory.used, self.forgotten) == (0, ["a"])

    def test_at_the_bound_all_caches_are_emptied_and_nothing_is_refused(self) -> None:
        first, second, _empty = self.cache("a"), self.cache("b"), self.cache("c")
        first.charge(40)
        second.charge(40)
        publisher = Held()
        self.memory.reserve(30)
        assert (self.memory.used, self.forgotten) == (30, ["a", "b"])
        self.memory.wait(publisher)
        second.charge(71)
        assert (self.memory.used, second.nbytes, publisher.releases) == (30, 0, 1)

    def test_without_a_bound_caches_are_kept(self) -> None:
        memory = MemoryBudget(0)
        cache = memory.cache(2**40, lambda: self.forgotten.append("a"))
        cache.charge(2**30)
        memory.add(2**40)
        assert self.forgotten == []
