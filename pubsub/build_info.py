"""Which form of the modules on a message's path is loaded: compiled, or interpreted."""

from __future__ import annotations

from pubsub.wire import frame_runs


def build_kind() -> str:
    """``compiled`` if the wheel was built where there is a compiler, else ``interpreted``."""
    return "interpreted" if (frame_runs.__file__ or "").endswith(".py") else "compiled"
