"""The lines that a broker logs when it first starts on a history of version 0.1.

docs/upgrading.md lists the same changes; ``tests/integration/test_upgrading.py`` compares.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from twisted.logger import Logger

from pubsub.plugin import ADMIN
from pubsub.server.configuration import Config, ListenerConfig
from pubsub.store.history_location import StoreLocation

log = Logger()
_UNIX = re.compile(r"(haproxy:)?unix:")


@dataclass(frozen=True, slots=True)
class ChangedDefault:
    """A setting of listeners whose default is another one than in version 0.1.0.

    ``old`` and ``new`` are parsed values. ``protocol`` is empty for the settings of all listeners.
    """

    name: str
    old: object
    new: object
    protocol: str = ""


CHANGED: Sequence[ChangedDefault] = (
    ChangedDefault("allow-anonymous", "on", "auto"),
    ChangedDefault("slow-consumer", "pause", "auto"),
    ChangedDefault("udp-packing", True, False, "cafe"),
    ChangedDefault("max-streams", 16, 32, ADMIN.name),
)


def is_upgrade(location: StoreLocation | None) -> bool:
    """Return whether a history of version 0.1 is going to be migrated."""
    if location is None or location.migrate is None:
        return False
    return location.migrate.exists() and not location.directory.exists()


def report_upgrade(config: Config) -> None:
    """Log each default that has changed since version 0.1.0 and is in effect."""
    listeners = [*config.listeners, *([config.admin] if config.admin is not None else [])]
    for line in sorted({line for one in listeners for line in _changes(one)}):
        log.warn("upgrade from 0.1: {line}; see docs/upgrading.md", line=line)


def _changes(listener: ListenerConfig) -> Iterator[str]:
    protocol = listener.protocol.name
    for change in CHANGED:
        if change.protocol not in ("", protocol) or listener.settings[change.name] != change.new:
            continue
        if change.name == "udp-packing" and not listener.settings["udp"]:
            continue
        where = f"{change.protocol} " if change.protocol else ""
        yield f"{where}{change.name} is {_shown(change.new)}, and was {_shown(change.old)}"
    if _UNIX.match(listener.endpoint) and ":mode=" not in listener.endpoint:
        yield "UNIX sockets have mode 660, and had 666"


def _shown(value: object) -> str:
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
