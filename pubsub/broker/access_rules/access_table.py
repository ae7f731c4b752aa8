"""The rules of the tables ``[[access]]`` and ``[groups]``: the first that matches decides.

A listener's own settings (``allow-publish``, ``allow-subscribe``) are translated into
rules before them, which deny the rest. So a request is decided by one list, whether there is a
table or not.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from glob import escape
from itertools import chain
from typing import Any

from pubsub.broker.access_rules.access import RESERVED, View
from pubsub.broker.access_rules.client_keys import (
    UNIX,
    ClientKeys,
    Network,
    NetworkSet,
    address_of,
    keys_of,
)
from pubsub.broker.access_rules.key_index import KeyIndex
from pubsub.broker.credentials.identity import Identity
from pubsub.broker.routing.combination_cache import MAX_COMBINATION
from pubsub.settings import matcher

ACTIONS = ("publish", "subscribe", "history", "create", "delete", "rotate", "admin", "metrics")
"""The actions of rules and of the permissions of tokens. The last two concern no topic."""
NAME = "%u"
"""Stands for the name of the identity in the pattern of a topic."""
EVERYTHING = ("*",)
# Topics in combinations that a view remembers, for each decision that it remembers.
_COMBINED = 6
# Identities are compared with the same few patterns again and again.
_matcher = lru_cache(16_384)(matcher)


@dataclass(frozen=True, slots=True)
class Who:
    """The clients that a rule matches: those that meet all conditions that are not empty.

    ``identities`` are patterns of names, ``groups`` names of groups. ``networks`` are IP networks,
    or UNIX. ``proofs`` are those of ``Identity``. ``listeners`` are patterns of protocols' names.
    ``issuers`` are ids of tables of ``[keys]``.
    """

    identities: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    networks: tuple[Network | str, ...] = ()
    proofs: tuple[str, ...] = ()
    listeners: tuple[str, ...] = ()
    issuers: tuple[str, ...] = ()
    _near: NetworkSet = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_near", NetworkSet(self.networks))

    def __str__(self) -> str:
        """The conditions as they are written in the file."""
        given = {
            "identity": self.identities,
            "group": self.groups,
            "network": self.networks,
            "proof": self.proofs,
            "issuer": self.issuers,
            "listener": self.listeners,
        }
        shown = [f"{key}={','.join(map(str, words))}" for key, words in given.items() if words]
        return " ".join(shown)

    def includes(self, identity: Identity, protocol: str, groups: Mapping[str, Any]) -> bool:
        """Return whether this applies to a client of ``protocol``; ``groups`` match names."""
        if self.proofs and identity.proof not in self.proofs:
            return False
        if self.issuers and identity.issuer not in self.issuers:
            return False
        if self.listeners and not _matcher(self.listeners)(protocol):
            return False
        if self.networks and not self._is_near(identity.host):
            return False
        named = not identity.is_anonymous
        if self.identities and not (named and _matcher(self.identities)(identity.name)):
            return False
        return not self.groups or any(
            group in identity.groups or (named and group in groups and groups[group](identity.name))
            for group in self.groups
        )

    @property
    def keys(self) -> Collection[Hashable] | None:
        """The keys of the clients that this can apply to (see ``keys_of``)."""
        return keys_of(self.identities, self.groups, self.networks)

    def _is_near(self, host: str) -> bool:
        if host == UNIX or not host:
            return host in self.networks
        return address_of(host) in self._near


@dataclass(frozen=True, slots=True)
class AccessRule:
    """One rule. ``origin`` says where it is written, for explanations.

    It is about the topics that match ``topics`` and do not match ``unless``. An allowing rule
    ``without_key`` opens topics that have a queue key. ``reserved`` is True if the pattern ``*``
    matches reserved topics as well, which have to be granted then.
    """

    origin: str
    allow: bool
    actions: frozenset[str]
    who: Who = field(default_factory=Who)
    topics: tuple[str, ...] = EVERYTHING
    unless: tuple[str, ...] = ()
    without_key: bool = False
    reserved: bool = False

    def __str__(self) -> str:
        """The rule in a line, without its origin."""
        named = [action for action in ACTIONS if action in self.actions]
        actions = "*" if len(named) == len(ACTIONS) else ",".join(named)
        parts = [f"{'allow' if self.allow else 'deny'} {actions}", str(self.who)]
        parts += [f"topics={','.join(self.topics)}"] if self.topics != EVERYTHING else []
        parts += [f"unless topics={','.join(self.unless) or 'none'}"] if self.restricts else []
        parts += ["without-key"] if self.without_key else []
        return " ".join(filter(None, parts))

    @property
    def restricts(self) -> bool:
        """True for a rule that stands for a setting: it denies all topics that are not named."""
        return self.reserved and not self.allow and not self.who.issuers

    @property
    def is_personal(self) -> bool:
        """True if its topics depend on the name of the identity."""
        return any(NAME in pattern for pattern in self.topics)

    def matcher_for(self, name: str) -> Callable[[str], bool]:
        """Return a predicate: whether the rule is about a topic.

        ``name`` is that of the identity, which is inserted literally. Patterns with NAME match
        nothing for a client without a name. A reserved topic has to be named by a pattern that
        begins like it before the name is inserted.
        """
        usable = [one for one in self.topics if name or NAME not in one]
        inserted = [one.replace(NAME, escape(name)) for one in usable]
        reserved = [
            one for raw, one in zip(usable, inserted, strict=True) if raw.startswith(RESERVED)
        ]
        matches, unless = matcher(inserted), matcher(self.unless)
        names = matches if self.reserved else matcher(reserved)

        def is_about(topic: str) -> bool:
            found = names(topic) if topic.startswith(RESERVED) else matches(topic)
            return found and not unless(topic)

        return is_about


def listener_rules(settings: Mapping[str, Any]) -> list[AccessRule]:
    """Return the rules that stand for a listener's own settings."""
    publish, subscribe = tuple(settings["allow-publish"]), tuple(settings["allow-subscribe"])
    grant = [pattern for pattern in settings["grant"] if pattern.startswith(RESERVED)]
    parts = (
        ("allow-publish", ("publish", "delete"), publish),
        ("allow-subscribe", ("subscribe", "history"), subscribe),
        ("allow-publish, allow-subscribe", ("create",), publish + subscribe),
    )
    rules = [
        AccessRule(origin, False, frozenset(actions), unless=allowed, reserved=True)
        for origin, actions, allowed in parts
        if "*" not in allowed
    ]
    if grant:
        actions = frozenset(("publish", "subscribe", "history"))
        rules.append(AccessRule("grant", True, actions, topics=tuple(grant)))
    return rules


def issuer_rules(allowed: Mapping[str, frozenset[str] | None]) -> list[AccessRule]:
    """Return the rules that stand for the ``actions`` of issuers; None stands for all."""
    return [
        AccessRule(
            f"[keys.{id}] actions",
            False,
            frozenset(ACTIONS) - actions,
            Who(issuers=(id,)),
            reserved=True,
        )
        for id, actions in allowed.items()
        if actions is not None and not actions.issuperset(ACTIONS)
    ]


NO_TABLE = AccessRule("no table [[access]]", True, frozenset(ACTIONS), reserved=True)
"""The last rule where there is no table."""


class AccessTable:
    """The rules of a broker, in order. ``exists`` is False without a table ``[[access]]``.

    ``allowed`` has the actions of issuers whose tokens may not do everything.
    """

    def __init__(
        self,
        rules: Sequence[AccessRule] | None = None,
        groups: Mapping[str, tuple[str, ...]] | None = None,
        allowed: Mapping[str, frozenset[str] | None] | None = None,
    ) -> None:
        self._of_issuers = issuer_rules(allowed or {})
        self.exists = rules is not None
        self.rules: Sequence[AccessRule] = (NO_TABLE,) if rules is None else tuple(rules)
        self.groups = dict(groups or {})
        self._index = KeyIndex(self.rules, lambda rule: rule.who.keys)
        self._keys = ClientKeys(self.groups, self._index.keys)

    def __str__(self) -> str:
        return self._text

    @cached_property
    def _text(self) -> str:
        """The tables in a line, to be compared."""
        if not self.exists:
            return "; ".join(map(str, self._of_issuers)) or "none"
        groups = [f"{name}={','.join(members)}" for name, members in self.groups.items()]
        return "; ".join([*map(str, self._of_issuers), *map(str, self.rules), *groups])

    def listed(self, settings: Mapping[str, Any]) -> tuple[AccessRule, ...]:
        """Return all rules of a listener with these settings, in order."""
        return (*self.first(settings), *self.rules)

    def first(self, settings: Mapping[str, Any]) -> tuple[AccessRule, ...]:
        """Return the rules of a listener with these settings that stand before the table's."""
        return (*self._of_issuers, *listener_rules(settings))

    def rules_about(
        self, first: Sequence[AccessRule], identity: Identity, protocol: str
    ) -> tuple[AccessRule, ...]:
        """Return those of ``first`` and of the table that are about a client.

        ``first`` are those of its listener, which has this protocol.
        """
        candidates = chain(first, self._index.candidates(self._keys.of(identity)))
        return tuple([one for one in candidates if self.is_about(one.who, identity, protocol)])

    def is_about(self, who: Who, identity: Identity, protocol: str) -> bool:
        """Return whether a client of a listener with this protocol is one of ``who``."""
        return who.includes(identity, protocol, self._keys.matchers)


class Decisions:
    """The decisions of the rules about one action for the identity ``name``: see ``Decider``.

    Up to ``cached`` decisions are kept. The patterns are compiled with the first one.
    """

    __slots__ = ("_cached", "_compiled", "_decided", "_name", "_rules", "open")

    def __init__(self, rules: Sequence[AccessRule], name: str, cached: int) -> None:
        self._rules = rules
        self._name = name
        self._compiled: list[tuple[AccessRule, Callable[[str], bool]]] | None = None
        self.open = bool(rules) and rules[0] is NO_TABLE
        self._decided: dict[str, AccessRule | None] = {}
        self._cached = cached

    def allows(self, topic: str) -> bool:
        """See ``Decider``."""
        if self.open:
            return True
        rule = self.rule(topic)
        return rule is not None and rule.allow

    def waives(self, topic: str) -> bool:
        """See ``Decider``."""
        rule = self.rule(topic)
        return rule is not None and rule.allow and rule.without_key

    def allows_some(self) -> bool:
        """See ``Decider``: not all that is denied by narrower patterns is taken into account."""
        for rule in self._rules:
            if rule.allow and any(self._name or NAME not in one for one in rule.topics):
                return True
            if not rule.allow and "*" in rule.topics and not rule.unless:
                return False
        return False

    def rule(self, topic: str) -> AccessRule | None:
        """Return the rule that decides; None if none matches, which denies."""
        try:
            return self._decided[topic]
        except KeyError:
            pass
        if len(self._decided) >= self._cached:
            self._decided.clear()
        found = self._decided[topic] = self._find(topic)
        return found

    def _find(self, topic: str) -> AccessRule | None:
        if self._compiled is None:
            self._compiled = [(rule, rule.matcher_for(self._name)) for rule in self._rules]
        return next((rule for rule, is_about in self._compiled if is_about(topic)), None)


def make_view(
    rules: Sequence[AccessRule],
    name: str,
    settings: Mapping[str, Any],
    has_table: bool,
    cached: int,
) -> View:
    """Return the actions that these rules allow an identity called ``name`` on a listener."""
    deciders = {
        action: Decisions([rule for rule in rules if action in rule.actions], name, cached)
        for action in ACTIONS
    }
    # Each of many identities may have a view, with room for one large combination.
    return View(deciders, settings["grant"], has_table, max(MAX_COMBINATION, _COMBINED * cached))


_IN_CLASS = re.compile(r"\[!?\]?[^\]]*%u")


def check_pattern(pattern: str) -> None:
    """Raise ValueError for a pattern in which NAME could not be inserted literally."""
    if _IN_CLASS.search(pattern):
        raise ValueError(f"{NAME} cannot stand in brackets, as in {pattern!r}")
