"""Access: which topic names a listener's patterns permit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from unittest.mock import patch

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules import access
from pubsub.broker.access_rules.access import AccessRules, Rule
from pubsub.broker.access_rules.access_table import AccessTable, make_view
from pubsub.errors import NotAuthorized


class RuleTests(SynchronousTestCase):
    """Rule"""

    def test_a_star_permits_everything(self) -> None:
        rule = Rule(["*"])
        assert rule.allows("a")
        assert rule.allows("deep/er\nname")

    def test_no_pattern_permits_nothing(self) -> None:
        rule = Rule([])
        assert not rule.allows("a")
        assert not rule.allows("*")

    def test_one_matching_pattern_suffices(self) -> None:
        rule = Rule(["cafe/?", "news/*", "x[0-9]"])
        allowed = {"cafe/1", "news/", "news/a/b", "x5"}
        refused = {"cafe/10", "cafe/", "new", "xnews/a", "x", "xx", "x55", "CAFE/1", "news"}
        assert {name for name in allowed | refused if rule.allows(name)} == allowed

    def test_a_pattern_must_match_the_whole_name(self) -> None:
        rule = Rule(["a", "b.c"])
        assert not rule.allows("a\n")
        assert not rule.allows("ab")
        assert not rule.allows("ba")
        assert not rule.allows("bxc")

    def test_cached_answers_are_the_same(self) -> None:
        rule = Rule(["a*"])
        for _ in range(3):
            assert rule.allows("ab")
            assert not rule.allows("b")

    def test_answers_are_the_same_beyond_the_cache(self) -> None:
        with patch.object(access, "_CACHED", 10):
            rule = Rule(["*7"])
            for _ in range(2):
                permitted = [n for n in range(100) if rule.allows(str(n))]
                assert permitted == list(range(7, 100, 10))

    def test_the_cache_is_bounded(self) -> None:
        asked: list[str] = []

        def recording(patterns: Sequence[str]) -> Callable[[str], bool]:
            def allows(name: str) -> bool:
                asked.append(name)
                return True

            return allows

        with patch.object(access, "_CACHED", 3), patch.object(access, "matcher", recording):
            rule = Rule(["?"])
            for name in "abcabcdab":
                rule.allows(name)
        assert "".join(asked) == "abcdab"


def rules_of(
    publish: Sequence[str],
    subscribe: Sequence[str],
    grant: Sequence[str] = (),
    closed: Collection[str] = (),
) -> AccessRules:
    """Return rules with these patterns."""
    table = AccessTable()
    settings = {"allow-publish": publish, "allow-subscribe": subscribe, "grant": grant}
    view = make_view(table.listed(settings), "", settings, False, 100)
    return AccessRules(lambda: view, closed)


class AccessRulesTests(SynchronousTestCase):
    """AccessRules"""

    def test_publishing_and_subscribing_have_separate_rules(self) -> None:
        rules = rules_of(["in/*"], ["out/*"])
        rules.check_publish("in/1")
        rules.check_subscribe("out/1")
        with pytest.raises(NotAuthorized):
            rules.check_publish("out/1")
        with pytest.raises(NotAuthorized):
            rules.check_subscribe("in/1")

    def test_a_closed_topic_is_closed_both_ways_unless_granted(self) -> None:
        rules = rules_of(["*"], ["*"], ["granted*"], {"closed", "granted/1"})
        for check in (rules.check_publish, rules.check_subscribe):
            check("open")
            check("granted/1")
            with pytest.raises(NotAuthorized):
                check("closed")
        assert rules.may_subscribe("granted/1")
        assert not rules.may_subscribe("closed")

    def test_reserved_topics_are_granted_by_name_alone(self) -> None:
        for grant, granted in ((["*"], False), (["?SYS/*"], False), (["$SYS/*"], True)):
            rules = rules_of(["*"], ["*"], grant)
            assert rules.may_subscribe("$SYS/stats") is granted
            assert rules.may("publish", "$SYS/stats") is granted

    def test_several_topics_at_once(self) -> None:
        closed: set[str] = set()
        rules = rules_of(["*"], ["*"], closed=closed)
        for _ in range(2):
            assert rules.may_publish_all(("a", "b"))
            assert not rules.may_publish_all(("a", "$SYS/stats"))
        closed.add("c")
        assert rules.may_publish_all(("a", "b"))
        closed.add("b")
        assert not rules.may_publish_all(("a", "b"))

    def test_a_grant_does_not_override_the_rules(self) -> None:
        rules = rules_of(["in"], ["out"], ["*"], {"in", "out"})
        with pytest.raises(NotAuthorized):
            rules.check_publish("out")
        assert not rules.may_subscribe("in")
        assert rules.may_subscribe("out")

    def test_closed_topics_are_not_cached(self) -> None:
        closed: set[str] = set()
        rules = rules_of(["*"], ["*"], closed=closed)
        assert rules.may_subscribe("a")
        closed.add("a")
        assert not rules.may_subscribe("a")
        closed.remove("a")
        assert rules.may_subscribe("a")
