"""Python values as Lua."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeAlias

LuaValue: TypeAlias = (
    "bool | int | str | bytes | Mapping[str, LuaValue] | Mapping[int, LuaValue]"
    " | Sequence[LuaValue] | None"
)

_PLAIN = re.compile(rb"[ !#-\[\]-~]")
_WIDTH = 100


def literal(value: LuaValue, indent: str = "") -> str:
    """Return ``value`` as a Lua expression; a table that is too long for a line has several."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case str():
            return _quoted(value.encode())
        case bytes():
            return _quoted(value)
        case Mapping():
            parts = [f"{_key(key)} = {_inner(each, indent)}" for key, each in value.items()]
            return _table(parts, indent)
    return _table([_inner(each, indent) for each in value], indent)


def _inner(value: LuaValue, indent: str) -> str:
    return literal(value, indent + "  ")


def _key(key: str | int) -> str:
    # Not the short form: a name may be a keyword.
    return f"[{key}]" if isinstance(key, int) else f"[{_quoted(key.encode())}]"


def _table(parts: Sequence[str], indent: str) -> str:
    line = "{" + (f" {', '.join(parts)} " if parts else "") + "}"
    if len(line) + len(indent) < _WIDTH and "\n" not in line:
        return line
    inner = "".join(f"{indent}  {part},\n" for part in parts)
    return f"{{\n{inner}{indent}}}"


def _quoted(text: bytes) -> str:
    escaped = [chr(byte) if _PLAIN.fullmatch(bytes((byte,))) else f"\\{byte:03d}" for byte in text]
    return f'"{"".join(escaped)}"'
