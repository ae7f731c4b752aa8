"""The options of the source or the sink as they are given, checked when they are read."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from pubsub.errors import ConfigurationError

# Options of Kafka's source and sink, in lower case, and those that are for the same here.
_OF_KAFKA = {
    "kafka.bootstrap.servers": "url",
    "kafka.group.id": "readerName",
    "groupidprefix": "readerName",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
    "maxrecordsperpartition": "rowsPerTask",
}


class GivenOptions:
    """The given options, by their documented names."""

    def __init__(
        self,
        given: Mapping[str, str],
        known: tuple[str, ...],
        ignored: frozenset[str] = frozenset(),
    ) -> None:
        lower = {name.lower(): name for name in known}
        self._values: dict[str, str] = {}
        for key, value in given.items():
            name = lower.get(key.lower())
            if name is not None:
                self._values[name] = value
            elif key.lower() not in ignored:
                hint = _hint(key.lower(), lower)
                raise ConfigurationError(f"unknown option {key}{hint}")

    def get(self, name: str) -> str | None:
        """Return the value as text."""
        return self._values.get(name)

    def choice(self, name: str, choices: tuple[str, ...], default: str) -> str:
        """Return the value, which must be one of ``choices``."""
        value = self._values.get(name, default).lower()
        if value not in choices:
            raise ConfigurationError(
                f"option {name}: expected {' or '.join(choices)}, not {value!r}"
            )
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return whether the value is true."""
        return self.choice(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str) -> int | None:
        """Return the value, a whole number of at least 1."""
        value = self._values.get(name)
        if value is None:
            return None
        if not value.isascii() or not value.isdecimal() or int(value) == 0:
            raise ConfigurationError(
                f"option {name}: expected a whole number of at least 1, not {value!r}"
            )
        return int(value)

    def at_most_one(self, *names: str) -> None:
        """Raise ConfigurationError if more than one of these options is given."""
        if len([name for name in names if name in self._values]) > 1:
            raise ConfigurationError(f"options {' and '.join(names)} cannot be combined")

    def forbid(self, names: tuple[str, ...], why: str) -> None:
        """Raise ConfigurationError if one of these options is given."""
        for name in names:
            if name in self._values:
                raise ConfigurationError(f"option {name} cannot be combined with {why}")


def _hint(key: str, known: Mapping[str, str]) -> str:
    """Return the end of the error for an unknown option; ``known`` has names by lower case."""
    same = _OF_KAFKA.get(key)
    if same is not None and same.lower() in known:
        return f"; here it is {same}"
    near = difflib.get_close_matches(key, known, 1)
    return f"; did you mean {known[near[0]]}?" if near else ""
