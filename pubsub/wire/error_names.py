"""Names of the error codes of a protocol, as the client library reports them."""

from __future__ import annotations

from enum import IntEnum


def error_name(codes: type[IntEnum], code: int) -> str:
    """Return the name of ``code``, which another version of the protocol may have added."""
    try:
        return codes(code).name
    except ValueError:
        return f"code {code}"
