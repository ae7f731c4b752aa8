"""Lines of the log: an event of ``twisted.logger`` as text, or as JSON.

Besides Twisted's own keys an event may have ``connection``, the fields of the connection that it is
about (see ``log_fields``), and ``unlimited`` (see ``Rationing``). Only values in the message are
ever written, and the fields of the connection: other keys may hold anything.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from string import Formatter

from twisted.logger import LogEvent, LogLevel, eventAsText, formatEvent

from pubsub.broker.visible_text import visible

Render = Callable[[LogEvent], str]
"""Returns the lines of an event, each with its end; empty if it has no text."""

TEXT, JSON = "text", "json"
FORMATS = (TEXT, JSON)
"""The values of the setting ``log-format``."""
PRIORITIES = {
    LogLevel.debug: 7,
    LogLevel.info: 6,
    LogLevel.warn: 4,
    LogLevel.error: 3,
    LogLevel.critical: 2,
}
"""The priorities of syslog and of systemd's journal (RFC 5424 §6.2.1)."""
LEGACY = "log_legacy"
"""The namespace of lines from Twisted's older functions, which much of Twisted itself uses."""
_OWN = "pubsub."
_NAME = re.compile(r"[a-z]\w*")


def level_of(event: LogEvent) -> str:
    """Return the name of the event's level."""
    level = event.get("log_level")
    return str(level.name) if level is not None else "info"


def priority_of(event: LogEvent) -> int:
    """Return the event's priority."""
    return PRIORITIES.get(event.get("log_level", LogLevel.info), PRIORITIES[LogLevel.info])


def timed_text(event: LogEvent) -> str:
    """Return ``TIME LEVEL NAMESPACE: MESSAGE [MARK PROTOCOL PEER IDENTITY]``, in local time."""
    text = untimed_text(event)
    if not text:
        return ""
    when = datetime.fromtimestamp(event.get("log_time", 0.0), UTC).astimezone()
    stamp = when.isoformat(sep=" ", timespec="milliseconds")
    return f"{stamp} {level_of(event)} {text}"


def untimed_text(event: LogEvent) -> str:
    """Return ``NAMESPACE: MESSAGE [MARK PROTOCOL PEER IDENTITY]``, for logs with times and levels.

    Further lines, such as those of a traceback, begin with a tab.
    """
    message, _, rest = (
        eventAsText(event, includeTimestamp=False, includeSystem=False).rstrip().partition("\n")
    )
    if not message and not rest:
        return ""
    connection = event.get("connection")
    where = f" [{' '.join(connection.values())}]" if connection else ""
    first = visible(f"{_short(str(event.get('log_namespace', '-')))}: {message}{where}")
    return "\n\t".join([first, *map(visible, rest.expandtabs(4).splitlines())]) + "\n"


def _short(namespace: str) -> str:
    """Return the name of a module of the broker without its package, and of others the package."""
    if namespace.startswith(_OWN):
        return namespace.removeprefix(_OWN)
    return "twisted" if namespace == LEGACY else namespace.partition(".")[0]


def json_line(event: LogEvent) -> str:
    """Return one JSON object: time, level, namespace, message, and the values in the message.

    The fields of the connection are ``mark``, ``protocol``, ``peer`` and ``identity``. An exception
    adds ``traceback``.
    """
    message = formatEvent(event)
    when = datetime.fromtimestamp(event.get("log_time", 0.0), UTC)
    made: dict[str, object] = {
        "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": level_of(event),
        "namespace": str(event.get("log_namespace", "-")),
        "message": message,
    }
    for name, value in _fields(event):
        made.setdefault(name, value)
    if "log_failure" in event:
        made["traceback"] = event["log_failure"].getTraceback()
    elif not message:
        return ""
    return visible(json.dumps(made, ensure_ascii=False)) + "\n"


def _fields(event: LogEvent) -> Iterator[tuple[str, object]]:
    yield from (event.get("connection") or {}).items()
    for _, name, _, _ in Formatter().parse(event.get("log_format") or ""):
        if name and _NAME.fullmatch(name) and not name.startswith("log_") and name in event:
            value = event[name]
            yield name, value if isinstance(value, str | int | float | None) else str(value)


def with_priorities(render: Render) -> Render:
    """Return ``render`` with the priority before each line, as systemd's journal reads it.

    See ``sd-daemon(3)``.
    """

    def rendered(event: LogEvent) -> str:
        prefix = f"<{priority_of(event)}>"
        return "".join(prefix + line for line in render(event).splitlines(keepends=True))

    return rendered
