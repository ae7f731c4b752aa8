"""The differences of two configurations, and their effect in a reload.

Configurations are compared as text, so that a file can also be compared with the configuration of a
broker that is reached over HTTP. No secret is in these texts, only the ids of secrets.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from enum import Enum
from math import inf
from pathlib import Path
from typing import Any

from pubsub.broker.credentials.master_secrets import KeySource
from pubsub.server.configuration import Config, ListenerConfig
from pubsub.server.reload_effects import BROKER, EFFECTS, Effect, effect_of
from pubsub.store.history_location import StoreLocation
from pubsub.store.upkeep.retention_limits import RetentionLimits

# Characters of a value that are shown, and of these before the first difference of two long values.
_SHOWN, _BEFORE = 120, 30
# Characters of two long values that are compared at once.
_PIECE = 4096
# The name of the tables [[access]] and [groups] among the settings.
_ACCESS = "access"
# The beginning of the names of sets of keys that are fetched.
_KEYS = "[keys."
Described = Mapping[str, Any]
"""``broker`` has texts by setting, ``listeners`` a list of ``protocol``, ``endpoint`` and
``settings``, and ``secrets`` a list of ids."""


def entries(config: Config) -> list[ListenerConfig]:
    """Return all listeners, with that of the HTTP API."""
    return [*config.listeners, *([config.admin] if config.admin is not None else [])]


def describe(config: Config) -> Described:
    """Return the configuration as JSON can have it."""
    return {
        "broker": {
            **{name: text_of(value) for name, value in config.broker.items()},
            "store": str(config.broker["store"] or "memory"),
            _ACCESS: str(config.access),
            **{f"{_KEYS}{one.id}]": _text_of_source(one) for one in config.key_sources},
        },
        "listeners": [
            {
                "protocol": one.protocol.name,
                "endpoint": one.endpoint,
                "settings": {name: text_of(value) for name, value in one.settings.items()},
            }
            for one in entries(config)
        ],
        "secrets": sorted(
            [one.id for one in config.secrets] + [one.id for one in config.key_sources]
        ),
    }


def _text_of_source(source: KeySource) -> str:
    """Return a source as text, without the query of its URL, which may have a secret."""
    place, _, query = source.url.partition("?")
    return f"{place}{'?...' if query else ''} {text_of(replace(source, url=''))}"


def text_of(value: object) -> str:
    """Return the value of a setting as text; equal values have equal texts."""
    if value is None or value == inf:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, str | int | Path):
        return str(value)
    if isinstance(value, Mapping):
        return ",".join(_text_of_pair(key, item) for key, item in value.items())
    if isinstance(value, RetentionLimits | StoreLocation):
        return str(value)
    if is_dataclass(value):
        named = [(field.name, getattr(value, field.name)) for field in fields(value)]
        return " ".join(f"{name}={text_of(item)}" for name, item in named if item != inf)
    if isinstance(value, Sequence):
        # Limits have commas themselves.
        return (" " if any(isinstance(one, RetentionLimits) for one in value) else ",").join(
            "=".join(map(text_of, item)) if isinstance(item, tuple) else text_of(item)
            for item in value
        )
    return str(value)


def _text_of_pair(key: object, item: object) -> str:
    """Return a part of a mapping as the file has it: 7:NAME, KEY=VALUE, or the value for all."""
    if key == "":
        return text_of(item)
    sign = "=" if isinstance(key, str) else ":"
    return f"{text_of(key)}{sign}{text_of(item)}"


@dataclass(frozen=True, slots=True)
class SettingChange:
    """A setting that differs. ``where`` names the listener, and is empty for the whole broker."""

    where: str
    name: str
    old: str
    new: str
    effect: Effect

    @property
    def setting(self) -> str:
        """The setting and its listener."""
        return f"{self.where}: {self.name}" if self.where else self.name

    @property
    def needs_restart(self) -> bool:
        """Whether a reload changes nothing."""
        return self.effect is Effect.RESTART


@dataclass(frozen=True, slots=True)
class Changes:
    """All differences; listeners and secrets by their names."""

    settings: Sequence[SettingChange]
    added: Sequence[str]
    removed: Sequence[str]
    secrets_added: Sequence[str]
    secrets_removed: Sequence[str]

    @property
    def need_restart(self) -> bool:
        """Whether something does not change by a reload."""
        return any(change.needs_restart for change in self.settings)

    def lines(self) -> list[str]:
        """Return the effects of a reload, a line for each difference."""
        lines = []
        for one in self.settings:
            old, new = cut_both(one.old, one.new)
            lines.append(f"{one.setting}: {old} becomes {new} ({_effect(one)})")
        for verb, names in (("added", self.added), ("removed", self.removed)):
            lines += [f"listener {name} is {verb}" for name in names]
        for verb, names in (("added", self.secrets_added), ("removed", self.secrets_removed)):
            lines += [f"secret {name!r} is {verb}" for name in names]
        return lines


def _effect(change: SettingChange) -> str:
    return "needs a restart" if change.needs_restart else change.effect.value


def cut(text: str) -> str:
    """Return ``text`` in quotes unless it is a word, and cut if it is long."""
    shown = text if len(text) <= _SHOWN else text[: _SHOWN - 4] + " ..."
    return shown if shown and shown.isprintable() and " " not in shown else repr(shown)


def _length_in_common(old: str, new: str) -> int:
    shorter = min(len(old), len(new))
    # A megabyte of access rules takes long to compare in Python.
    pieces = range(0, shorter, _PIECE)
    start = next((at for at in pieces if old[at : at + _PIECE] != new[at : at + _PIECE]), shorter)
    return next((at for at in range(start, shorter) if old[at] != new[at]), shorter)


def cut_both(old: str, new: str) -> tuple[str, str]:
    """Return two values as ``cut`` does. Long ones begin shortly before they differ."""
    same = _length_in_common(old, new)
    start = same - _BEFORE
    if start > 0 and max(len(old), len(new)) > _SHOWN:
        old, new = (f"... {text[start:]}" for text in (old, new))
    return cut(old), cut(new)


def compare(old: Described, new: Described) -> Changes:
    """Return the changes from ``old`` to ``new``."""
    changes = [
        SettingChange("", name, was, becomes, _broker_effect(name))
        for name, was, becomes in _differences(old["broker"], new["broker"])
    ]
    before, after = _by_name(old), _by_name(new)
    for key in [key for key in before if key in after]:
        protocol = after[key]["protocol"]
        changes += [
            SettingChange(key, name, was, becomes, effect_of(protocol, name))
            for name, was, becomes in _differences(before[key]["settings"], after[key]["settings"])
        ]
    return Changes(
        changes,
        added=[key for key in after if key not in before],
        removed=[key for key in before if key not in after],
        secrets_added=[id for id in new["secrets"] if id not in old["secrets"]],
        secrets_removed=[id for id in old["secrets"] if id not in new["secrets"]],
    )


def hidden_changes(old: Config, new: Config) -> list[str]:
    """Return the settings whose values differ in what is not shown, such as a password in a URL.

    All of them need a restart.
    """
    return [
        name
        for name, value in new.broker.items()
        if name in old.broker
        and value != old.broker[name]
        and text_of(value) == text_of(old.broker[name])
        and _broker_effect(name) is Effect.RESTART
    ]


def _broker_effect(name: str) -> Effect:
    if name == _ACCESS or name.startswith(_KEYS):
        return Effect.NOW
    return EFFECTS[BROKER].get(name, Effect.RESTART)


def _differences(old: Mapping[str, str], new: Mapping[str, str]) -> list[tuple[str, str, str]]:
    names = dict.fromkeys([*old, *new])
    pairs = [(name, old.get(name, ""), new.get(name, "")) for name in names]
    return [pair for pair in pairs if pair[1] != pair[2]]


def _by_name(described: Described) -> dict[str, Mapping[str, Any]]:
    return {f"{one['protocol']} {one['endpoint']}": one for one in described["listeners"]}


def carried(running: Config, new: Config) -> Config:
    """Return ``new``, with the ``running`` values where a change needs a restart."""
    broker = {
        name: running.broker.get(name, value)
        if EFFECTS[BROKER].get(name) is Effect.RESTART
        else value
        for name, value in new.broker.items()
    }
    before = {(one.protocol.name, one.endpoint): one for one in entries(running)}

    def carry(one: ListenerConfig) -> ListenerConfig:
        old = before.get((one.protocol.name, one.endpoint))
        return one if old is None else replace(one, settings=carried_settings(one, old.settings))

    return replace(
        new,
        broker=broker,
        listeners=[carry(one) for one in new.listeners],
        admin=None if new.admin is None else carry(new.admin),
    )


def carried_settings(new: ListenerConfig, running: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of ``new``, and those of ``running`` that need a restart."""
    protocol = new.protocol.name
    return {
        name: running.get(name, value) if effect_of(protocol, name) is Effect.RESTART else value
        for name, value in new.settings.items()
    }


def fixed_settings(protocol: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of a listener that need a restart."""
    return {
        name: value
        for name, value in settings.items()
        if effect_of(protocol, name) is Effect.RESTART
    }
