"""``Catalog``: which messages are hidden."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from pubsub.settings import matcher
from pubsub.store.catalog import Catalog, Horizon, set_horizons


def horizons(*given: tuple[str, int]) -> list[Horizon]:
    return [Horizon(pattern, matcher([pattern]), offset) for pattern, offset in given]


class HiddenTests(SynchronousTestCase):
    """Messages of topics that have ended, and expired ones"""

    def test_some_may_be_hidden(self) -> None:
        catalog = Catalog(horizons=horizons(("a*", 100), ("b", 0)))
        for topics, some in (
            (None, True),
            ({"a1"}, True),
            ({"b", "a1"}, True),
            ({"b"}, False),
            ({"b", "other"}, False),
        ):
            wanted = None if topics is None else frozenset(topics)
            assert catalog.hides(99, wanted) is some
            assert not catalog.hides(100, wanted)

    def test_topics_without_messages_to_be_read(self) -> None:
        catalog = Catalog(ended={"ended": 30}, horizons=horizons(("a*", 100), ("b", 0)))
        names = {"a1", "b", "ended", "other"}
        assert catalog.visible(names, 30) == {"b", "other"}
        assert catalog.visible(names, 31) == {"b", "ended", "other"}
        assert catalog.visible(names, 101) == names
        catalog.forget_ended(29)
        assert catalog.ended == {"ended": 30}
        catalog.forget_ended(30)
        assert not catalog.ended

    def test_new_patterns_hide_what_none_kept(self) -> None:
        catalog = Catalog(low=10, horizons=horizons(("a", 40), ("*", 20)))
        assert catalog.first == 20
        set_horizons(catalog, horizons(("b", 0), ("a", 0), ("*", 0)), {"a": 40, "*": 20})
        assert [one.offset for one in catalog.horizons] == [20, 40, 20]
        assert [catalog.hidden_before(name) for name in "abc"] == [40, 20, 20]
        set_horizons(catalog, horizons(("a", 0)), {"a": 40})
        assert [catalog.hidden_before(name) for name in "abc"] == [40, 0, 0]
        assert catalog.first == 10
