"""Decodes malformed frames as far as possible, for the ``malformed.py`` of each protocol.

The codecs refuse a frame as a whole. Here the declared fields of a frame are decoded one by one, up
to the first that cannot be decoded. Secrets are shown as their length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from pubsub.wire.fields import FieldError, layout

SHOWN = 256
"""Bytes of a field that are shown."""
# Fields that must not be copied from a frame into a table.
_SECRET = frozenset({"token", "key"})


@dataclass(slots=True)
class Dissection:
    """The decoded beginning of a malformed frame.

    ``kind`` names the frame if its header could be decoded, ``understood`` counts the bytes from
    the start that could be, and ``fault`` describes the error after them; it is empty if there is
    none.
    """

    kind: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    understood: int = 0
    fault: str = ""


Dissector: TypeAlias = Callable[[bytes], Dissection]
"""Decodes a frame, which is not empty. Never raises."""


def decode_fields(found: Dissection, frame: type, data: bytes, stop: int) -> Dissection:
    """Decode the declared fields of ``frame`` from ``found.understood`` up to ``stop``."""
    for name, kind in layout(frame):
        try:
            value, found.understood = kind.decode(data[:stop], found.understood)
        except FieldError as error:
            found.fault = f"{name}: {error}"
            return found
        found.fields[name] = shown(name, value)
    if found.understood < stop:
        found.fault = f"{stop - found.understood} bytes too many"
    return found


def check_length(found: Dissection, data: bytes, end: int) -> Dissection:
    """Set the fault of a frame that should have ``end`` bytes and has fewer."""
    if end > len(data) and not found.fault:
        found.fault = f"{end - len(data)} bytes of the frame are missing"
    return found


def shown(name: str, value: Any) -> Any:
    """Return ``value`` as text if it is bytes, in hexadecimal unless it is UTF-8."""
    if not isinstance(value, bytes):
        return value
    if name in _SECRET:
        return f"({len(value)} bytes)"
    try:
        text = value[:SHOWN].decode()
    except UnicodeDecodeError:
        text = f"0x{value[:SHOWN].hex()}"
    return text + ("..." if len(value) > SHOWN else "")
