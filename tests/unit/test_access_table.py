"""The rules of [[access]]: their subjects and decisions, and the effects of a change."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.access_rules.access import RESERVED, AccessRules
from pubsub.broker.access_rules.access_table import (
    ACTIONS,
    AccessRule,
    AccessTable,
    Who,
    listener_rules,
)
from pubsub.broker.access_rules.listener_access import ListenerAccess
from pubsub.broker.credentials.identity import CERTIFICATE, NOBODY, SOCKET, TOKEN, Identity
from pubsub.errors import NotAuthorized
from tests.unit.access_rules import IDENTITIES, RULES, SETTINGS, TOPICS, rule

ADA = Identity("ada", CERTIFICATE, host="192.0.2.7")
EVE = Identity("eve", TOKEN, host="198.51.100.1")


def rules_for(
    identity: Identity, *rules: AccessRule, protocol: str = "toy", **settings: Sequence[str]
) -> AccessRules:
    """Return the access of ``identity`` by ``rules``; ``settings`` are those of the listener."""
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    access = ListenerAccess(protocol, {**SETTINGS, **named}, AccessTable(rules, GROUPS))
    return access.rules_for(identity)


GROUPS = {"ops": ("ada", "bob*"), "all": ("*",)}


class CombinationTests(SynchronousTestCase):
    """Remembered decisions about several topics"""

    def remembered(self, *rules: AccessRule) -> int:
        access = rules_for(ADA, *rules)
        for number in range(1000):
            assert access.may_publish_all(("ada/x", f"ada/{number}"))
        return len(access.view.combinations)

    def test_those_of_one_of_many_identities_are_bounded(self) -> None:
        assert self.remembered(rule(True, "publish", "%u/*")) <= 512

    def test_those_of_all_identities_together_stay(self) -> None:
        assert self.remembered(rule(True, "publish", "ada/*")) == 1000


class SomeTests(SynchronousTestCase):
    """Whether there may be topics whose history is readable"""

    def reads(self, *rules: AccessRule, identity: Identity = ADA, **given: Sequence[str]) -> bool:
        return rules_for(identity, *rules, protocol="toy", **given).may_read_some()

    def test_a_rule_for_some_topics_is_enough(self) -> None:
        assert self.reads(rule(False, topics="b*"), rule(True, "history", "a*"))
        assert not self.reads(rule(True, "subscribe", "a*"))
        assert not self.reads()

    def test_after_a_denial_of_all_topics_nothing_is_allowed(self) -> None:
        assert not self.reads(rule(False, "history"), rule(True, "history", "a*"))
        assert self.reads(rule(False, "publish"), rule(True, "history", "a*"))

    def test_personal_topics_need_a_name(self) -> None:
        personal = rule(True, "history", "%u/*")
        assert self.reads(personal)
        assert not self.reads(personal, identity=NOBODY)

    def test_settings_of_a_listener_count(self) -> None:
        assert not self.reads(rule(True), allow_subscribe=[])
        assert self.reads(rule(True), allow_subscribe=["a*"])

    def test_without_a_table_the_settings_alone_do(self) -> None:
        access = ListenerAccess("toy", SETTINGS, AccessTable())
        assert access.rules_for(NOBODY).may_read_some()
        none = {**SETTINGS, "allow-subscribe": ()}
        assert not ListenerAccess("toy", none, AccessTable()).rules_for(NOBODY).may_read_some()


class WhoTests(SynchronousTestCase):
    """The subjects of a rule"""

    def matches(self, identity: Identity, protocol: str = "toy", **who: tuple[object, ...]) -> bool:
        one = rule(True, who=Who(**who))  # type: ignore[arg-type]
        return rules_for(identity, one, protocol=protocol).may("publish", "a")

    def test_everybody(self) -> None:
        assert self.matches(NOBODY)
        assert self.matches(ADA)

    def test_patterns_of_names(self) -> None:
        assert self.matches(ADA, identities=("a*",))
        assert self.matches(ADA, identities=("eve", "ada"))
        assert not self.matches(ADA, identities=("ADA",))
        assert not self.matches(EVE, identities=("a*",))

    def test_an_anonymous_client_has_no_name(self) -> None:
        assert not self.matches(NOBODY, identities=("*",))
        assert not self.matches(Identity(host="192.0.2.7"), groups=("all",))
        assert self.matches(NOBODY, proofs=("anonymous",))
        assert not self.matches(ADA, proofs=("anonymous",))

    def test_a_proved_name_may_be_empty(self) -> None:
        assert self.matches(Identity("", TOKEN), identities=("*",))

    def test_groups_by_name_and_by_proof(self) -> None:
        assert self.matches(ADA, groups=("ops",))
        assert self.matches(Identity("bobby", TOKEN), groups=("ops",))
        assert not self.matches(EVE, groups=("ops",))
        assert self.matches(Identity("eve", TOKEN, frozenset({"ops"})), groups=("ops",))
        # A group that no table lists.
        assert self.matches(Identity("eve", TOKEN, frozenset({"guests"})), groups=("guests",))
        assert not self.matches(EVE, groups=("guests",))

    def test_networks(self) -> None:
        networks = (ip_network("192.0.2.0/24"), ip_network("2001:db8::/32"))
        assert self.matches(ADA, networks=networks)
        assert not self.matches(EVE, networks=networks)
        assert self.matches(Identity(host="2001:db8::1"), networks=networks)
        assert self.matches(Identity(host="::ffff:192.0.2.1"), networks=networks)
        assert not self.matches(Identity(host="unix"), networks=networks)
        assert not self.matches(NOBODY, networks=networks)
        assert self.matches(Identity(host="fe80::1%eth0"), networks=(ip_network("fe80::/10"),))

    def test_unix_sockets(self) -> None:
        assert self.matches(Identity("uid:0", SOCKET, host="unix"), networks=("unix",))
        assert not self.matches(ADA, networks=("unix",))

    def test_listeners(self) -> None:
        assert self.matches(ADA, protocol="cafe", listeners=("cafe", "nsd"))
        assert not self.matches(ADA, protocol="spot", listeners=("cafe", "nsd"))

    def test_all_conditions_have_to_be_met(self) -> None:
        assert self.matches(ADA, identities=("ada",), proofs=(CERTIFICATE,))
        assert not self.matches(ADA, identities=("ada",), proofs=(TOKEN,))


class DecisionTests(SynchronousTestCase):
    """The decisions of the rules"""

    def test_the_first_rule_that_matches_decides(self) -> None:
        rules = (rule(False, topics="a/secret"), rule(True, topics="a/*"), rule(False))
        access = rules_for(ADA, *rules)
        assert access.may("publish", "a/b")
        assert not access.may("publish", "a/secret")
        assert not access.may("publish", "b")

    def test_no_match_denies(self) -> None:
        access = rules_for(ADA, rule(True, "subscribe", "a"))
        assert [action for action in ACTIONS if access.may(action, "a")] == ["subscribe"]
        assert not rules_for(ADA).may("publish", "a")

    def test_without_a_table_everything_is_allowed(self) -> None:
        access = ListenerAccess("toy", SETTINGS, AccessTable()).rules_for(NOBODY)
        assert all(access.may(action, "a") for action in ACTIONS)

    def test_each_action_has_its_own_method(self) -> None:
        access = rules_for(ADA, rule(True, "history", "a"), rule(True, "delete", "b"))
        assert access.may_read("a")
        assert not access.may_subscribe("a")
        assert access.may_write("b", False, "delete")
        with pytest.raises(NotAuthorized):
            access.check_publish("b")
        with pytest.raises(NotAuthorized):
            access.check_create("b")
        with pytest.raises(NotAuthorized):
            access.check("rotate", "b")
        access.check("delete", "b")

    def test_admin_is_about_no_topic(self) -> None:
        assert rules_for(ADA, rule(True)).may("admin")
        assert not rules_for(ADA, rule(True, topics="a/*")).may("admin")
        assert not rules_for(ADA, rule(True, topics="%u*")).may("metrics")

    def test_the_name_is_inserted(self) -> None:
        access = rules_for(ADA, rule(True, topics="home/%u/*"))
        assert access.may("publish", "home/ada/1")
        assert not access.may("publish", "home/eve/1")
        assert not rules_for(EVE, rule(True, topics="home/%u/*")).may("publish", "home/ada/1")

    def test_a_name_brings_no_wildcards(self) -> None:
        for name in ("*", "?da", "[a]da", "a*", "%u", "[!x]da"):
            access = rules_for(Identity(name, TOKEN), rule(True, topics="home/%u/in"))
            assert access.may("publish", f"home/{name}/in")
            assert not access.may("publish", "home/ada/in"), name

    def test_without_a_name_nothing_is_inserted(self) -> None:
        access = rules_for(NOBODY, rule(True, topics="home/%u/* %u* a"))
        assert not access.may("publish", "home//x")
        assert not access.may("publish", "x")
        assert access.may("publish", "a")

    def test_reserved_topics_have_to_be_named(self) -> None:
        assert not rules_for(ADA, rule(True)).may("subscribe", "$SYS/events")
        assert not rules_for(ADA, rule(True, topics="?SYS/*")).may("subscribe", "$SYS/events")
        assert rules_for(ADA, rule(True, topics="$SYS/*")).may("subscribe", "$SYS/events")
        sly = Identity("$SYS", TOKEN)
        assert not rules_for(sly, rule(True, topics="%u/*")).may("subscribe", "$SYS/events")

    def test_a_denied_reserved_topic(self) -> None:
        rules = (rule(False, topics="$SYS/a"), rule(True, topics="$SYS/*"))
        assert not rules_for(ADA, *rules).may("subscribe", "$SYS/a")
        assert rules_for(ADA, *rules).may("subscribe", "$SYS/b")


class KeyTests(SynchronousTestCase):
    """Topics with a queue key"""

    def access(self, *rules: AccessRule, **settings: Sequence[str]) -> AccessRules:
        access = ListenerAccess("toy", {**SETTINGS, **settings}, AccessTable(rules))
        access.close({"closed"}, {"own"})
        return access.rules_for(ADA)

    def test_a_rule_does_not_replace_the_key(self) -> None:
        access = self.access(rule(True))
        assert not access.may("publish", "closed")
        assert access.may_write("closed", proved=True)
        assert access.may_read("closed", permitted=True)
        assert not access.may_read("own", permitted=True)

    def test_a_rule_without_the_key(self) -> None:
        access = self.access(rule(True, "publish", "c*", without_key=True), rule(True))
        assert access.may("publish", "closed")
        assert not access.may("subscribe", "closed")

    def test_a_grant_of_the_listener(self) -> None:
        assert self.access(rule(True), grant=("c*",)).may("publish", "closed")
        assert not self.access(rule(False), grant=("c*",)).may("publish", "closed")


class ListenerSettingsTests(SynchronousTestCase):
    """allow-publish, allow-subscribe and grant beside a table"""

    def test_actions_outside_the_rules_are_denied(self) -> None:
        access = rules_for(ADA, rule(True), allow_publish=("in/*",), allow_subscribe=("out/*",))
        assert access.may("publish", "in/1")
        assert access.may("delete", "in/1")
        assert not access.may("publish", "out/1")
        assert access.may("subscribe", "out/1")
        assert access.may("history", "out/1")
        assert not access.may("subscribe", "in/1")
        assert access.may("create", "in/1")
        assert access.may("create", "out/1")
        assert not access.may("create", "x")

    def test_they_allow_nothing(self) -> None:
        access = rules_for(ADA, rule(True, topics="in/1"), allow_publish=("in/*",))
        assert access.may("publish", "in/1")
        assert not access.may("publish", "in/2")

    def test_they_are_about_reserved_topics_too(self) -> None:
        access = rules_for(ADA, rule(True, topics="$SYS/*"), allow_publish=("in/*",))
        assert access.may("subscribe", "$SYS/events")
        assert not access.may("publish", "$SYS/events")

    def test_reserved_topics_are_granted(self) -> None:
        access = rules_for(ADA, rule(False), grant=("$SYS/events",))
        assert access.may("subscribe", "$SYS/events")
        assert not access.may("subscribe", "$SYS/stats")


class TextTests(SynchronousTestCase):
    """Rules as text, for explanations; changed rules have another text"""

    def test_every_part_is_shown(self) -> None:
        who = Who(
            ("a*", "bob"), ("ops",), (ip_network("192.0.2.0/24"),), (TOKEN,), ("nsd",), ("c",)
        )
        for one, text in (
            (rule(True), "allow *"),
            (rule(False, "publish", "a b"), "deny publish topics=a,b"),
            (rule(True, "create", "a", without_key=True), "allow create topics=a without-key"),
            (
                rule(True, who=who),
                "allow * identity=a*,bob group=ops network=192.0.2.0/24 proof=token issuer=c "
                "listener=nsd",
            ),
        ):
            assert str(one) == text
            assert str(AccessTable([one])) == text

    def test_settings_of_a_listener(self) -> None:
        settings = {**SETTINGS, "allow-publish": ("a", "b"), "allow-subscribe": ()}
        assert list(map(str, listener_rules(settings))) == [
            "deny publish,delete unless topics=a,b",
            "deny subscribe,history unless topics=none",
            "deny create unless topics=a,b",
        ]


class ChangeTests(SynchronousTestCase):
    """A new table"""

    def test_rules_in_use_follow_it(self) -> None:
        access = ListenerAccess("toy", SETTINGS, AccessTable())
        mine = access.rules_for(ADA)
        assert mine.may_publish_all(("a", "b"))
        access.replace(SETTINGS, AccessTable([rule(True, "publish", "a")]))
        assert not mine.may_publish_all(("a", "b"))
        assert mine.may("publish", "a")
        access.replace({**SETTINGS, "allow-publish": ("b",)}, None)
        assert not mine.may("publish", "a")

    def test_views_are_shared(self) -> None:
        table = AccessTable([rule(True, "publish", "a"), rule(True, topics="%u", who=Who(("a*",)))])
        access = ListenerAccess("toy", SETTINGS, table)
        eves = [access.rules_for(EVE.at(f"192.0.2.{n}")) for n in range(3)]
        assert len({id(one.view) for one in eves}) == 1
        assert access.rules_for(ADA).view is not access.rules_for(Identity("abe", TOKEN)).view

    def test_many_names_are_forgotten(self) -> None:
        table = AccessTable([rule(True, topics="%u/*")])
        access = ListenerAccess("toy", SETTINGS, table)
        for number in range(2000):
            assert access.rules_for(Identity(str(number), TOKEN)).may("publish", f"{number}/x")
        assert len(access._views) <= 512
        mine = access.rules_for(ADA)
        for number in range(1000):
            assert mine.may("publish", f"ada/{number}")
        assert len(mine.view.publish._decided) <= 64  # type: ignore[attr-defined]


def literally(pattern: str, name: str) -> str:
    """Return ``pattern`` with ``name`` in it, each of whose wildcards stands for itself."""
    quoted = "".join(f"[{one}]" if one in "*?[" else one for one in name)
    return pattern.replace("%u", quoted)


def is_meant(who: Who, identity: Identity) -> bool:
    anonymous = identity.proof == "anonymous"
    if who.identities and (anonymous or not fnmatchcase(identity.name, who.identities[0])):
        return False
    near = {"unix": ("unix",), "10.1.2.3": (ip_network("10.0.0.0/8"),)}.get(identity.host, ())
    return who.networks in ((), near)


def matches(pattern: str, name: str, topic: str) -> bool:
    if "%u" in pattern and not name:
        return False
    if topic.startswith(RESERVED) and not pattern.startswith(RESERVED):
        return False
    return fnmatchcase(topic, literally(pattern, name))


def naive(rules: Sequence[AccessRule], identity: Identity, action: str, topic: str) -> bool:
    """Return the decision of the first of ``rules`` that matches."""
    for one in rules:
        if action not in one.actions or not is_meant(one.who, identity):
            continue
        if any(matches(pattern, identity.name, topic) for pattern in one.topics):
            return one.allow
    return False


class PropertyTests(SynchronousTestCase):
    """The first rule that matches decides"""

    @given(st.lists(RULES, max_size=6), IDENTITIES, st.sampled_from(ACTIONS[:3]), TOPICS)
    def test_against_a_naive_model(
        self, rules: list[AccessRule], identity: Identity, action: str, topic: str
    ) -> None:
        access = rules_for(identity, *rules)
        for _ in range(2):
            assert access.may(action, topic) == naive(rules, identity, action, topic)

    @given(st.lists(RULES, max_size=6), IDENTITIES, TOPICS, TOPICS)
    def test_several_topics_at_once(
        self, rules: list[AccessRule], identity: Identity, one: str, other: str
    ) -> None:
        """May be refused for several, and is not allowed then if one is not."""
        access = rules_for(identity, *rules)
        if access.may_publish_all((one, other)):
            assert access.may("publish", one)
            assert access.may("publish", other)
