"""pubsub access explain."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access_explanation import AccessRequest, explain
from pubsub.broker.access_rules.access_table import ACTIONS, AccessRule, AccessTable
from pubsub.broker.access_rules.listener_access import ListenerAccess
from pubsub.broker.credentials.identity import Identity
from tests.unit.access_rules import IDENTITIES, RULES, SETTINGS, TOPICS
from tests.unit.command_case import CommandCase

FILE = """
allow-subscribe = "news/*"
[groups]
ops = ["ada"]
[cafe]
allow-publish = "in/*"
grant = "in/closed"
[[listen]]
protocol = "cafe"
port = 7070
[[listen]]
protocol = "nsd"
[[access]]
allow = "*"
group = "ops"
[[access]]
deny = "publish"
network = "192.0.2.0/24"
[[access]]
allow = ["publish", "subscribe"]
topics = "in/%u, news/*"
"""


class ExplainTests(CommandCase):
    """The command"""

    def setUp(self) -> None:
        super().setUp()
        self.path = self.directory / "pubsub.toml"
        self.path.write_text(FILE)

    def explain(self, *options: str) -> tuple[int, str, str]:
        return self.run_it("access", "explain", "--config", str(self.path), *options)

    def found(self, *options: str) -> list[dict[str, Any]]:
        code, out, error = self.explain("--json", *options)
        assert (code, error) == (0, "")
        answer: list[dict[str, Any]] = json.loads(out)
        return answer

    def test_each_listener_has_its_own_settings(self) -> None:
        found = self.found("--identity", "ada", "--action", "publish", "--topic", "out")
        assert {one["listener"]: (one["allowed"], one["reason"]) for one in found} == {
            "cafe 7070": (False, "allow-publish"),
            "nsd": (True, "[[access]] 1"),
            "admin": (True, "[[access]] 1"),
        }

    def test_the_http_api_has_two_names(self) -> None:
        options = ("--identity", "ada", "--action", "publish", "--topic", "out", "--listener")
        assert self.found(*options, "http") == self.found(*options, "admin") != []

    def test_every_rule_has_a_part(self) -> None:
        options = ("--identity", "bob", "--action", "publish", "--topic", "in/bob")
        (cafe,) = self.found(*options, "--listener", "cafe", "--network", "198.51.100.1")
        assert cafe["allowed"]
        assert [one["part"] for one in cafe["rules"]] == [
            "about other topics",
            "about other actions",
            "about other actions",
            "about other groups",
            "about other networks",
            "decides",
        ]
        (cafe,) = self.found(*options, "--listener", "cafe", "--network", "192.0.2.1")
        assert not cafe["allowed"]
        assert [one["part"] for one in cafe["rules"][-2:]] == ["decides", "not reached"]

    def test_further_conditions(self) -> None:
        options = ("--identity", "ada", "--action", "publish", "--listener", "cafe", "--topic")
        (granted,) = self.found(*options, "in/closed")
        assert granted["notes"][-1] == "if the topic has a queue key, it is not asked for"
        (other,) = self.found(*options, "in/open")
        assert other["notes"][-1].endswith("it has to be presented as well")

    def test_as_text(self) -> None:
        code, out, _ = self.explain("--action", "subscribe", "--topic", "news/1")
        assert code == 0
        assert out.startswith(
            "cafe 7070:\n  subscribe 'news/1' by anonymous: allowed ([[access]] 3)\n"
        )
        assert "\n\nnsd, admin:\n" in out
        assert out.count("decides") == 2

    def test_without_a_table(self) -> None:
        self.path.write_text("[cafe]\nallow-publish = 'in'\n")
        options = ("--action", "publish", "--topic", "in", "--listener", "cafe")
        assert self.found(*options)[0]["reason"] == "no table [[access]]"
        options = ("--action", "subscribe", "--topic", "$SYS/events", "--listener", "cafe")
        assert self.found(*options)[0]["reason"] == "reserved topics have to be granted"
        (admin,) = self.found("--action", "admin", "--listener", "admin")
        assert any("only if there are no secrets" in note for note in admin["notes"])

    def test_anonymous_clients_that_are_not_served(self) -> None:
        certificates = "[cafe]\ntls-cert = 'missing'\ntls-client = 'required'\n"
        away, here = "192.0.2.1", "127.0.0.1"
        auto, off = "allow-anonymous is auto", "allow-anonymous is off"
        for content, network, reason in (
            ("", away, f"anonymous clients are not served: {auto}"),
            ("", here, "no table [[access]]"),
            ("", "unix", "no table [[access]]"),
            (certificates, away, "no table [[access]]"),
            ("allow-anonymous = true\n", away, "no table [[access]]"),
            ("allow-anonymous = false\n", here, f"anonymous clients are not served: {off}"),
        ):
            self.path.write_text(content)
            options = ("--action", "publish", "--topic", "in", "--listener", "cafe")
            (found,) = self.found(*options, "--network", network)
            assert (found["allowed"], found["reason"]) == ("table" in reason, reason)
            assert not any("other machines" in note for note in found["notes"])
        self.path.write_text("")
        (found,) = self.found(*options)
        assert found["notes"][-1] == f"clients of other machines are not served: {auto}"
        (found,) = self.found(*options, "--identity", "ada", "--network", away)
        assert found["allowed"]

    def test_the_http_api_as_a_listener(self) -> None:
        listener = "[[listen]]\nprotocol = 'http'\nport = 7081\nallow-publish = 'a'\n"
        self.path.write_text(f"{listener}[[access]]\nallow = '*'\nlistener = 'admin'\n")
        options = ("--action", "publish", "--topic")
        for topic, reason in (("a", "[[access]] 1"), ("b", "allow-publish")):
            (found,) = self.found(*options, topic)
            assert (found["listener"], found["reason"]) == ("admin 7081", reason)

    def test_a_name_that_is_no_setting(self) -> None:
        for content, message in (
            ("[[acess]]\nallow = '*'\n", "acess: no such setting; did you mean access?"),
            ("listen = [1]\n", "listen: expected tables, [[listen]]"),
            ("cafe = 1\n", "cafe: expected a table, [cafe]"),
        ):
            self.path.write_text(content)
            code, _, error = self.explain("--action", "admin")
            assert (code, error) == (1, f"pubsub: {message}\n")

    def test_mistakes(self) -> None:
        for options, message in (
            (("--action", "publish"), "--action publish needs --topic"),
            (("--action", "admin", "--topic", "a"), "--action admin takes no --topic"),
            (
                ("--action", "admin", "--proof", "token"),
                "give --identity, or --proof anonymous, or neither",
            ),
            (
                ("--action", "admin", "--identity", "ada", "--issuer", "corp"),
                f"--issuer corp: {self.path} has no [keys.corp]",
            ),
            (
                ("--action", "admin", "--issuer", "corp"),
                "--issuer is for --proof token",
            ),
            (
                ("--action", "admin", "--network", "here"),
                "--network: expected an address or unix, not 'here'",
            ),
            (
                ("--action", "admin", "--listener", "spot"),
                f"--listener spot: {self.path} has no such listener",
            ),
        ):
            code, out, error = self.explain(*options)
            assert (code, out) == (2, "")
            assert error.startswith(f"pubsub: {message}"), error

    def test_issuers(self) -> None:
        # The files of keys are not read.
        keys = '[keys.corp]\njwks-file = "missing"\n[keys.own]\nsecret-file = "missing"\n'
        self.path.write_text(keys + '[[access]]\nallow = "*"\nissuer = ["own", "corp"]\n')
        options = ("--identity", "ada", "--action", "admin", "--listener", "admin")
        for issuer, allowed, reason in (
            ("own", True, "[[access]] 1"),
            ("corp", False, "[keys.corp] actions"),
            (
                "secret-file",
                False,
                "no rule is about this request, and there is a table [[access]]",
            ),
        ):
            (found,) = self.found(*options, "--issuer", issuer)
            assert (found["allowed"], found["reason"]) == (allowed, reason)
            assert not any("--issuer" in note for note in found["notes"])
        (found,) = self.found(*options)
        assert [one["part"] for one in found["rules"]] == ["about other issuers"] * 2
        assert found["notes"] == [
            "some rules are about tokens of one issuer: name it with --issuer"
        ]
        (found,) = self.found(*options, "--proof", "certificate")
        assert found["notes"] == []

    def test_a_file_with_a_mistake(self) -> None:
        self.path.write_text("[[access]]\nallow = 'fly'\n")
        code, _, error = self.explain("--action", "admin")
        assert code == 1
        assert error.startswith("pubsub: [[access]] 1 allow: expected publish")


class AgreementTests(SynchronousTestCase):
    """Explanations and decisions"""

    @given(st.lists(RULES, max_size=6), IDENTITIES, st.sampled_from(ACTIONS[:3]), TOPICS)
    def test_they_agree(
        self, rules: list[AccessRule], identity: Identity, action: str, topic: str
    ) -> None:
        table = AccessTable(rules)
        access = ListenerAccess("toy", SETTINGS, table).rules_for(identity)
        settings = {**SETTINGS, "allow-anonymous": "on"}
        found = explain(table, "toy", settings, AccessRequest(identity, action, topic))
        assert found.allowed == access.may(action, topic)
        assert len(found.steps) == len(rules)
