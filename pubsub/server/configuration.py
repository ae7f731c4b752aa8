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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.endpoints import quoteStringArgument

from pubsub.broker.access_table import AccessTable
from pubsub.broker.durability import DURABILITY
from pubsub.broker.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.broker.master_secrets import DenyList, KeySource, Secret, SecretRing, read_denied
from pubsub.broker.password_file import read_password_file
from pubsub.broker.tls_settings import TLS
from pubsub.errors import ConfigurationError
from pubsub.plugin import ADMIN, IWireProtocol
from pubsub.server.access_settings import read_access
from pubsub.server.backplane_settings import SETTINGS as BACKPLANE_SETTINGS
from pubsub.server.backplane_settings import check_backplane
from pubsub.server.certificates import read_tls
from pubsub.server.file_tables import check_keys
from pubsub.server.http_listener import HTTP, find_entry, split
from pubsub.server.log_levels import LOG_LEVEL
from pubsub.server.log_lines import FORMATS
from pubsub.server.log_lines import TEXT as TEXT_LINES
from pubsub.server.secret_settings import issuer_actions, read_key_sources, read_secrets
from pubsub.settings import (
    BOOLEAN,
    COUNT,
    FILE,
    SECONDS,
    SIZE,
    TEXT,
    Kind,
    Setting,
    choice,
    number,
    parse_size,
    read_all,
)
from pubsub.store.location import STORE
from pubsub.store.retention import RETENTION


def _history(value: object) -> tuple[int, int]:
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, int):
        parts = [parts]
    if not isinstance(parts, list) or not 1 <= len(parts) <= 2:
        raise ValueError(f"expected MESSAGES or MESSAGES,BYTES, not {value!r}")
    messages: int = COUNT.parse(parts[0])
    return messages, parse_size(parts[1]) if len(parts) == 2 else _HISTORY_BYTES


_HISTORY_BYTES = 256 * 1024**2
# Not a key of the file: marks listeners that exist because none is configured.
_IMPLIED = ""

BROKER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "interface", TEXT, "127.0.0.1", "address to listen on for listeners with a port number"
    ),
    Setting(
        "history",
        Kind("MESSAGES[,BYTES]", _history),
        "1000000,256M",
        "messages and bytes that --store memory keeps; 0: none",
    ),
    Setting(
        "store",
        STORE,
        "log",
        "the history: in a directory that outlives the broker, or in memory",
    ),
    Setting(
        "durability",
        DURABILITY,
        "",
        "durability of topics: not stored, stored (default), or stored before the "
        "acknowledgment; the first matching pattern applies",
    ),
    Setting(
        "retention",
        RETENTION,
        "*=age:7d,bytes:10G",
        "how long messages are kept in the file; the first matching pattern applies",
    ),
    Setting(
        "commit-interval",
        number(0, 10),
        0.005,
        "seconds that a message waits for others before the commit",
    ),
    Setting("commit-bytes", SIZE, "1M", "bytes of messages that are committed without waiting"),
    Setting(
        "compression",
        choice("off", "zstd"),
        "off",
        "compression of segments of the history that get no more messages, in the background",
    ),
    Setting(
        "admin-port",
        Kind("PORT|ENDPOINT|none", str),
        "",
        "port or endpoint of the HTTP API, or none; by default 7080 if no listener is "
        "configured, else none",
    ),
    Setting(
        "max-memory",
        SIZE,
        "1G",
        "memory of clients and history together, in bytes; 0: no bound",
    ),
    Setting(
        "memory-seconds",
        SECONDS,
        30,
        "seconds at the memory bound after which the largest holder is disconnected",
    ),
    Setting("secret-file", FILE, "", "a file with the master secret of tokens"),
    Setting(
        "token-deny-file",
        FILE,
        "",
        "a file with the ids (jti) and subjects of tokens that are not accepted any more",
    ),
    Setting("allow-weak-secret", BOOLEAN, False, "accept secrets of fewer than 32 bytes"),
    Setting(
        "password-file",
        FILE,
        "",
        "a file with users and the hashes of their passwords, written by `pubsub passwd`",
    ),
    Setting("audit-log", TEXT, "", "a file for the audit log; default: the log"),
    Setting("audit-size", SIZE, "16M", "bytes after which a new file of the audit log is begun"),
    Setting("events", BOOLEAN, False, "publish events about clients on the topic $SYS/events"),
    Setting("otel", BOOLEAN, False, "export spans of publishes and commits (OpenTelemetry)"),
    *BACKPLANE_SETTINGS,
    Setting("max-topics", COUNT, 100_000, "largest number of topics"),
    Setting(
        "topic-expiry",
        SECONDS,
        0,
        "seconds after which a topic ends that nobody uses and that holds no message and no "
        "queue key; 0: never",
    ),
    Setting(
        "identity-expiry",
        SECONDS,
        0,
        "seconds after which an identity of nsd ends that no request names and whose channel "
        "holds no message; 0: never",
    ),
    Setting("max-sessions", COUNT, 100_000, "largest number of sessions, live and resumable"),
    Setting(
        "resume-window", SECONDS, 60, "seconds in which a lost session can be resumed; 0: never"
    ),
    Setting("log-format", choice(*FORMATS), TEXT_LINES, "lines of the log: text, or JSON objects"),
    Setting(
        "log-level",
        LOG_LEVEL,
        "info",
        "levels of the log, of all of it or by namespace, such as store=debug,warn",
    ),
    Setting("stop-timeout", SECONDS, 10, "seconds that a stopping broker waits for its clients"),
    Setting("tuning", BOOLEAN, True, "use the tricks of docs/tuning.md; off: slower, nothing else"),
)
"""The settings of the whole process."""


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
    secrets: Sequence[Secret] = ()
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
    _check_keys(protocols, document)
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


def _check_keys(protocols: Mapping[str, IWireProtocol], document: Mapping[str, Any]) -> None:
    """Check that every key of the file is a setting in its place; raises ConfigurationError."""
    common = {s.name for s in LISTENER_SETTINGS}
    tables = {"listen", "keys", "access", "groups", ADMIN.name} | protocols.keys()
    top = common | {s.name for s in BROKER_SETTINGS} | tables
    check_keys("", document, top)
    own = {p.name: {s.name for s in p.settings} for p in (*protocols.values(), ADMIN)}
    own[ADMIN.name] |= {"port", "endpoint"}
    for name in own:
        table = document.get(name, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"{name}: expected a table, [{name}]")
        check_keys(f"[{name}] ", table, common | own[name])
    listed = document.get("listen", [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ConfigurationError("listen: expected tables, [[listen]]")
    for entry in listed:
        protocol = _protocol({**protocols, HTTP: ADMIN}, entry.get("protocol"))
        keys = common | own[protocol.name] | {"protocol", "port", "endpoint"}
        check_keys("[[listen]] ", entry, keys)
