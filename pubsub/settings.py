"""Settings of the command line and of the configuration file, declared once for both.

A ``Setting`` has a name, the ``Kind`` that parses it and a default. The command line gives text and
the file gives TOML values; a kind accepts either and returns the typed value, or raises
``ValueError`` with a message that completes "<name>: ...".
"""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, NoReturn, TypeVar

_Number = TypeVar("_Number", int, float)
# Numbers of more digits are mistakes. A float has each of the others exactly.
MOST_DIGITS = 15
_SIZE = re.compile(rf"(\d{{1,{MOST_DIGITS}}})\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_CREDENTIAL = re.compile(r"\$(CREDENTIALS_DIRECTORY|\{CREDENTIALS_DIRECTORY\})(?=/)")
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a setting: its parser, and its ``syntax`` as --help shows it.

    A ``repeated`` kind is a list in the file and an option that may be given several times.
    One that ``is_flag`` is an option without a value, which stands for on.
    """

    syntax: str
    parse: Callable[[object], Any]
    repeated: bool = False
    is_flag: bool = False


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting.

    ``name`` is the key in the file; ``flag`` is the option on the command line if it is not the
    name. ``default`` is written as in the file or on the command line.
    """

    name: str
    kind: Kind
    default: object
    help: str
    flag: str = ""

    @property
    def is_flag(self) -> bool:
        """Whether the option has no value: it turns the setting on."""
        return self.kind.is_flag or (self.kind is BOOLEAN and not self.default)

    def read(self, value: object) -> Any:
        """Parse ``value``; raises ValueError with the name of this setting."""
        try:
            return self.kind.parse(value)
        except ValueError as error:
            raise ValueError(f"{self.name}: {error}") from None


def read_all(settings: Sequence[Setting], given: Mapping[str, object]) -> dict[str, Any]:
    """Return the value of every setting: the given one or the default.

    Raises ValueError for a value that does not parse. The caller reports unknown keys in ``given``.
    """
    return {s.name: s.read(given.get(s.name, s.default)) for s in settings}


def refuse_several(text: str) -> NoReturn:
    """Raise ValueError for a text with several rules, where the setting takes one."""
    raise ValueError(
        f"expected one rule, not {text!r}; write several as a list in the file, or as an option "
        "each"
    )


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"expected on or off, not {value!r}")


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"expected text, not {value!r}")
    return value


def parse_size(value: object) -> int:
    """Return bytes from an int or from text such as ``65536``, ``64K``, ``8M`` or ``1GiB``."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**MOST_DIGITS:
        return value
    match = _SIZE.fullmatch(str(value).strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"expected a size such as 65536, 64K or 8M, not {value!r}")
    power: int = _POWERS[match[2].lower()]
    return int(match[1]) * int(1024**power)


def size_text(nbytes: int) -> str:
    """Return the size as text, which ``parse_size`` reads."""
    for suffix, power in (("G", 3), ("M", 2), ("K", 1)):
        if nbytes and not nbytes % 1024**power:
            return f"{nbytes // 1024**power}{suffix}"
    return str(nbytes)


def _patterns(value: object) -> tuple[str, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"expected topic patterns separated by commas, not {value!r}")
    return tuple(n.strip() for n in names if n.strip())


def _converted(convert: Callable[[str], _Number], value: object) -> _Number | None:
    """Return ``value`` as a number, or None if it is not one."""
    try:
        return None if isinstance(value, bool) else convert(str(value))
    except ValueError:
        return None


def integer(low: int, high: int) -> Kind:
    """Return the kind of a whole number from ``low`` to ``high``."""

    def parse(value: object) -> int:
        number = None if isinstance(value, float) else _converted(int, value)
        if number is None or not low <= number <= high:
            raise ValueError(f"expected a whole number from {low} to {high}, not {value!r}")
        return number

    return Kind("N", parse)


def number(low: float, high: float) -> Kind:
    """Return the kind of a number from ``low`` to ``high``; fractions are allowed."""

    def parse(value: object) -> float:
        result = _converted(float, value)
        if result is None or not low <= result <= high:
            raise ValueError(f"expected a number from {low:g} to {high:g}, not {value!r}")
        return result

    return Kind("N", parse)


def choice(*words: str) -> Kind:
    """Return the kind of a value that is one of ``words``."""

    def parse(value: object) -> str:
        if value not in words:
            raise ValueError(f"expected one of {', '.join(words)}, not {value!r}")
        return str(value)

    return Kind("|".join(words), parse)


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that matches names with the shell-style ``patterns``."""
    if "*" in patterns:
        return lambda name: True
    # An expression would try one name after the other, and takes long to compile.
    names = frozenset([one for one in patterns if not is_pattern(one)])
    starts = tuple([one[:-1] for one in patterns if _is_prefix(one)])
    wild = [one for one in patterns if is_pattern(one) and not _is_prefix(one)]
    if not wild:
        return lambda name: name in names or name.startswith(starts)
    expression = re.compile("|".join(map(fnmatch.translate, wild)))
    return lambda name: (
        name in names or name.startswith(starts) or expression.match(name) is not None
    )


def _is_prefix(pattern: str) -> bool:
    return pattern.endswith("*") and not is_pattern(pattern[:-1])


def is_pattern(text: str) -> bool:
    """Return whether ``text`` can match other names than itself."""
    return any(map(text.__contains__, "*?["))


def _networks(value: object) -> tuple[IPv4Network | IPv6Network, ...]:
    names = value.split(",") if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"expected networks separated by commas, not {value!r}")
    try:
        return tuple(ip_network(n.strip()) for n in names if n.strip())
    except ValueError as error:
        raise ValueError(f"expected networks such as 192.0.2.0/24: {error}") from None


def _file(value: object) -> str:
    path = _text(value)
    match = _CREDENTIAL.match(path)
    if match is None:
        return path
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    if not directory:
        raise ValueError(
            f"{path}: $CREDENTIALS_DIRECTORY is not set; systemd sets it for services with "
            "LoadCredential"
        )
    return directory + path[match.end() :]


def is_credential(path: str) -> bool:
    """Return whether the service manager protects this file, with any mode."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY", "")
    return bool(directory) and path.startswith(directory + "/")


BOOLEAN = Kind("on|off", _boolean)
TEXT = Kind("TEXT", _text)
FILE = Kind("FILE", _file)
"""The path of a file; $CREDENTIALS_DIRECTORY at its beginning is that of the service manager."""
SIZE = Kind("BYTES", parse_size)
SECONDS = number(0, 86_400 * 365)
NETWORKS = Kind("NETWORK,...", _networks)
PATTERNS = Kind("PATTERN,...", _patterns)
COUNT = integer(0, 2**31)
