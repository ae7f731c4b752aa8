"""The access rules of one listener, by the identity of the client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Container, Mapping
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

from pubsub.broker.access_rules.access import AccessRules, View
from pubsub.broker.access_rules.access_table import AccessRule, AccessTable, make_view
from pubsub.broker.credentials.identity import Identity

# Rules of identities that are kept although no connection has them, for the next request of the
# same client.
_KEPT = 256
# Views that are shared, and decisions that each remembers for an action: of those that many
# identities share, and of those that belong to one.
_VIEWS = 512
_SHARED, _PERSONAL = 10_000, 64
_NOTHING: Mapping[str, Any] = {"grant": ()}


class ListenerAccess:
    """Finds the rules for an identity; all connections with one identity share them.

    ``admits`` returns whether an anonymous client at an address may do anything. ``closed`` and
    ``exclusive`` are those of ``AccessRules``. ``version`` changes when the rules
    do.
    """

    def __init__(
        self,
        protocol: str,
        settings: Mapping[str, Any],
        table: AccessTable,
        admits: Callable[[str], bool] = lambda host: True,
    ) -> None:
        self.version = 0
        self._protocol = protocol
        self._settings = settings
        self._table = table
        self._admits = admits
        self._first = table.first(settings)
        self._closed: Collection[str] = ()
        self._exclusive: Container[str] = ()
        # Those in use. Rules that a connection has are here, so that a change reaches them.
        self._rules: WeakValueDictionary[Identity, AccessRules] = WeakValueDictionary()
        self._kept: deque[AccessRules] = deque(maxlen=_KEPT)
        # By the rules about an identity, and its name if it matters.
        self._views: dict[tuple[tuple[int, ...], str], View] = {}

    def close(self, closed: Collection[str], exclusive: Container[str]) -> None:
        """Topics in ``closed`` need a queue key, and those in ``exclusive`` cannot be read.

        Holds for the rules of identities that are requested from now on.
        """
        self._closed, self._exclusive = closed, exclusive
        self._rules.clear()

    @property
    def has_table(self) -> bool:
        """True if the rules come from a table, not only from the listener's settings."""
        return self._table.exists

    def rules_for(self, identity: Identity) -> AccessRules:
        """Return the rights of a client with ``identity``: the same object while it is in use."""
        rules = self._rules.get(identity)
        if rules is None:
            view_of = partial(self._find_view, identity)
            rules = self._rules[identity] = AccessRules(view_of, self._closed, self._exclusive)
            self._kept.append(rules)
        return rules

    def replace(self, settings: Mapping[str, Any], table: AccessTable | None) -> None:
        """Apply new settings, and a new table unless None, to rules in use as well."""
        self._settings, self._table = settings, table or self._table
        self._first = self._table.first(settings)
        self._views.clear()
        self.version += 1
        for rules in tuple(self._rules.values()):
            rules.changed()

    def _find_view(self, identity: Identity) -> View:
        if identity.is_anonymous and not self._admits(identity.host):
            # No rule: that denies everything.
            return make_view((), "", _NOTHING, True, 0)
        rules = self._table.rules_about(self._first, identity, self._protocol)
        is_personal = any(rule.is_personal for rule in rules)
        name = identity.name if is_personal else ""
        key = (tuple(map(id, rules)), name)
        view = self._views.get(key)
        if view is None:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            view = self._views[key] = self._make_view(rules, name, is_personal)
        return view

    def _make_view(self, rules: tuple[AccessRule, ...], name: str, is_personal: bool) -> View:
        cached = _PERSONAL if is_personal else _SHARED
        return make_view(rules, name, self._settings, self._table.exists, cached)
