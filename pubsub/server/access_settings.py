"""The tables ``[[access]]`` and ``[groups]`` of the configuration file."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, Sequence
from ipaddress import ip_network
from typing import Any

from twisted.logger import Logger

from pubsub.broker.access_rules.access_table import (
    ACTIONS,
    EVERYTHING,
    AccessRule,
    AccessTable,
    Who,
    check_pattern,
)
from pubsub.broker.access_rules.client_keys import UNIX, Network
from pubsub.broker.credentials.identity import PROOFS
from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.broker.listeners.tls_settings import TLS
from pubsub.errors import ConfigurationError
from pubsub.plugin import ADMIN
from pubsub.server.file_tables import check_keys
from pubsub.server.http_listener import HTTP, find_entry, split
from pubsub.settings import read_all

ACCESS_KEYS = (
    "allow",
    "deny",
    "identity",
    "group",
    "network",
    "proof",
    "issuer",
    "listener",
    "topics",
    "without-key",
)
"""The keys of a table ``[[access]]``."""
# Settings of listeners that are translated into rules, and their defaults.
_DEPRECATED = {"allow-publish": EVERYTHING, "allow-subscribe": EVERYTHING, "grant": ()}
_ANONYMOUS = ("allow-anonymous", "tls-client", "tls-cert")
log = Logger()


def read_access(
    document: Mapping[str, Any],
    listeners: Collection[str],
    issuers: Mapping[str, frozenset[str] | None] | None = None,
) -> AccessTable:
    """Return the rules of the file; ``listeners`` are the names of all protocols.

    ``issuers`` has the actions that tokens may permit, by the id of the table of their secret.
    Raises ConfigurationError.
    """
    issuers = issuers or {}
    groups = _groups(document.get("groups", {}))
    if "access" not in document:
        return AccessTable(groups=groups, allowed=issuers)
    entries = document["access"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ConfigurationError("access: expected tables, [[access]]")
    rules = [
        _AccessEntry(f"[[access]] {number}", entry).rule(groups, listeners, issuers)
        for number, entry in enumerate(entries, 1)
    ]
    return AccessTable(rules, groups, issuers)


def report_deprecated(
    table: AccessTable, listeners: Iterable[tuple[str, Mapping[str, Any]]]
) -> None:
    """Log the settings of listeners that the rules replace, if there are rules.

    ``listeners`` has the protocol and the settings of each.
    """
    if not table.exists:
        return
    lines = {
        f'{protocol}: {name} = "{",".join(settings[name])}"'
        for protocol, settings in listeners
        for name, default in _DEPRECATED.items()
        if tuple(settings[name]) != default
    }
    for line in sorted(lines):
        log.warn(
            "{line} is deprecated beside [[access]], and applies before its rules; write rules "
            "with listener instead",
            line=line,
        )


def _groups(table: object) -> dict[str, tuple[str, ...]]:
    if not isinstance(table, dict):
        raise ConfigurationError("groups: expected a table, [groups]")
    try:
        return {name: _words(members, "patterns of identities") for name, members in table.items()}
    except ValueError as error:
        raise ConfigurationError(f"[groups] {error}") from None


class _AccessEntry:
    """One table ``[[access]]``, whose place in messages is ``where``."""

    def __init__(self, where: str, table: Mapping[str, Any]) -> None:
        self._where = where
        self._table = table
        check_keys(f"{where} ", table, ACCESS_KEYS)

    def rule(
        self, groups: Collection[str], listeners: Collection[str], issuers: Collection[str]
    ) -> AccessRule:
        """Return the rule; raises ConfigurationError."""
        table = self._table
        if ("allow" in table) == ("deny" in table):
            raise self._error("expected either allow or deny, a list of actions")
        verb = "allow" if "allow" in table else "deny"
        topics = self._list("topics", "topic patterns") or EVERYTHING
        for pattern in topics:
            try:
                check_pattern(pattern)
            except ValueError as error:
                raise self._error(f"topics: {error}") from None
        without_key = table.get("without-key", False)
        if not isinstance(without_key, bool) or (without_key and verb == "deny"):
            raise self._error("without-key: expected true or false, in a rule with allow")
        return AccessRule(
            self._where,
            verb == "allow",
            self._actions(verb),
            self._who(groups, listeners, issuers),
            topics,
            without_key=without_key,
        )

    def _actions(self, verb: str) -> frozenset[str]:
        given = self._list(verb, "actions")
        if given == EVERYTHING:
            return frozenset(ACTIONS)
        self._check_words(verb, given, ACTIONS)
        return frozenset(given)

    def _who(
        self, groups: Collection[str], listeners: Collection[str], issuers: Collection[str]
    ) -> Who:
        named = self._list("group", "groups")
        self._check_words("group", named, sorted(groups))
        proofs = self._list("proof", "proofs")
        self._check_words("proof", proofs, PROOFS)
        served = self._list("listener", "protocols")
        # The HTTP API has two names in the file: that of its table, and that of its listener.
        http = [HTTP] if ADMIN.name in listeners else []
        self._check_words("listener", served, sorted([*listeners, *http]))
        served = tuple([ADMIN.name if name == HTTP else name for name in served])
        networks = tuple(self._network(text) for text in self._list("network", "networks"))
        given = self._list("issuer", "ids of [keys]")
        self._check_words("issuer", given, sorted(issuers), "keys")
        return Who(self._list("identity", "patterns"), named, networks, proofs, served, given)

    def _network(self, text: str) -> Network | str:
        if text == UNIX:
            return UNIX
        try:
            return ip_network(text)
        except ValueError as error:
            message = f"network: expected {UNIX} or a network such as 192.0.2.0/24: {error}"
            raise self._error(message) from None

    def _list(self, key: str, what: str) -> tuple[str, ...]:
        """Return the words of a key; an empty list would be ambiguous."""
        if key not in self._table:
            return ()
        try:
            found = _words(self._table[key], what)
        except ValueError as error:
            raise self._error(f"{key}: {error}") from None
        if not found:
            raise self._error(f"{key}: expected {what}, or no such key")
        return found

    def _check_words(
        self, key: str, given: Collection[str], known: Collection[str], table: str = "groups"
    ) -> None:
        for word in given:
            if word not in known:
                expected = ", ".join(known) or f"none, as [{table}] has none"
                raise self._error(f"{key}: expected {expected}; not {word!r}")

    def _error(self, message: str) -> ConfigurationError:
        return ConfigurationError(f"{self._where} {message}")


def _words(value: object, what: str) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ValueError(f"expected {what}, as text or a list, not {value!r}")
    return tuple(word.strip() for word in words if word.strip())


def listeners_of(
    document: Mapping[str, Any], protocols: Sequence[str]
) -> dict[str, Mapping[str, Any]]:
    """Return the settings about access of each listener of the file, by a name for it.

    ``protocols`` are the names of all protocols. The keys of the file have been checked. No other
    value is read, and no file that it names: a listener with a certificate has an empty text for
    it. Raises ConfigurationError.
    """
    names = (*_DEPRECATED, *_ANONYMOUS)
    wanted = [setting for setting in LISTENER_SETTINGS if setting.name in names]
    listed, http = split(document.get("listen", []) or [{"protocol": name} for name in protocols])
    own, admin_port = document.get(ADMIN.name, {}), str(document.get("admin-port", ""))
    admin, _ = find_entry(admin_port, False, own, http, False)
    found: dict[str, Mapping[str, Any]] = {}
    for entry in (*listed, admin or {"protocol": ADMIN.name}):
        protocol = str(entry.get("protocol"))
        where = entry.get("endpoint", entry.get("port", ""))
        given = ChainMap(dict(entry), document.get(protocol, {}), dict(document))
        try:
            settings = read_all(wanted, given)
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        tls = "" if settings["tls-cert"] else None
        found[f"{protocol} {where}".strip()] = {**settings, TLS: tls}
    return found
