"""The options that name offsets, times and partitions, in the forms of Kafka's source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TypeAlias

from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import ConfigurationError, InvalidTopicName

EARLIEST, LATEST = "earliest", "latest"
# Kafka's numbers for them.
_WORDS: Mapping[object, str] = {EARLIEST: EARLIEST, LATEST: LATEST, -2: EARLIEST, -1: LATEST}
_MICROSECOND = datetime.resolution
# Of the milliseconds since 1970 until the year 9999. The times of the HTTP API, in µs, have more.
_MOST_DIGITS = 15
_DELAY = re.compile(r"([0-9]+)\s*(ms|s|m|min|h|d)?", re.IGNORECASE)
_MILLISECONDS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

PartitionOffsets: TypeAlias = Mapping[int, int | str]
"""An offset, EARLIEST or LATEST for each partition."""


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """The offsets of some topics in some partitions."""

    of: Mapping[str, PartitionOffsets]


Start: TypeAlias = str | PartitionOffsets | TopicOffsets
"""EARLIEST, LATEST, or an offset or one of these words for each partition, or for each topic."""


def parse_offsets(name: str, value: str | None) -> Start | None:
    """Return the value of an option such as ``startingOffsets``. Raises ConfigurationError."""
    if value is None or value.lower() in (EARLIEST, LATEST):
        return value and value.lower()
    try:
        given = json.loads(value)
        if given and all(isinstance(each, dict) for each in given.values()):
            return TopicOffsets({_topic(key): _partitions(each) for key, each in given.items()})
        return _partitions(given)
    except (ValueError, AttributeError, TypeError, InvalidTopicName):
        raise ConfigurationError(
            f"option {name}: expected earliest, latest, or JSON such as "
            '{"0": 1234, "1": "latest"} or {"orders": {"0": 1234}}'
        ) from None


def _topic(name: str) -> str:
    topic_name(name)
    return name


def _partitions(given: Mapping[str, object]) -> PartitionOffsets:
    return {int(key): _offset(each) for key, each in given.items()}


def _offset(value: object) -> int | str:
    if isinstance(value, int | str) and value in _WORDS:
        return _WORDS[value]
    if type(value) is int and value >= 0:
        return value
    raise ValueError


def parse_assigned(value: str | None) -> Mapping[int, frozenset[str]] | None:
    """Return the topics of each partition in option ``assign``. Raises ConfigurationError."""
    if value is None:
        return None
    found: dict[int, set[str]] = {}
    try:
        given = json.loads(value)
        for name, numbers in given.items():
            for number in numbers:
                if type(number) is not int or number < 0:
                    raise ValueError
                found.setdefault(number, set()).add(_topic(name))
        if not found:
            raise ValueError
    except (ValueError, AttributeError, TypeError, InvalidTopicName):
        raise ConfigurationError(
            'option assign: expected JSON such as {"orders": [0, 1], "cafe/7": [0]}'
        ) from None
    return {number: frozenset(names) for number, names in found.items()}


def parse_timestamp(name: str, value: str | None) -> int | None:
    """Return µs since the Unix epoch from milliseconds, or from ISO 8601 with a time zone."""
    if value is None:
        return None
    if value.isascii() and value.isdecimal():
        if len(value) > _MOST_DIGITS:
            raise ConfigurationError(
                f"option {name}: {value[:20]} milliseconds are after the year 9999; divide a time "
                "in microseconds by 1000"
            )
        return int(value) * 1000
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is None:
            raise ValueError
    except ValueError:
        raise ConfigurationError(
            f"option {name}: expected milliseconds since 1970 or a time such as "
            "2026-01-31T12:00:00+00:00"
        ) from None
    return (time - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND


def parse_delay(name: str, value: str | None) -> float | None:
    """Return the seconds in a text such as ``90s``; without a unit it is in milliseconds."""
    if value is None:
        return None
    match = _DELAY.fullmatch(value.strip())
    if match is None:
        raise ConfigurationError(
            f"option {name}: expected a time such as 30s or 15m, not {value!r}"
        )
    return int(match[1]) * _MILLISECONDS[(match[2] or "ms").lower()] / 1000
