"""Payloads of text that need no escapes in JSON."""

from __future__ import annotations

from collections.abc import Sequence

_ESCAPED = bytes(range(0x20)) + b'"\\'


def is_plain(payloads: Sequence[bytes]) -> bool:
    """Return whether all are UTF-8 without characters that JSON escapes."""
    # No character spans a space, so that all parts of the joined text are UTF-8 if it is.
    joined = b" ".join(payloads)
    if len(joined.translate(None, _ESCAPED)) != len(joined):
        return False
    if joined.isascii():
        return True
    try:
        joined.decode()
    except UnicodeDecodeError:
        return False
    return True
