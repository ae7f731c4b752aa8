"""The pytest plugin of pubsub-broker, which breaks no tests if another package is called pubsub."""

from __future__ import annotations

from pubsub_broker import find_shadow

_SHADOW = find_shadow()

if _SHADOW:

    def pytest_report_header() -> str:
        """Say why there are no fixtures."""
        return f"{_SHADOW}; there are no fixtures of pubsub-broker"

else:
    from pubsub.testing.pytest_plugin import make_pubsub_broker, pubsub_broker, pytest_configure

    __all__ = ["make_pubsub_broker", "pubsub_broker", "pytest_configure"]
