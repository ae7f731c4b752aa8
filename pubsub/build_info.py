"""The version, and the form of the kernel that is in use: compiled or interpreted."""

from __future__ import annotations

from functools import cache

from pubsub.kernel import COMPILED


def build_kind() -> str:
    """Return ``compiled`` or ``interpreted``."""
    return "compiled" if COMPILED else "interpreted"


@cache
def version() -> str:
    """Return the version that is installed, or ``unknown`` if the package is not installed."""
    from importlib.metadata import PackageNotFoundError
    from importlib.metadata import version as installed

    try:
        return installed("pubsub-broker")
    except PackageNotFoundError:
        return "unknown"
