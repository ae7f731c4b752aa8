"""Report which form of the compiled modules is tested; make child processes interruptible."""

from __future__ import annotations

import signal

import pytest

from pubsub.build_info import build_kind

# A shell without job control starts background jobs with SIGINT ignored, and their children inherit
# that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Add a line to the end of the output."""
    terminalreporter.write_line(f"message kernel: {build_kind()}")
