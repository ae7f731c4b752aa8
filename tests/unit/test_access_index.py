"""The rules that are looked at for a client, out of very many."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import ACTIONS, AccessRule, AccessTable, Who
from pubsub.broker.access_rules.client_keys import NetworkSet
from pubsub.broker.access_rules.key_index import KeyIndex
from pubsub.broker.credentials.identity import ANONYMOUS, NOBODY, PASSWORD, TOKEN, Identity

_GROUPS: Mapping[str, tuple[str, ...]] = {
    "ops": ("ada", "bob*"),
    "ends": ("*by", "b*"),
    "all": ("*",),
    "one": ("ada",),
    "none": (),
}
_NETWORKS = [
    "unix", *map(ip_network, ("10.0.0.0/8", "10.1.0.0/16", "0.0.0.0/0", "::/0", "fe80::/10"))
]  # fmt: skip
_NAMES = [
    "*", "a*", "ada", "bob", "10.1.2.3", "unix", "?d*", "*y", "*[by]", "b*y", "b?bby", "*da*",
    "*[b-",
]  # fmt: skip
WHOS = st.builds(
    Who,
    identities=st.lists(st.sampled_from(_NAMES), max_size=2).map(tuple),
    groups=st.lists(st.sampled_from([*_GROUPS, "proved", "unknown"]), max_size=3).map(tuple),
    networks=st.lists(st.sampled_from(_NETWORKS), max_size=3).map(tuple),
)
CLIENTS = st.builds(
    Identity,
    name=st.sampled_from(["", "ada", "bobby", "unix", "ops"]),
    proof=st.sampled_from([TOKEN, "anonymous"]),
    groups=st.frozensets(st.sampled_from(["proved", "ops"])),
    host=st.sampled_from(["", "unix", "10.1.2.3", "10.9.9.9", "::ffff:10.1.2.3", "fe80::1%eth0"]),
)


def table(*whos: Who, groups: Mapping[str, tuple[str, ...]] = _GROUPS) -> AccessTable:
    """Return a table with a rule for each of ``whos``."""
    return AccessTable([AccessRule("test", True, frozenset(ACTIONS), who) for who in whos], groups)


class IndexTests(SynchronousTestCase):
    """Rules with names, groups and networks"""

    @given(st.lists(WHOS, max_size=8), CLIENTS)
    def test_none_is_missed_and_their_order_stays(
        self, whos: list[Who], identity: Identity
    ) -> None:
        found = table(*whos)
        expected = [rule for rule in found.rules if found.is_about(rule.who, identity, "toy")]
        assert list(found.rules_about((), identity, "toy")) == expected

    def test_rules_for_others_cost_nothing(self) -> None:
        ada = Identity("user-7", TOKEN, host="10.0.7.1")
        numbers = range(200)
        groups = {f"group-{one}": (f"user-{one}",) for one in numbers}
        for whos in (
            [Who(identities=(f"user-{one}",)) for one in numbers],
            [Who(groups=(f"group-{one}",)) for one in numbers],
            [Who(networks=(ip_network(f"10.0.{one}.0/24"),)) for one in numbers],
            [Who(identities=("user-*",), groups=(f"group-{one}",)) for one in numbers],
            [Who(identities=(f"user-{one}*", "nobody")) for one in numbers],
            [Who(identities=(f"?ser*-{one}",)) for one in numbers],
            [Who(identities=(f"[a-u]*-{one}", "nobody")) for one in numbers],
        ):
            found = table(*whos, groups=groups)
            with patch.object(found, "is_about", wraps=found.is_about) as asked:
                assert found.rules_about((), ada, "toy") == (found.rules[7],)
                assert found.rules_about((), NOBODY, "toy") == ()
            assert asked.call_count == 1


class NetworkTests(SynchronousTestCase):
    """Networks of a rule"""

    @given(
        st.lists(st.ip_addresses(network="10.0.0.0/28") | st.ip_addresses(network="fd00::/124")),
        st.integers(0, 8),
    )
    def test_an_address_is_looked_up(self, addresses: list[Any], host_bits: int) -> None:
        networks = [
            ip_network((one, one.max_prefixlen - (host_bits + at) % 9), strict=False)
            for at, one in enumerate(addresses)
        ]
        found = NetworkSet([*networks, "unix"])
        for text in ("10.0.0.0", "10.0.0.9", "10.0.1.0", "fd00::7", "fd00::1:0"):
            address = ip_address(text)
            assert (address in found) == any(address in network for network in networks)


class KeyIndexTests(SynchronousTestCase):
    """KeyIndex"""

    @given(st.lists(st.none() | st.lists(st.sampled_from("abc"), max_size=3)))
    def test_each_item_comes_once_and_in_order(self, items: list[list[str] | None]) -> None:
        placed = list(enumerate(items))
        found = list(KeyIndex(placed, lambda item: item[1]).candidates("ab"))
        assert found == [one for one in placed if one[1] is None or {*one[1]} & {"a", "b"}]


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
