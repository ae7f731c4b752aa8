"""The configuration of a running broker, as its operators may see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class ShownConfiguration:
    """``content`` is the configuration as ``pubsub/server/configuration_changes.py`` describes it.

    It is empty in a broker that was made without one, and has no secret.
    """

    content: Mapping[str, Any] = field(default_factory=dict)
    reloaded: Callable[[], object] = lambda: None
    """Called after each reload, once the listeners are those of the new configuration."""
