"""The fixture that starts brokers, temporary files, the compiled form in the summary, signals."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path

import pytest
from _pytest import unittest as pytest_unittest
from twisted.trial import _synctest

from pubsub.build_info import build_kind
from tests.integration.broker import Start, brokers

# A shell without job control starts background jobs with SIGINT ignored, and their children inherit
# that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Collection makes a million objects that stay; each full collection of garbage would visit them.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    """Give this session, and all processes that it starts, a directory for temporary files.

    A broker or Java that a test kills leaves files there, so the directory is removed at the end.
    """
    if hasattr(config, "workerinput"):
        # pytest-xdist started this process, with the directory of the session.
        return
    # That of the fixture tmp_path, of which pytest keeps some for the debugging of failed tests.
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())
    directory = tempfile.mkdtemp(prefix="pubsub-tests-")
    # Some tests that root runs start programs as another user.
    os.chmod(directory, 0o711)
    os.environ["TMPDIR"] = tempfile.tempdir = directory
    # A TemporaryDirectory would be removed by processes that are forked, too.
    config.add_cleanup(partial(shutil.rmtree, directory, ignore_errors=True))


def pytest_collection_finish() -> None:
    """Prepare for thousands of short tests, once Twisted and everything else is imported."""
    gc.freeze()
    gc.enable()
    # Most of the garbage of a test is freed without the collector, and each collection calls every
    # broker that a test has left running.
    gc.set_threshold(20_000, 20)
    # pytest looks for the version of Twisted, in the files of the package, at each test.
    pytest_unittest._get_twisted_version = cache(pytest_unittest._get_twisted_version)
    # trial forgets the warnings of all 3,000 modules before each test. Python does so anyway when
    # the filters change, as they do before each test.
    _synctest._setWarningRegistryToNone = lambda modules: None


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start brokers with options of the test; see ``brokers``."""
    with brokers(tmp_path) as starter:
        yield starter


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Add a line to the end of the output."""
    terminalreporter.write_line(f"message kernel: {build_kind()}")
