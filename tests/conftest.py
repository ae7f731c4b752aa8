"""Says which form of the compiled modules is tested."""

from __future__ import annotations

import pytest

from pubsub.form import form


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line at the end of the output."""
    terminalreporter.write_line(f"the path of a message was {form()}")
