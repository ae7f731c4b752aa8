"""Retention: limits by age, bytes and number of messages, for each pattern of topics."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from pubsub.settings import Kind, matcher, parse_size

# Rows of the index that one step examines and may delete, which takes a few milliseconds.
_STEP = 200
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MICROSECONDS = 1_000_000
FORGOTTEN = "\0" * 256
"""Topics that have ended get this name and a number; no other topic's name is as long."""
LOST = FORGOTTEN + "lost"
"""The topic of messages that were committed and are missing, of whatever topics they were."""
# The range of the names of topics that have ended: all that continue with a digit.
_ENDED = (FORGOTTEN + "0", FORGOTTEN + ":")


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """What the topics that match ``pattern`` keep, all of them together.

    That is the messages of the last ``seconds``, up to ``nbytes`` bytes (see ``messages_nbytes``),
    and not many more than ``messages`` messages, as whole blocks expire.
    """

    pattern: str
    seconds: float = inf
    nbytes: float = inf
    messages: float = inf


def _limits(text: object) -> RetentionLimits:
    pattern, equals, rest = text.rpartition("=") if isinstance(text, str) else ("", "", "")
    found: dict[str, float] = {}
    for part in rest.split(",") if equals and pattern else ():
        name, colon, value = part.strip().partition(":")
        if colon and name in ("age", "bytes", "messages") and name not in found:
            found[name] = _PARTS[name](value)
            continue
        break
    else:
        if found:
            return RetentionLimits(
                pattern,
                found.get("age", inf),
                found.get("bytes", inf),
                found.get("messages", inf),
            )
    raise ValueError(
        f"expected PATTERN=age:7d,bytes:10G,messages:1000000 or some of these, not {text!r}"
    )


def _age(text: str) -> float:
    number, unit = text[:-1], text[-1:]
    if not number.isdecimal() or unit not in _UNITS or not int(number):
        raise ValueError(f"expected an age such as 90s, 30m, 12h or 7d, not {text!r}")
    return int(number) * _UNITS[unit]


def _count(text: str) -> float:
    if not text.isdecimal():
        raise ValueError(f"expected a number of messages, not {text!r}")
    return int(text)


_PARTS: dict[str, Callable[[str], float]] = {"age": _age, "bytes": parse_size, "messages": _count}


def _parse(value: object) -> tuple[RetentionLimits, ...]:
    if not isinstance(value, str | list):
        raise ValueError(f"expected PATTERN=age:7d,bytes:10G, not {value!r}")
    return tuple(map(_limits, [value] if isinstance(value, str) else value))


RETENTION = Kind("PATTERN=age:N(s|m|h|d),bytes:SIZE,messages:N", _parse, repeated=True)


@dataclass(slots=True)
class _Rule:
    """The limits of one pattern, the counts of its messages, and the index rows before which
    nothing of it is left."""

    limits: RetentionLimits
    matches: Callable[[str], bool]
    messages: int = 0
    nbytes: int = 0
    cursor: tuple[int, int] = (-1, -1)

    def has_expired(self, messages: int, nbytes: int, last: int, now: int) -> bool:
        """Return whether a row with these counts and the last timestamp ``last`` has expired."""
        limits = self.limits
        return (
            self.messages - messages >= limits.messages
            or self.nbytes > limits.nbytes
            or last < now - limits.seconds * MICROSECONDS
        )


class Retention:
    """Finds what has expired. The first pattern that matches a topic applies."""

    def __init__(self, limits: Sequence[RetentionLimits]) -> None:
        self._rules = [_Rule(one, matcher([one.pattern])) for one in limits]
        self._rule_of: dict[int, _Rule | None] = {}
        self._counted = False

    def added(self, topic: int, name: str, messages: int, nbytes: int) -> None:
        """Count messages of a topic that were committed."""
        rule = self._rule_for(topic, name)
        if rule is not None and self._counted:
            rule.messages += messages
            rule.nbytes += nbytes

    def expired(self, connection: sqlite3.Connection, now: int) -> tuple[set[int], bool]:
        """Remove what has expired at ``now`` (µs) from the index, within a transaction.

        Returns the blocks of which something has expired, and whether there may be more.
        """
        if not self._counted:
            self._count_all(connection)
        touched, more = self._expire_ended(connection)
        for rule in self._rules:
            bases, more_rows = self._expire(connection, rule, now)
            touched |= bases
            more = more or more_rows
        return touched, more

    def moved(self, base: int) -> None:
        """Note that messages of later blocks are now in the block at ``base``."""
        for rule in self._rules:
            rule.cursor = min(rule.cursor, (base, -1))

    def ended(self, connection: sqlite3.Connection, topic: int) -> None:
        """Stop counting a topic that has ended."""
        rule = self._rule_of.pop(topic, None)
        if rule is not None and self._counted:
            messages, nbytes = connection.execute(
                "SELECT total(count), total(bytes) FROM contents WHERE topic = ?", (topic,)
            ).fetchone()
            rule.messages -= int(messages)
            rule.nbytes -= int(nbytes)

    def reset(self) -> None:
        """Count again: a transaction was rolled back, and ids may belong to other topics."""
        self._counted = False
        self._rule_of.clear()

    def _expire(
        self, connection: sqlite3.Connection, rule: _Rule, now: int
    ) -> tuple[set[int], bool]:
        rows = connection.execute(
            "SELECT c.base, c.topic, t.name, c.count, c.bytes, b.last FROM contents c "
            "JOIN topics t ON t.id = c.topic JOIN blocks b ON b.base = c.base "
            "WHERE (c.base, c.topic) > (?, ?) ORDER BY c.base, c.topic LIMIT ?",
            (*rule.cursor, _STEP),
        )
        expired: list[tuple[int, int]] = []
        more_rows = False
        for seen, (base, topic, name, messages, nbytes, last) in enumerate(rows, 1):
            if self._rule_for(topic, name) is rule:
                if not rule.has_expired(messages, nbytes, last, now):
                    break
                expired.append((base, topic))
                rule.messages -= messages
                rule.nbytes -= nbytes
            rule.cursor = (base, topic)
            more_rows = seen == _STEP
        rows.close()
        connection.executemany("DELETE FROM contents WHERE base = ? AND topic = ?", expired)
        return {base for base, _ in expired}, more_rows

    def _expire_ended(self, connection: sqlite3.Connection) -> tuple[set[int], bool]:
        """Remove the messages of topics that have ended, then the topics."""
        rows = connection.execute(
            "SELECT id, base FROM topics LEFT JOIN contents ON topic = id "
            "WHERE name >= ? AND name < ? LIMIT ?",
            (*_ENDED, _STEP),
        ).fetchall()
        held = [(topic, base) for topic, base in rows if base is not None]
        connection.executemany("DELETE FROM contents WHERE topic = ? AND base = ?", held)
        empty = [topic for topic, base in rows if base is None]
        connection.executemany("DELETE FROM topics WHERE id = ?", [(topic,) for topic in empty])
        for topic in empty:
            # The id may become that of another topic.
            self._rule_of.pop(topic, None)
        return {base for _, base in held}, bool(rows)

    def _rule_for(self, topic: int, name: str) -> _Rule | None:
        if topic not in self._rule_of:
            rules = () if _ENDED[0] <= name < _ENDED[1] else self._rules
            self._rule_of[topic] = next((r for r in rules if r.matches(name)), None)
        return self._rule_of[topic]

    def _count_all(self, connection: sqlite3.Connection) -> None:
        for rule in self._rules:
            rule.messages = rule.nbytes = 0
            rule.cursor = (-1, -1)
        self._counted = True
        rows: Iterable[tuple[int, str, int, int]] = connection.execute(
            "SELECT id, name, sum(count), sum(bytes) FROM contents JOIN topics ON id = topic "
            "GROUP BY id"
        )
        for row in rows:
            self.added(*row)
