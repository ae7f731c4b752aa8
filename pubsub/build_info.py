"""Which form of the kernel is in use: compiled, or interpreted."""

from __future__ import annotations

from pubsub.kernel import COMPILED


def build_kind() -> str:
    """Return ``compiled`` or ``interpreted``."""
    return "compiled" if COMPILED else "interpreted"
