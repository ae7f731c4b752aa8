"""The settings of the whole broker: their names, parsers, defaults and help texts."""

from __future__ import annotations

from pubsub.broker.topic_space.durability import DURABILITY
from pubsub.server.backplane_settings import SETTINGS as BACKPLANE_SETTINGS
from pubsub.server.log_levels import LOG_LEVEL
from pubsub.server.log_lines import FORMATS
from pubsub.server.log_lines import TEXT as TEXT_LINES
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
)
from pubsub.store.history_location import STORE
from pubsub.store.upkeep.retention_limits import RETENTION

_HISTORY_BYTES = 256 * 1024**2
_LONGEST_NAME = 100


def _history(value: object) -> tuple[int, int]:
    parts = value.split(",") if isinstance(value, str) else value
    if isinstance(parts, int):
        parts = [parts]
    if not isinstance(parts, list) or not 1 <= len(parts) <= 2:
        raise ValueError(f"expected MESSAGES or MESSAGES,BYTES, not {value!r}")
    messages: int = COUNT.parse(parts[0])
    return messages, parse_size(parts[1]) if len(parts) == 2 else _HISTORY_BYTES


def _name(value: object) -> str:
    name: str = TEXT.parse(value)
    if len(name) > _LONGEST_NAME or not name.isprintable() or name != name.strip():
        raise ValueError(
            f"expected a name of at most {_LONGEST_NAME} printable characters, not {value!r}"
        )
    return name


BROKER_SETTINGS: tuple[Setting, ...] = (
    Setting(
        "name",
        Kind("NAME", _name),
        "",
        "name of the broker in its log, status, metrics and dashboard; default: the host name",
    ),
    Setting(
        "interface", TEXT, "127.0.0.1", "address to listen on for listeners with a port number"
    ),
    Setting(
        "history",
        Kind("MESSAGES[,BYTES]", _history),
        "1000000,256M",
        "messages and bytes kept with --store memory; 0: none",
    ),
    Setting(
        "store",
        STORE,
        "log",
        "where the history is: in a directory, or in memory until the broker ends",
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
        "limits of the stored messages; the first matching pattern applies; topics without one "
        "have no limit",
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
        "compression of complete segments of the history, in the background",
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
        "a file with the ids (jti) and subjects of revoked tokens",
    ),
    Setting("allow-weak-secret", BOOLEAN, False, "accept secrets of fewer than 32 bytes"),
    Setting(
        "password-file",
        FILE,
        "",
        "a file with users and the hashes of their passwords, written by `pubsub passwd`",
    ),
    Setting("audit-log", TEXT, "", "a file for the audit log; default: the log"),
    Setting("audit-size", SIZE, "16M", "largest size of a file of the audit log"),
    Setting("events", BOOLEAN, False, "publish events about clients on the topic $SYS/events"),
    Setting("otel", BOOLEAN, False, "export spans of publishes and commits (OpenTelemetry)"),
    *BACKPLANE_SETTINGS,
    Setting("max-topics", COUNT, 100_000, "largest number of topics"),
    Setting(
        "topic-expiry",
        SECONDS,
        0,
        "seconds after which an unused topic without messages and without a queue key ends; "
        "0: never",
    ),
    Setting(
        "identity-expiry",
        SECONDS,
        0,
        "seconds without a request after which an identity of nsd ends if its channel has no "
        "message; 0: never",
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
        "levels of the log, for all modules or by module, such as store=debug,warn",
    ),
    Setting("stop-timeout", SECONDS, 10, "seconds that a stopping broker waits for its clients"),
    Setting("tuning", BOOLEAN, True, "use the tricks of docs/tuning.md; off: only slower"),
)
"""The settings of the whole process."""
