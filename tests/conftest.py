"""Says which form of the compiled modules is tested; lets what is started be interrupted."""

from __future__ import annotations

import signal

import pytest

from pubsub.build_info import build_kind

# A shell without job control starts what is in its background with SIGINT ignored, and so would be
# the processes started here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A line at the end of the output."""
    terminalreporter.write_line(f"message kernel: {build_kind()}")
