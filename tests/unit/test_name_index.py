"""``NameIndex``: items in their order, by the names that they are about."""

from __future__ import annotations

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_table import AccessRule, AccessTable, Who
from pubsub.broker.identity import ANONYMOUS, PASSWORD, Identity
from pubsub.broker.name_index import NameIndex

NAMES = st.sampled_from(["ada", "bob", "a*", "[ab]*", "?da", "*", ""])


class NameIndexTests(SynchronousTestCase):
    """NameIndex"""

    @given(st.lists(st.lists(NAMES, max_size=3).map(tuple)), st.sampled_from(["ada", "bob", ""]))
    def test_no_item_is_missed_and_all_are_in_order(
        self, items: list[tuple[str, ...]], name: str
    ) -> None:
        placed = list(enumerate(items))
        found = list(NameIndex(placed, lambda item: item[1]).candidates(name))
        assert found == sorted(found)
        wanted = [
            item
            for item in placed
            if not item[1] or any(fnmatchcase(name, pattern) for pattern in item[1])
        ]
        assert [item for item in found if item in wanted] == wanted

    def test_items_of_other_names_are_not_looked_at(self) -> None:
        index = NameIndex([(f"user-{number}",) for number in range(1000)], lambda names: names)
        assert list(index.candidates("user-7")) == [("user-7",)]


class LargeTableTests(SynchronousTestCase):
    """AccessTable with a rule for each user"""

    def rules_about(self, name: str) -> list[str]:
        """Return the origins of the rules about a client."""
        everyone, others = frozenset(("publish",)), Who(identities=("user-1", "user-*"))
        rules = [AccessRule("first", True, everyone), AccessRule("some", True, everyone, others)]
        rules += [
            AccessRule(f"of {number}", True, everyone, Who(identities=(f"user-{number}",)))
            for number in range(100)
        ]
        table = AccessTable([*rules, AccessRule("last", False, everyone)])
        identity = Identity(name, PASSWORD if name else ANONYMOUS)
        return [rule.origin for rule in table.rules_about((), identity, "cafe")]

    def test_the_rules_of_a_user_are_in_order(self) -> None:
        assert self.rules_about("user-7") == ["first", "some", "of 7", "last"]

    def test_other_clients(self) -> None:
        assert self.rules_about("ada") == self.rules_about("") == ["first", "last"]
