"""The cache of combinations."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.memory_budget import MemoryBudget
from pubsub.broker.routing import combination_cache
from pubsub.broker.routing.combination_cache import CombinationCache


class CacheTests(SynchronousTestCase):
    """``CombinationCache``"""

    def test_values_are_remembered(self) -> None:
        cache: CombinationCache[bool] = CombinationCache()
        assert cache.get((1, 2)) is None
        cache.put((1, 2), False)
        assert cache.get((1, 2)) is False
        cache.discard((1, 2))
        cache.discard((1, 2))
        assert cache.get((1, 2)) is None

    def test_the_items_of_all_keys_together_are_bounded(self) -> None:
        self.patch(combination_cache, "_MAX_ITEMS", 10)  # type: ignore[no-untyped-call]
        cache: CombinationCache[int] = CombinationCache()
        for number in range(5):
            cache.put((number, -number), number)
        assert len(cache) == 5
        cache.put((5,), 5)
        assert (len(cache), cache.get((5,))) == (1, 5)

    def test_a_discarded_key_makes_room(self) -> None:
        self.patch(combination_cache, "_MAX_ITEMS", 4)  # type: ignore[no-untyped-call]
        cache: CombinationCache[int] = CombinationCache()
        cache.put((1, 2, 3), 1)
        cache.discard((1, 2, 3))
        cache.put((4,), 2)
        cache.put((5, 6, 7), 3)
        assert len(cache) == 2

    def test_keys_are_charged_until_memory_is_short(self) -> None:
        memory = MemoryBudget(10_000)
        cache: CombinationCache[int] = CombinationCache(memory)
        cache.put((1, 2, 3), 1)
        one = memory.used
        assert one >= 400
        cache.put((4, 5, 6), 2)
        assert memory.used == 2 * one
        cache.discard((1, 2, 3))
        assert memory.used == one
        memory.add(10_000)
        assert (len(cache), memory.used) == (0, 10_000)
        memory.free(10_000)
        cache.put((1, 2, 3), 1)
        cache.clear()
        assert (cache.get((1, 2, 3)), memory.used) == (None, 0)

    def test_the_weights_of_values(self) -> None:
        memory = MemoryBudget(10_000)
        cache: CombinationCache[int] = CombinationCache(memory)
        cache.put((1, 2), 1)
        one = memory.used
        for weight in (700, 300, 0, 500):
            cache.weigh((1, 2), weight)
            assert memory.used == one + weight
        cache.weigh((3, 4), 500)
        assert memory.used == one + 500
        cache.discard((1, 2))
        assert memory.used == 0
        cache.put((1, 2), 1)
        assert memory.used == one
        cache.weigh((1, 2), 10_000)
        assert (len(cache), memory.used) == (0, 0)
        cache.weigh((1, 2), 0)
        assert memory.used == 0
