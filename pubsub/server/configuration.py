"""The broker's configuration, merged from the command line and the file.

The file is TOML. Its top level has the settings of the whole broker and the defaults of all
listeners. A table named after a protocol has the defaults for that protocol's listeners. Each
``[[listen]]`` is one listener:

    history = "100000,64M"
    slow-consumer = "drop"

    [nsd]
    max-body = 4000

    [[listen]]
    protocol = "cafe"
    endpoint = "tcp:7070:interface=192.0.2.1"
    udp = true

The command line has precedence over the file; a more specific table has precedence over a more
general one.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.endpoints import quoteStringArgument

from pubsub.broker.access_rules.access_table import AccessTable
from pubsub.broker.credentials.master_secrets import DenyList, KeySource, MasterSecret, SecretRing
from pubsub.broker.credentials.password_file import read_password_file
from pubsub.broker.credentials.secret_files import read_denied
from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.broker.listeners.tls_settings import TLS
from pubsub.errors import ConfigurationError
from pubsub.plugin import ADMIN, IWireProtocol
from pubsub.server.access_settings import read_access
from pubsub.server.backplane_settings import check_backplane
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.server.certificates import read_tls
from pubsub.server.file_tables import check_keys
from pubsub.server.http_listener import HTTP, find_entry, split
from pubsub.server.secret_settings import issuer_actions, read_key_sources, read_secrets
from pubsub.settings import (
    Setting,
    read_all,
)

# Not a key of the file: marks listeners that exist because none is configured.
_IMPLIED = ""


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One listener: its protocol, its endpoint string and all its settings.

    ``implied`` is True if it is not configured explicitly; it is then omitted if it cannot be
    served.
    """

    protocol: IWireProtocol
    endpoint: str
    settings: Mapping[str, Any]
    implied: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration of a broker.

    ``redacted`` has the patterns of every protocol, whether it is served or not (see
    ``IWireProtocol``). ``passwords`` has the hash of each user; None without a password file.
    ``access`` has the tables ``[[access]]`` and ``[groups]``.
    ``denied`` has the tokens that are not accepted any more, ``key_sources`` the sets of public
    keys that are fetched.
    """

    broker: Mapping[str, Any]
    listeners: Sequence[ListenerConfig]
    secrets: Sequence[MasterSecret] = ()
    admin: ListenerConfig | None = None
    redacted: Sequence[bytes] = ()
    passwords: Mapping[str, str] | None = None
    access: AccessTable = field(default_factory=AccessTable)
    denied: DenyList = field(default_factory=DenyList)
    key_sources: Sequence[KeySource] = ()

    @property
    def ring(self) -> SecretRing:
        """The secrets for tokens, without the keys that have to be fetched."""
        return SecretRing(self.secrets, self.denied, self.key_sources)


@dataclass(frozen=True, slots=True)
class CommandLine:
    """The command line, unparsed: ``settings`` by option name, ``listeners`` in order."""

    settings: Mapping[str, object] = field(default_factory=dict)
    listeners: Sequence[tuple[str, str | None]] = ()


def flag(protocol: IWireProtocol, setting: Setting) -> str:
    """Return the command-line option of a protocol's own setting."""
    return setting.flag or f"{protocol.name}-{setting.name}"


def merge(
    protocols: Mapping[str, IWireProtocol],
    line: CommandLine,
    document: Mapping[str, Any],
    issuers: Iterable[str] = (),
) -> Config:
    """Return the configuration merged from ``line`` and the file's ``document``.

    ``issuers`` are ids of secrets that are added to those of the document.
    Raises ConfigurationError for unknown keys or protocols and for invalid values.
    """
    check_document(protocols, document)
    try:
        broker = read_all(BROKER_SETTINGS, ChainMap(dict(line.settings), dict(document)))
        secrets = read_secrets(broker, document.get("keys", {}))
        sources = read_key_sources(document.get("keys", {}))
        given, http = split(_entries(protocols, line, document))
        deny_file = broker["token-deny-file"]
        denied = read_denied(deny_file) if deny_file else DenyList()
        listeners = [
            _listener(protocols, line, document, entry, broker["interface"]) for entry in given
        ]
        admin = _admin(line, document, broker, listeners, http)
        check_backplane(broker, [one.settings for one in listeners])
        allowed = {**dict.fromkeys(issuers), **issuer_actions(document.get("keys", {}))}
        access = read_access(document, (*protocols, ADMIN.name), allowed)
        passwords = read_password_file(path) if (path := broker["password-file"]) else None
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    redacted = [pattern for protocol in protocols.values() for pattern in protocol.redacted]
    return Config(broker, listeners, secrets, admin, redacted, passwords, access, denied, sources)


def _entries(
    protocols: Mapping[str, IWireProtocol], line: CommandLine, document: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """Return the listeners as tables: from the line, else the file, else one per protocol."""
    if line.listeners:
        return [
            {"protocol": name} if where is None else {"protocol": name, "port": where}
            for name, where in line.listeners
        ]
    listed: list[Mapping[str, Any]] = document.get("listen", [])
    return listed or [{"protocol": name, _IMPLIED: True} for name in protocols]


def _admin(
    line: CommandLine,
    document: Mapping[str, Any],
    broker: Mapping[str, Any],
    listeners: Sequence[ListenerConfig],
    http: Sequence[Mapping[str, Any]],
) -> ListenerConfig | None:
    """Return the HTTP API's listener, with the settings of the table [admin], or None."""
    implied = all(listener.implied for listener in listeners)
    on_line = "admin-port" in line.settings
    table = document.get(ADMIN.name, {})
    entry, implied = find_entry(broker["admin-port"], on_line, table, http, implied)
    if entry is None:
        return None
    entry[_IMPLIED] = implied
    return _listener({ADMIN.name: ADMIN}, line, document, entry, broker["interface"])


def _listener(
    protocols: Mapping[str, IWireProtocol],
    line: CommandLine,
    document: Mapping[str, Any],
    entry: Mapping[str, Any],
    interface: str,
) -> ListenerConfig:
    protocol = _protocol(protocols, entry.get("protocol"))
    own = {s.name: line.settings[flag(protocol, s)] for s in protocol.settings
           if flag(protocol, s) in line.settings}  # fmt: skip
    table = document.get(protocol.name, {})
    given = ChainMap(own, dict(line.settings), dict(entry), table, dict(document))
    # A protocol's own settings are not read from the top level or from common options.
    values = read_all(LISTENER_SETTINGS, given)
    values |= read_all(protocol.settings, ChainMap(own, dict(entry), table))
    if "port" in entry and "endpoint" in entry:
        raise ConfigurationError(
            f"listen {protocol.name}: port and endpoint are given; give one of them"
        )
    where = entry.get("endpoint", entry.get("port", protocol.port))
    endpoint = endpoint_string(where, interface)
    values[TLS] = read_tls(protocol.name, endpoint, values)
    return ListenerConfig(protocol, endpoint, values, entry.get(_IMPLIED, False))


def _protocol(protocols: Mapping[str, IWireProtocol], name: object) -> IWireProtocol:
    if not isinstance(name, str) or name not in protocols:
        installed = ", ".join(protocols) or "none"
        if name is None:
            raise ConfigurationError(f"listen: protocol is missing; installed: {installed}")
        raise ConfigurationError(f"protocol {name!r} is not installed; installed: {installed}")
    return protocols[name]


def endpoint_string(where: object, interface: str) -> str:
    """Return ``where`` if it is an endpoint string, else one for its port at ``interface``."""
    text = str(where)
    if not text.isdecimal():
        if isinstance(where, str) and ":" in where:
            return where
        raise ConfigurationError(f"port: expected a number or an endpoint string, not {where!r}")
    if int(text) > 65535:
        raise ConfigurationError(f"port: expected a number from 0 to 65535, not {text}")
    kind = "tcp6" if ":" in interface else "tcp"
    return f"{kind}:{text}:interface={quoteStringArgument(interface)}"


def check_document(protocols: Mapping[str, IWireProtocol], document: Mapping[str, Any]) -> None:
    """Check that every key of the file is a setting in its place; raises ConfigurationError."""
    common = {s.name for s in LISTENER_SETTINGS}
    tables = {"listen", "keys", "access", "groups", ADMIN.name} | protocols.keys()
    top = common | {s.name for s in BROKER_SETTINGS} | tables
    own = {p.name: {s.name for s in p.settings} for p in (*protocols.values(), ADMIN)}
    places = _places_of(own)
    check_keys("", document, top, tables, places)
    own[ADMIN.name] |= {"port", "endpoint"}
    for name in own:
        table = document.get(name, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"{name}: expected a table, [{name}]")
        check_keys(f"[{name}] ", table, common | own[name], places=places)
    listed = document.get("listen", [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ConfigurationError("listen: expected tables, [[listen]]")
    for entry in listed:
        protocol = _protocol({**protocols, HTTP: ADMIN}, entry.get("protocol"))
        keys = common | own[protocol.name] | {"protocol", "port", "endpoint"}
        check_keys("[[listen]] ", entry, keys, places=places)


def _places_of(own: Mapping[str, Collection[str]]) -> dict[str, str]:
    """Return the place of each setting that not every table has; ``own`` are those of a table."""
    tables: dict[str, list[str]] = {}
    for name in sorted(own):
        for setting in own[name]:
            tables.setdefault(setting, []).append(f"[{name}]")
    places = {setting: ", ".join(names) for setting, names in tables.items()}
    places |= {setting.name: "the top level" for setting in BROKER_SETTINGS}
    return places | dict.fromkeys(["protocol", "port", "endpoint"], "[[listen]]")
