"""The text of ``twistd pubsub --help``: the options in groups, and examples, in 80 columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatch

from click import HelpFormatter

from pubsub.broker.listeners.listener_settings import SETTINGS as LISTENER_SETTINGS
from pubsub.plugin import ADMIN, IWireProtocol
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.server.configuration import flag
from pubsub.settings import BOOLEAN, Setting

WIDTH = 80
_COLUMN = 28
_ABOUT = """
Each option is also a key of the file that --config names, where listeners can
have settings of their own; here settings apply to all of them. Patterns are
those of the shell; sizes are such as 64K and 8M. Options of twistd itself, such
as --logfile, are given before the word pubsub (twistd --help).
"""
_BROKER, _LISTENERS = "Broker", "Listeners"
_HISTORY, _SECURITY, _LIMITS, _LOG = "History", "Security", "Limits", "Log"
_TITLES = (_BROKER, _LISTENERS, _HISTORY, _SECURITY, _LIMITS, _LOG)
# The groups of settings by patterns of their names, the first that matches.
_GROUPS: Sequence[tuple[str, Sequence[str]]] = (
    (_LISTENERS, ("interface", "admin-port")),
    (_HISTORY, ("history", "store", "durability", "retention", "commit-*", "compression")),
    (_SECURITY, ("*allow-*", "grant", "audit-*", "secret-*", "password-*", "token*", "tls-*")),
    (_LIMITS, ("max-*", "*rate-*", "*-seconds", "*-expiry", "*-window", "slow-*", "idle-*")),
    (_LOG, ("log-*", "events")),
)
# Options that are not settings.
_OTHERS = {
    _BROKER: [
        ("--config FILE", "a TOML file with any of these settings; options have precedence"),
        ("--version", "print the version and exit"),
        ("--help", "print this help and exit"),
    ],
    _LISTENERS: [
        ("--proto NAME", "a protocol to serve; may be repeated; default: all of them"),
        ("--port PORT|ENDPOINT", "where to listen; one for each --proto, in order"),
        ("--listen NAME=ENDPOINT", "a protocol and where to listen; may be repeated"),
    ],
}
EXAMPLES: Sequence[tuple[str, str]] = (
    ("twistd -n pubsub", "every protocol on loopback, with a history that is kept"),
    ("twistd -n pubsub --proto=cafe --port=7070 --udp", "one protocol, over UDP too"),
    (
        "twistd -n pubsub --listen cafe=tcp:7070:interface=127.0.0.1 "
        "--listen nsd=unix:/run/pubsub/nsd --admin-port 7080",
        "two listeners, of which one is a UNIX socket, and the HTTP API",
    ),
    (
        "twistd -n pubsub --store log:/var/lib/pubsub --retention '*=age:30d,bytes:100G'",
        "a history in a directory, and how long it is kept",
    ),
    (
        "twistd -n pubsub --log-format json --log-level wire=debug,info",
        "a log of JSON lines that shows each connection",
    ),
    ("twistd -n pubsub --config pubsub.toml", "settings in a file, which SIGHUP reads again"),
)
"""Commands with their descriptions."""


def help_text(protocols: Mapping[str, IWireProtocol]) -> str:
    """Return the help; ``protocols`` have a group each."""
    formatter = HelpFormatter(width=WIDTH)
    formatter.write(_ABOUT)
    for title, settings in _by_group().items():
        with formatter.section(title):
            rows = [_row(setting.name, setting) for setting in settings]
            _write_rows(formatter, [*_OTHERS.get(title, []), *rows])
    for protocol in (*protocols.values(), ADMIN):
        with formatter.section(_title(protocol)):
            rows = [_row(flag(protocol, setting), setting) for setting in protocol.settings]
            _write_rows(formatter, rows)
    with formatter.section("Examples"):
        for command, meaning in EXAMPLES:
            formatter.write(f"  {_broken(command)}\n")
            formatter.write(f"      {meaning}\n")
    return formatter.getvalue()


def _write_rows(formatter: HelpFormatter, rows: Sequence[tuple[str, str]]) -> None:
    if rows:
        formatter.write_dl(rows, col_max=_COLUMN)
    else:
        formatter.write_text("no settings of its own")


def _title(protocol: IWireProtocol) -> str:
    name = "HTTP API" if protocol is ADMIN else protocol.name
    return f"{name} ({protocol.summary}; default port {protocol.port})"


def _by_group() -> dict[str, list[Setting]]:
    found: dict[str, list[Setting]] = {title: [] for title in _TITLES}
    for setting in (*BROKER_SETTINGS, *LISTENER_SETTINGS):
        found[_group(setting.name)].append(setting)
    return found


def _group(name: str) -> str:
    return next((title for title, names in _GROUPS if _matches(name, names)), _BROKER)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def _row(name: str, setting: Setting) -> tuple[str, str]:
    if setting.is_flag:
        default = "" if setting.kind is BOOLEAN else _default(setting)
        return f"--{name}", f"{setting.help}{default}"
    repeated = setting.kind.repeated and "repeated" not in setting.help
    more = "; may be repeated" if repeated else ""
    return f"--{name} {setting.kind.syntax}", f"{setting.help}{more}{_default(setting)}"


def _default(setting: Setting) -> str:
    default = setting.default
    if default in ("", None):
        return ""
    if setting.kind is BOOLEAN:
        default = "on" if default else "off"
    return f" [default {default}]"


def _broken(command: str) -> str:
    """Return the command in lines of at most WIDTH, the end of which a shell ignores."""
    lines = [""]
    for word in command.split(" "):
        if len(lines[-1]) + len(word) > WIDTH - 8:
            lines[-1] += " \\"
            lines.append("   ")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n  ".join(lines)
