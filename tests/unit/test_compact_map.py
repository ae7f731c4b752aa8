"""Mappings of few items, compared with dicts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.compact_map import EMPTY_MAP, SingleItemMap, with_item, without_item

KEYS = st.integers(0, 3)


class SmallTests(SynchronousTestCase):
    """added and removed"""

    @given(st.lists(st.tuples(KEYS, st.booleans())))
    @example([(1, False), (1, True), (1, True)])
    @example([(1, False), (2, False), (1, True), (2, True)])
    def test_they_behave_like_a_dict(self, steps: list[tuple[int, bool]]) -> None:
        items: Mapping[int, str] = EMPTY_MAP
        expected: dict[int, str] = {}
        for key, goes in steps:
            if goes and key in expected:
                items = without_item(items, key)
                del expected[key]
            elif key not in expected:
                items = with_item(items, SingleItemMap(key, str(key)))
                expected[key] = str(key)
            assert items == expected
            assert [items.get(key) for key in range(4)] == [expected.get(key) for key in range(4)]
            assert list(items) == list(expected)
            assert len(items) == len(expected)

    def test_single_items_are_shared_and_immutable(self) -> None:
        one = SingleItemMap("news", 1)
        first, second = with_item(EMPTY_MAP, one), with_item(EMPTY_MAP, one)
        assert first is second is one
        both = with_item(second, SingleItemMap("sport", 2))
        assert both == {"news": 1, "sport": 2}
        without_item(both, "news")
        assert first == {"news": 1}

    def test_the_empty_map_is_immutable(self) -> None:
        with pytest.raises(TypeError):
            EMPTY_MAP["news"] = 1  # type: ignore[index]
