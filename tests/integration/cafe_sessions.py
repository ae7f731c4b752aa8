"""Sessions of cafe that resume."""

from __future__ import annotations


def resuming(session: int, client: bytes = b"bob") -> bytes:
    """Return the ClientID that requests a session."""
    return client + b";resume=%016x" % session
