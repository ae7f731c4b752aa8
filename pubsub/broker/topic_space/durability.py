"""Durability: whether a topic's messages are stored, and stored before they are acknowledged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from pubsub.settings import Kind, matcher, refuse_several


class Durability(IntEnum):
    """The promise of a topic about its messages; a larger value is safer."""

    NONE = 0
    """Messages are delivered to live subscribers and not stored."""
    ASYNC = 1
    """Messages are acknowledged when they are written: they survive the end of the process."""
    SYNC = 2
    """Messages are acknowledged when they are on disk, if the protocol has acknowledgments."""

    @property
    def on_disk(self) -> bool:
        """True if acknowledgments wait for the disk."""
        return self is Durability.SYNC


_WORDS = {one.name.lower(): one for one in Durability}


STATS = "$SYS/stats"
"""The topic of the broker's figures, which is NONE under any rules."""


class DurabilityRules:
    """Durability by topic pattern. The first match applies; the default is ASYNC."""

    def __init__(self, rules: Sequence[tuple[str, Durability]] = ()) -> None:
        self.rules = tuple(rules)
        self._rules: list[tuple[Callable[[str], bool], Durability]] = [
            (matcher([pattern]), durability) for pattern, durability in rules
        ]

    def durability(self, name: str) -> Durability:
        """Return the durability of the topic ``name``."""
        if name == STATS:
            return Durability.NONE
        return next((d for matches, d in self._rules if matches(name)), Durability.ASYNC)


def _rule(text: object) -> tuple[str, Durability]:
    pattern, _, word = text.rpartition("=") if isinstance(text, str) else ("", "", "")
    if not pattern or word not in _WORDS:
        raise ValueError(f"expected PATTERN=none, =async or =sync, not {text!r}")
    if any(f"={one}," in pattern for one in _WORDS):
        refuse_several(f"{pattern}={word}")
    return pattern, _WORDS[word]


def _parse(value: object) -> tuple[tuple[str, Durability], ...]:
    if isinstance(value, str):
        value = [value] if value else []
    if not isinstance(value, list):
        raise ValueError(f"expected PATTERN=none|async|sync, not {value!r}")
    return tuple(map(_rule, value))


DURABILITY = Kind("PATTERN=none|async|sync", _parse, repeated=True)
