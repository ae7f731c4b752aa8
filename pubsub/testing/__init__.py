"""Brokers for tests: a pytest plugin, and a helper for TestCases.

pytest finds the fixtures ``pubsub_broker`` and ``make_pubsub_broker`` through an entry point. Other
tests call ``start_broker(case)`` in setUp, or use ``running_broker()`` as a context manager. pytest
imports this package in every session in which it is installed, so the rest is imported on use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pubsub.testing.cases import start_broker
    from pubsub.testing.local_broker import LocalBroker, running_broker

_MODULES = {
    "LocalBroker": "pubsub.testing.local_broker",
    "running_broker": "pubsub.testing.local_broker",
    "start_broker": "pubsub.testing.cases",
}
__all__ = ["LocalBroker", "running_broker", "start_broker"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _MODULES:
        raise AttributeError(name)
    from importlib import import_module

    return getattr(import_module(_MODULES[name]), name)
