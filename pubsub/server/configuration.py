"""The broker's configuration: what the command line and the file say together.

The file is TOML. Its top level holds the settings of the whole broker and the defaults of every
listener; a table named after a protocol holds defaults for that protocol's listeners; each
``[[listen]]`` is one listener:

    history = "100000,64M"
    slow-consumer = "drop"

    [nsd]
    max-body = 4000

    [[listen]]
    protocol = "cafe"
    endpoint = "tcp:7070:interface=192.0.2.1"
    udp = true

What the command line says wins over all of it; the nearer table wins over the farther.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from twisted.internet.endpoints import quoteStringArgument

from pubsub.broker.durability import DURABILITY
from pubsub.broker.listener import SETTINGS as LISTENER_SETTINGS
from pubsub.broker.master_secrets import Secret
from pubsub.errors import ConfigurationError
from pubsub.plugin import ADMIN, IWireProtocol
from pubsub.server.file_tables import check_keys
from pubsub.server.secret_settings import read_secrets
from pubsub.settings import (
    BOOLEAN,
    COUNT,
    SECONDS,
    SIZE,
    TEXT,
    Kind,
    Setting,
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
# No key of a file: marks the listeners that are there because none was asked for.
_IMPLIED = ""

BROKER_SETTINGS: tuple[Setting, ...] = (
    Setting("interface", TEXT, "127.0.0.1", "address of the listeners given as a port number"),
    Setting(
        "history",
        Kind("MESSAGES[,BYTES]", _history),
        "1000000,256M",
        "how much of the past --store memory keeps; 0 keeps nothing",
    ),
    Setting(
        "store",
        STORE,
        "sqlite",
        "where the history is: in a file that outlives the broker, or in memory",
    ),
    Setting(
        "durability",
        DURABILITY,
        "",
        "what topics' messages are worth: not stored, stored (default), or stored before they "
        "are acknowledged; the first pattern that matches holds",
    ),
    Setting(
        "retention",
        RETENTION,
        "*=age:7d,bytes:10G",
        "what is kept in the file; the first pattern that matches a topic holds",
    ),
    Setting(
        "commit-interval", number(0, 10), 0.005, "seconds a message waits for others to be stored"
    ),
    Setting("commit-bytes", SIZE, "1M", "bytes of messages that do not wait any longer"),
    Setting(
        "admin-port",
        Kind("PORT|ENDPOINT|none", str),
        "",
        "where the HTTP API is served: a port number, an endpoint string or none; 7080 by default "
        "if no listener is asked for, else none",
    ),
    Setting("max-memory", SIZE, "1G", "memory for clients and history, in bytes; 0: no bound"),
    Setting(
        "memory-seconds",
        SECONDS,
        30,
        "how long publishers wait at that bound before the largest holder is disconnected",
    ),
    Setting("secret-file", TEXT, "", "a file that holds the master secret of tokens"),
    Setting("allow-weak-secret", BOOLEAN, False, "take secrets of fewer than 32 bytes"),
    Setting("audit-log", TEXT, "", "a file for the audit log; else it goes to the log"),
    Setting("audit-size", SIZE, "16M", "bytes after which a new audit log is begun"),
    Setting("events", BOOLEAN, False, "tell what happens to clients on the topic $SYS/events"),
    Setting("max-topics", COUNT, 100_000, "topics there may be"),
    Setting("max-sessions", COUNT, 100_000, "sessions there may be, live and resumable"),
    Setting("resume-window", SECONDS, 60, "seconds a broken session can be resumed for; 0: none"),
    Setting("stop-timeout", SECONDS, 10, "seconds a stopping broker waits for its clients"),
)
"""The settings of the process as a whole."""


@dataclass(frozen=True, slots=True)
class ListenerConfig:
    """One listener: what it speaks, the endpoint string it listens on, all its settings.

    ``implied`` if nobody asked for it by name: one that cannot be served is then left out.
    """

    protocol: IWireProtocol
    endpoint: str
    settings: Mapping[str, Any]
    implied: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """Everything a broker is started with."""

    broker: Mapping[str, Any]
    listeners: Sequence[ListenerConfig]
    secrets: Sequence[Secret] = ()
    admin: ListenerConfig | None = None
    redacted: Sequence[bytes] = ()
    """See ``IWireProtocol``: the patterns of every protocol, whether it is served or not."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What the command line said, unparsed: ``settings`` by option name, listeners in order."""

    settings: Mapping[str, object] = field(default_factory=dict)
    listeners: Sequence[tuple[str, str | None]] = ()


def flag(protocol: IWireProtocol, setting: Setting) -> str:
    """The command-line option of a protocol's own setting."""
    return setting.flag or f"{protocol.name}-{setting.name}"


def merge(
    protocols: Mapping[str, IWireProtocol], line: CommandLine, document: Mapping[str, Any]
) -> Config:
    """The configuration that ``line`` and the file's ``document`` make together.

    Raises ConfigurationError for unknown keys and protocols and for values that do not parse.
    """
    _check_keys(protocols, document)
    try:
        broker = read_all(BROKER_SETTINGS, ChainMap(dict(line.settings), dict(document)))
        secrets = read_secrets(broker, document.get("keys", {}))
        listeners = [
            _listener(protocols, line, document, entry, broker["interface"])
            for entry in _entries(protocols, line, document)
        ]
        admin = _admin(line, document, broker, listeners)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    redacted = [pattern for protocol in protocols.values() for pattern in protocol.redacted]
    return Config(broker, listeners, secrets, admin, redacted)


def _entries(
    protocols: Mapping[str, IWireProtocol], line: CommandLine, document: Mapping[str, Any]
) -> list[Mapping[str, Any]]:
    """The listeners, as tables of the file: from the line, else from the file, else one each."""
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
) -> ListenerConfig | None:
    """The HTTP API's listener, if there is one; its settings are those of the table [admin]."""
    where = broker["admin-port"]
    implied = not where and all(listener.implied for listener in listeners)
    if where == "none" or not (where or implied):
        return None
    entry = {"protocol": ADMIN.name, "port": where or ADMIN.port, _IMPLIED: implied}
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
    # A protocol's own settings are never read from the top level or the line's common options.
    values = read_all(LISTENER_SETTINGS, given)
    values |= read_all(protocol.settings, ChainMap(own, dict(entry), table))
    if "port" in entry and "endpoint" in entry:
        raise ConfigurationError(f"listen {protocol.name}: give port or endpoint, not both")
    where = entry.get("endpoint", entry.get("port", protocol.port))
    return ListenerConfig(
        protocol, endpoint_string(where, interface), values, entry.get(_IMPLIED, False)
    )


def _protocol(protocols: Mapping[str, IWireProtocol], name: object) -> IWireProtocol:
    if not isinstance(name, str) or name not in protocols:
        raise ConfigurationError(
            f"no protocol {name!r} is installed; there are {', '.join(protocols) or 'none'}"
        )
    return protocols[name]


def endpoint_string(where: object, interface: str) -> str:
    """An endpoint string from one, or from a port number to listen on at ``interface``."""
    text = str(where)
    if not text.isdecimal():
        if isinstance(where, str) and ":" in where:
            return where
        raise ConfigurationError(f"a port is a number or an endpoint string, not {where!r}")
    if int(text) > 65535:
        raise ConfigurationError(f"a port is a number from 0 to 65535, not {text}")
    kind = "tcp6" if ":" in interface else "tcp"
    return f"{kind}:{text}:interface={quoteStringArgument(interface)}"


def _check_keys(protocols: Mapping[str, IWireProtocol], document: Mapping[str, Any]) -> None:
    """Every key of the file is a setting in the right place; raises ConfigurationError."""
    common = {s.name for s in LISTENER_SETTINGS}
    top = common | {s.name for s in BROKER_SETTINGS} | {"listen", "keys"} | protocols.keys()
    check_keys("", document, top | {ADMIN.name})
    own = {p.name: {s.name for s in p.settings} for p in (*protocols.values(), ADMIN)}
    for name in own:
        table = document.get(name, {})
        if not isinstance(table, dict):
            raise ConfigurationError(f"{name}: expected a table, [{name}]")
        check_keys(f"[{name}] ", table, common | own[name])
    listed = document.get("listen", [])
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed):
        raise ConfigurationError("listen: expected tables, [[listen]]")
    for entry in listed:
        _protocol(protocols, entry.get("protocol"))
        keys = common | own[entry["protocol"]] | {"protocol", "port", "endpoint"}
        check_keys("[[listen]] ", entry, keys)
