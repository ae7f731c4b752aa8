"""The tables [[access]] and [groups] of the configuration file."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import AccessTable
from pubsub.broker.access_rules.listener_access import ListenerAccess
from pubsub.broker.credentials.identity import CERTIFICATE, NOBODY, TOKEN, Identity
from pubsub.errors import ConfigurationError
from pubsub.plugin import installed_protocols
from pubsub.server.access_settings import read_access
from pubsub.server.configuration import CommandLine, merge

ADA = Identity("ada", CERTIFICATE, host="192.0.2.7")
SETTINGS = {"allow-publish": ("*",), "allow-subscribe": ("*",), "grant": ()}


def read(*rules: dict[str, Any], **document: Any) -> AccessTable:
    """Return the table of a file with these rules."""
    return read_access({"access": list(rules), **document}, ("cafe", "nsd"))


def may(table: AccessTable, identity: Identity, action: str, topic: str = "a") -> bool:
    return ListenerAccess("cafe", SETTINGS, table).rules_for(identity).may(action, topic)


class ReadTests(SynchronousTestCase):
    """Tables that are read"""

    def test_without_a_table(self) -> None:
        table = read_access({}, ())
        assert not table.exists
        assert may(table, NOBODY, "admin")

    def test_an_empty_table_denies_everything(self) -> None:
        table = read()
        assert table.exists
        assert not may(table, ADA, "publish")

    def test_words_as_text_or_as_a_list(self) -> None:
        for actions in ("publish, create", ["publish", "create"]):
            table = read({"allow": actions, "topics": "a, b"})
            assert may(table, NOBODY, "publish", "b")
            assert may(table, NOBODY, "create", "a")
            assert not may(table, NOBODY, "subscribe", "a")

    def test_every_condition(self) -> None:
        table = read(
            {"deny": "*", "identity": "a*", "topics": "a"},
            {"deny": "*", "group": "ops", "topics": "b"},
            {"deny": "*", "network": "192.0.2.0/24, unix", "topics": "c"},
            {"deny": "*", "proof": "certificate", "topics": "d"},
            {"deny": "*", "listener": "cafe", "topics": "e"},
            {"deny": "*", "listener": "nsd", "topics": "f"},
            {"allow": "*"},
            groups={"ops": "ada"},
        )
        assert [topic for topic in "abcdef" if may(table, ADA, "publish", topic)] == ["f"]
        other = Identity("bob", TOKEN, host="198.51.100.1")
        assert [topic for topic in "abcdef" if not may(table, other, "publish", topic)] == ["e"]

    def test_where_a_rule_is_written(self) -> None:
        table = read({"allow": "*", "topics": "x"}, {"deny": "publish"})
        assert [rule.origin for rule in table.rules] == ["[[access]] 1", "[[access]] 2"]


class MistakeTests(SynchronousTestCase):
    """One line with the mistake and its place"""

    def check(self, entry: dict[str, Any], message: str, **document: Any) -> None:
        with pytest.raises(ConfigurationError) as caught:
            read({"allow": "*"}, entry, **document)
        assert str(caught.value) == message

    def test_a_rule_without_an_effect_and_one_with_two(self) -> None:
        wanted = "[[access]] 2 expected either allow or deny, a list of actions"
        self.check({"topics": "a"}, wanted)
        self.check({"allow": "*", "deny": "*"}, wanted)

    def test_an_unknown_key(self) -> None:
        self.check(
            {"allow": "*", "topic": "a"},
            "[[access]] 2 topic: no such setting; did you mean topics?",
        )

    def test_an_unknown_action(self) -> None:
        expected = "publish, subscribe, history, create, delete, rotate, admin, metrics"
        message = f"[[access]] 2 allow: expected {expected}; not 'read'"
        self.check({"allow": "read"}, message)

    def test_an_empty_list(self) -> None:
        self.check({"allow": []}, "[[access]] 2 allow: expected actions, or no such key")
        self.check(
            {"deny": "*", "identity": ""},
            "[[access]] 2 identity: expected patterns, or no such key",
        )

    def test_an_unknown_group(self) -> None:
        message = "[[access]] 2 group: expected devs, ops; not 'opz'"
        self.check({"deny": "*", "group": "opz"}, message, groups={"ops": "a", "devs": "b"})
        message = "[[access]] 2 group: expected none, as [groups] has none; not 'ops'"
        self.check({"deny": "*", "group": "ops"}, message)

    def test_an_unknown_listener_or_proof(self) -> None:
        self.check(
            {"deny": "*", "listener": "mqtt"},
            "[[access]] 2 listener: expected cafe, nsd; not 'mqtt'",
        )
        proofs = "anonymous, token, certificate, password, curve, socket, address"
        self.check(
            {"deny": "*", "proof": "tls"}, f"[[access]] 2 proof: expected {proofs}; not 'tls'"
        )

    def test_a_network(self) -> None:
        self.check(
            {"deny": "*", "network": "192.0.2.1/24"},
            "[[access]] 2 network: expected unix or a network such as 192.0.2.0/24: "
            "192.0.2.1/24 has host bits set",
        )

    def test_a_name_in_brackets(self) -> None:
        # A bracket that closes is one of the characters where they begin.
        for pattern in ("a[%u]", "a[!b%u]", "a[]%u]", "a[!]b%u]"):
            self.check(
                {"allow": "*", "topics": pattern},
                f"[[access]] 2 topics: %u cannot stand in brackets, as in {pattern!r}",
            )

    def test_values_of_other_types(self) -> None:
        self.check({"allow": 7}, "[[access]] 2 allow: expected actions, as text or a list, not 7")
        wanted = "[[access]] 2 without-key: expected true or false, in a rule with allow"
        self.check({"allow": "*", "without-key": "yes"}, wanted)
        self.check({"deny": "*", "without-key": True}, wanted)

    def test_tables_that_are_none(self) -> None:
        for document, message in (
            ({"access": {"allow": "*"}}, "access: expected tables, [[access]]"),
            ({"access": ["x"]}, "access: expected tables, [[access]]"),
            ({"groups": ["x"]}, "groups: expected a table, [groups]"),
            (
                {"groups": {"ops": 1}},
                "[groups] expected patterns of identities, as text or a list, not 1",
            ),
        ):
            with pytest.raises(ConfigurationError) as caught:
                read_access(document, ())
            assert str(caught.value) == message


class ConfigurationTests(SynchronousTestCase):
    """In the whole configuration"""

    def test_the_table_of_the_file(self) -> None:
        document = {"access": [{"allow": "admin", "listener": "admin"}], "groups": {"ops": "ada"}}
        assert merge(installed_protocols(), CommandLine(), document).access.exists
        assert not merge(installed_protocols(), CommandLine(), {}).access.exists

    def test_the_http_api_has_two_names(self) -> None:
        for name in ("admin", "http"):
            rule = {"allow": "publish", "listener": f"cafe, {name}"}
            table = merge(installed_protocols(), CommandLine(), {"access": [rule]}).access
            for listener, allowed in (("admin", True), ("cafe", True), ("nsd", False)):
                rules = ListenerAccess(listener, SETTINGS, table).rules_for(NOBODY)
                assert rules.may("publish", "a") is allowed, (name, listener)
        document = {"access": [{"allow": "*", "listener": "mqtt"}]}
        with pytest.raises(ConfigurationError, match="expected admin, cafe, fast, http, nsd, "):
            merge(installed_protocols(), CommandLine(), document)
