"""Retention: limits by age, bytes and number of messages, for each pattern of topics.

``expired_messages.py`` finds the messages beyond them, and ``upkeep.py`` removes these.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from pubsub.settings import MOST_DIGITS, Kind, parse_size, refuse_several, size_text

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
MICROSECONDS = 1_000_000


@dataclass(frozen=True, slots=True)
class RetentionLimits:
    """The limits of the topics that match ``pattern``, for all of them together.

    That is the messages of the last ``seconds``, up to ``nbytes`` bytes (see ``messages_nbytes``),
    and not many more than ``messages`` messages, as whole blocks expire.
    """

    pattern: str
    seconds: float = inf
    nbytes: float = inf
    messages: float = inf

    def __str__(self) -> str:
        parts = [
            f"age:{age_text(self.seconds)}" if self.seconds < inf else "",
            f"bytes:{size_text(int(self.nbytes))}" if self.nbytes < inf else "",
            f"messages:{self.messages:.0f}" if self.messages < inf else "",
        ]
        return f"{self.pattern}={','.join(filter(None, parts))}"


def _limits(text: object) -> RetentionLimits:
    pattern, equals, rest = text.rpartition("=") if isinstance(text, str) else ("", "", "")
    if any(f"={one}:" in pattern for one in _PARTS):
        refuse_several(f"{pattern}={rest}")
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


def parse_age(text: str) -> float:
    """Return the seconds of an age such as 90s, 30m, 12h or 7d; raises ValueError."""
    number, unit = text[:-1], text[-1:]
    if not _is_number(number) or unit not in _UNITS or not int(number):
        raise ValueError(f"expected an age such as 90s, 30m, 12h or 7d, not {text!r}")
    return int(number) * _UNITS[unit]


def age_text(seconds: float) -> str:
    """Return the age as text, which ``parse_age`` reads."""
    unit = next(name for name in reversed(_UNITS) if not seconds % _UNITS[name])
    return f"{seconds / _UNITS[unit]:.0f}{unit}"


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= MOST_DIGITS


def _count(text: str) -> float:
    if not _is_number(text):
        raise ValueError(f"expected a number of messages, not {text!r}")
    return int(text)


_PARTS: dict[str, Callable[[str], float]] = {
    "age": parse_age,
    "bytes": parse_size,
    "messages": _count,
}


def _parse(value: object) -> tuple[RetentionLimits, ...]:
    if not isinstance(value, str | list):
        raise ValueError(f"expected PATTERN=age:7d,bytes:10G, not {value!r}")
    return tuple(map(_limits, [value] if isinstance(value, str) else value))


RETENTION = Kind("PATTERN=age:N(s|m|h|d),bytes:SIZE,messages:N", _parse, repeated=True)
