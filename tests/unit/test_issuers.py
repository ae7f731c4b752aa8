"""Rights of an issuer's tokens: ``actions`` of its table, and rules with ``issuer``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_table import ACTIONS, AccessTable
from pubsub.broker.access_rules.listener_access import ListenerAccess
from pubsub.broker.credentials.identity import Identity, token_identity
from pubsub.broker.credentials.master_secrets import KeySource, MasterSecret, SecretRing
from pubsub.broker.credentials.tokens import Token, TokenVerifier
from pubsub.broker.listeners.listener_settings import SETTINGS
from pubsub.embed import read_config
from pubsub.errors import BadToken, ConfigurationError
from pubsub.plugin import installed_protocols
from pubsub.server.configuration import CommandLine, Config, merge
from pubsub.settings import read_all
from tests.unit import fast_wire as wire
from tests.unit.fakes import START, scratch
from tests.unit.fast_wire import NO_PERMISSION
from tests.unit.streams import House
from tests.unit.tokens import KEY, hmac_secret, token
from tests.unit.web import WebHouse

URL = "https://login.example.com/keys"
READ = frozenset({"subscribe", "history"})


def configuration(keys: dict[str, Any], *rules: Mapping[str, object]) -> Config:
    """Return the configuration with these tables."""
    document: dict[str, Any] = {"keys": keys}
    if rules:
        document["access"] = list(rules)
    return merge(installed_protocols(), CommandLine(), document)


def verified(*permissions: str, actions: frozenset[str] | None) -> Token:
    """Return a token of an issuer with these actions."""
    secret = replace(hmac_secret(), actions=actions)
    return TokenVerifier(SecretRing([secret])).check(token({"permissions": permissions}), START)


class PermissionTests(SynchronousTestCase):
    """The actions that a token permits"""

    def permitted(self, *permissions: str, actions: frozenset[str] | None) -> set[str]:
        found = verified(*permissions, actions=actions)
        return {action for action in ACTIONS if found.permits(action)}

    def test_without_actions_the_claims_decide(self) -> None:
        assert self.permitted("publish", actions=None) == {"publish"}
        assert self.permitted("*", actions=None) == set(ACTIONS)
        assert self.permitted("admin", actions=None) == set(ACTIONS)

    def test_no_claim_goes_beyond_the_actions(self) -> None:
        assert self.permitted("publish", "subscribe", actions=READ) == {"subscribe"}
        assert self.permitted("*", actions=READ) == READ
        assert self.permitted("admin", actions=READ) == set()
        assert self.permitted("admin", actions=READ | {"admin"}) == READ | {"admin"}
        assert self.permitted("admin", "history", actions=READ) == {"history"}
        assert self.permitted("*", actions=frozenset()) == set()

    def test_a_token_ends_when_its_issuer_may_give_less(self) -> None:
        secret = replace(hmac_secret(), actions=READ)
        tokens = TokenVerifier(SecretRing([secret]))
        found = tokens.check(token({}), START)
        more, all_of_them = replace(secret, actions=READ | {"publish"}), hmac_secret()
        for now in (secret, more, all_of_them):
            tokens.replace(SecretRing([now]))
            assert tokens.valid(found, START)
        tokens.replace(SecretRing([replace(secret, actions=frozenset({"history"}))]))
        assert not tokens.valid(found, START)
        tokens.replace(SecretRing([all_of_them]))
        unlimited = tokens.check(token({}), START)
        tokens.replace(SecretRing([secret]))
        assert not tokens.valid(unlimited, START)

    def test_the_identity_has_the_table_of_the_key(self) -> None:
        key = MasterSecret("corp/a", "HS256", KEY, kid="a", table="corp")
        found = TokenVerifier(SecretRing([key])).check(token({"sub": "ada"}, kid="a"), START)
        assert token_identity(found) == Identity("ada", "token", issuer="corp")
        assert token_identity(verified(actions=None)).issuer == "main"

    def test_keys_that_were_fetched_have_the_demands_of_their_source(self) -> None:
        source = KeySource("corp", URL, "", 60, START + 10, "https://a", frozenset({"x"}), READ)
        ring = SecretRing(
            sources=[source], fetched={"corp": (MasterSecret("corp/a", "HS256", KEY),)}
        )
        tokens = TokenVerifier(ring)
        raw = token({"iss": "https://a", "aud": "x", "permissions": "*"})
        found = tokens.check(raw, START)
        assert found.secret.source == "corp"
        assert {action for action in ACTIONS if found.permits(action)} == READ
        for claims, now, problem in (
            ({"iss": "https://b", "aud": "x"}, START, "iss: another issuer"),
            ({"iss": "https://a", "aud": "y"}, START, "aud: for another audience"),
            ({"iss": "https://a", "aud": "x"}, START + 10, "no secret verifies the token"),
        ):
            with pytest.raises(BadToken, match=problem):
                tokens.check(token(claims), now)
        assert not tokens.valid(found, START + 10)


class SettingTests(SynchronousTestCase):
    """``actions`` in the file"""

    def actions(self, **table: object) -> frozenset[str] | None:
        given = {"jwks-url": URL, **table}
        return configuration({"corp": given}).key_sources[0].actions

    def test_tokens_of_other_issuers_have_no_admin_by_default(self) -> None:
        assert self.actions() == frozenset(ACTIONS) - {"admin"}
        assert self.actions(actions="*") is None
        assert self.actions(actions=["*"]) is None
        assert self.actions(actions="subscribe, history") == READ
        assert self.actions(actions=[]) == frozenset()

    def test_own_secrets_have_everything_by_default(self) -> None:
        path = scratch(self) / "secret"
        path.write_bytes(KEY)
        path.chmod(0o600)
        own = {"secret-file": str(path)}
        assert configuration({"own": own}).secrets[0].actions is None
        (narrow,) = configuration({"own": {**own, "actions": "history"}}).secrets
        assert narrow.actions == frozenset({"history"})

    def test_mistakes(self) -> None:
        for wrong in ("write", ["*", "x"], 7, [7]):
            with pytest.raises(ConfigurationError, match=r"\[keys.corp\] actions: expected"):
                self.actions(actions=wrong)

    def test_a_rule_names_tables_that_exist(self) -> None:
        corp = {"corp": {"jwks-url": URL}}
        for known in ("corp", "secret-file", ["corp", "secret-file"]):
            assert configuration(corp, {"allow": "*", "issuer": known}).access.exists
        with pytest.raises(ConfigurationError, match="issuer: expected corp, secret-file; not"):
            configuration(corp, {"allow": "*", "issuer": "crop"})

    def test_a_rule_names_a_secret_of_a_program(self) -> None:
        rules = [{"allow": "*", "issuer": "mine"}]
        config = read_config({"access": rules}, {"mine": KEY})
        assert config.access.rules[0].who.issuers == ("mine",)


class RuleTests(SynchronousTestCase):
    """Rules with ``issuer``, and those that stand for ``actions``"""

    def rules(self, *rules: Mapping[str, object], **corp: object) -> ListenerAccess:
        table = configuration({"corp": {"jwks-url": URL, **corp}}, *rules).access
        return ListenerAccess("cafe", read_all(SETTINGS, {}), table)

    def may(self, rules: ListenerAccess, action: str, issuer: str, topic: str = "") -> bool:
        identity = Identity("ada", "token", issuer=issuer) if issuer else Identity("ada", "curve")
        return rules.rules_for(identity).may(action, topic)

    def test_equal_names_of_two_issuers_are_two_identities(self) -> None:
        rules = self.rules({"allow": "*", "identity": "ada", "issuer": "secret-file"})
        assert self.may(rules, "publish", "secret-file", "t")
        assert not self.may(rules, "publish", "corp", "t")
        assert not self.may(rules, "publish", "", "t")

    def test_actions_of_an_issuer_bound_the_rules(self) -> None:
        rules = self.rules({"allow": "*", "identity": "ada"}, actions="subscribe")
        assert self.may(rules, "subscribe", "corp", "t")
        assert not self.may(rules, "publish", "corp", "t")
        assert not self.may(rules, "admin", "corp")
        for issuer in ("secret-file", ""):
            assert self.may(rules, "publish", issuer, "t")
            assert self.may(rules, "admin", issuer)

    def test_actions_hold_without_rules_and_for_reserved_topics(self) -> None:
        rules = self.rules(actions=["publish"])
        assert self.may(rules, "publish", "corp", "t")
        assert not self.may(rules, "history", "corp", "t")
        allowed = {"allow": "*", "topics": "$SYS/*"}
        rules = self.rules(allowed, actions=["publish"])
        assert self.may(rules, "history", "", "$SYS/stats")
        assert not self.may(rules, "history", "corp", "$SYS/stats")
        assert not self.may(self.rules(allowed), "admin", "corp")

    def test_they_are_shown(self) -> None:
        table = AccessTable(allowed={"corp": READ, "own": None})
        (rule, *_) = table.listed(read_all(SETTINGS, {}))
        assert rule.origin == "[keys.corp] actions"
        assert str(rule) == "deny publish,create,delete,rotate,admin,metrics issuer=corp"
        assert str(table) == str(rule)
        assert not table.exists


class WireTests(SynchronousTestCase):
    """Requests"""

    def test_fast(self) -> None:
        path = scratch(self) / "secret"
        path.write_bytes(KEY)
        path.chmod(0o600)
        keys = {"corp": {"secret-file": str(path), "actions": "create,subscribe"}}
        house = House({"fast": {"errors": True}}, top={"keys": keys})
        raw = token({"sub": "ada", "queue_key": "k", "permissions": ["*"]})
        client = house.connect("fast")
        client.send(wire.create(raw) + wire.subscribe(raw))
        house.pump()
        assert house.broker.router.subscriptions == 1
        client.take()
        client.send(wire.publish(raw, b"1"))
        house.pump()
        assert bytes([NO_PERMISSION]) in client.take()
        assert house.store.next_offset == 0

    def test_http(self) -> None:
        house = WebHouse()
        house.broker.tokens.replace(SecretRing([replace(hmac_secret(), actions=READ)]))
        house.broker.set_access(AccessTable(allowed={"main": READ}))
        raw = house.token("*", "admin")
        house.publish("t", b"1")
        assert house.get("/v1/history?start=0&topic=t", token=raw).status == 200
        for path in ("/v1/audit", "/v1/sessions", "/v1/status"):
            assert house.get(path, token=raw).error == (403, "not-authorized")

    def test_the_issuer_is_no_secret_of_the_client(self) -> None:
        # The claim iss is only compared with the setting; rules are about the table.
        found = TokenVerifier(SecretRing([hmac_secret()])).check(token({"iss": "corp"}), START)
        assert token_identity(found).issuer == "main"
        assert json.loads(json.dumps(found.issuer)) == "corp"
