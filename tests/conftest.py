"""The fixture that starts brokers; the compiled form in the summary; interruptible children."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from pubsub.build_info import build_kind
from tests.integration.broker import Start, brokers

# A shell without job control starts background jobs with SIGINT ignored, and their children inherit
# that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start brokers with options of the test; see ``brokers``."""
    with brokers(tmp_path) as starter:
        yield starter


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Add a line to the end of the output."""
    terminalreporter.write_line(f"message kernel: {build_kind()}")
