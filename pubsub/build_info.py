"""Whether the compiled or the interpreted form of the codecs is loaded."""

from __future__ import annotations

from pubsub.wire import frame_runs


def build_kind() -> str:
    """Return ``compiled`` if the wheel was built with a C compiler, else ``interpreted``."""
    return "interpreted" if (frame_runs.__file__ or "").endswith(".py") else "compiled"
