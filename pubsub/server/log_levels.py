"""The setting ``log-level``: levels of the log by namespace.

A namespace is the dotted name of a module or package, of which ``pubsub.`` and
``pubsub.protocols.`` may be left out: ``store=debug,cafe=debug,twisted=error,warn``.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec

from twisted.logger import LogLevel, LogLevelFilterPredicate

from pubsub.server.log_lines import LEGACY
from pubsub.settings import Kind

_LEVELS = tuple(level.name for level in LogLevel.iterconstants())
_PREFIXES = ("", "pubsub.", "pubsub.protocols.")


def _parse(value: object) -> Mapping[str, str]:
    """Return the level of each namespace; that of all others has the key ``""``."""
    entries = value.split(",") if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise ValueError(f"expected levels separated by commas, not {value!r}")
    found = {"": "info"}
    for entry in entries:
        namespace, _, level = entry.strip().rpartition("=")
        if level not in _LEVELS:
            raise ValueError(f"expected one of {', '.join(_LEVELS)}, not {level!r}")
        for name in _names(namespace) if namespace else ("",):
            found[name] = level
    return found


def _names(namespace: str) -> list[str]:
    """Return the full names that ``namespace`` stands for."""
    found = [prefix + namespace for prefix in _PREFIXES if _exists(prefix + namespace)]
    if not found and namespace.removeprefix("pubsub.").partition(".")[0] == "admin":
        raise ValueError(f"the module {namespace!r} of earlier versions is in http_api now")
    if not found:
        raise ValueError(f"no module is called {namespace!r}; use a name such as store or cafe")
    return [*found, LEGACY] if namespace == "twisted" else found


def _exists(name: str) -> bool:
    with suppress(ImportError, ValueError):
        return find_spec(name) is not None
    return False


LOG_LEVEL = Kind("[NAMESPACE=]LEVEL,...", _parse)
"""Levels by namespace; ``""`` is the key of the level of all other namespaces."""


def set_levels(predicate: LogLevelFilterPredicate, levels: Mapping[str, str]) -> None:
    """Have ``predicate`` filter by these levels and no others."""
    predicate.clearLogLevels()
    predicate.defaultLogLevel = LogLevel.lookupByName(levels[""])
    for namespace, level in levels.items():
        predicate.setLogLevelForNamespace(namespace, LogLevel.lookupByName(level))
