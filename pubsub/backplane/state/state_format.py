"""The key ``format`` of the shared state: the version of all others, and a random id.

The id distinguishes a bucket from an earlier one, which has other topics.
"""

from __future__ import annotations

import secrets

KEY = "format"
FOLLOWED = ("t.", "b.", "n.", "x.", "m.")
"""The beginnings of the other keys that brokers follow; they request all others."""
_VERSION = b"1"


def new_format() -> bytes:
    """Return the value for a new bucket."""
    return _VERSION + b" " + secrets.token_hex(8).encode()


def is_followed(key: str) -> bool:
    """Return whether brokers follow the changes of ``key``."""
    return key == KEY or key.startswith(FOLLOWED)


def is_readable(value: bytes | None) -> bool:
    """Return whether this version of the broker can read the bucket."""
    return value is not None and value.split(b" ")[0] == _VERSION
