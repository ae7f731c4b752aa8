"""The log of the process: where it goes under twistd's options."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import syslog
from pathlib import Path
from typing import Any
from unittest.mock import patch

from twisted.application.service import Application, IServiceCollection
from twisted.internet.task import Clock
from twisted.logger import ILogObserver, Logger
from twisted.trial.unittest import SynchronousTestCase

from pubsub.errors import StartError
from pubsub.server.broker_settings import BROKER_SETTINGS
from pubsub.server.log_setup import (
    LoggedProcess,
    ProcessLog,
    call_later_from_threads,
    is_journal,
)
from pubsub.server.pid_file import check_pid_file
from pubsub.settings import read_all
from tests.unit.connections import Setup
from tests.unit.fakes import scratch
from tests.unit.raising import raised
from tests.unit.streams import logged


def process_log(twistd: dict[str, Any] | None = None, **settings: str) -> ProcessLog:
    """Return the log with these settings, with ``_`` for ``-``, and these options of twistd."""
    given = {name.replace("_", "-"): value for name, value in settings.items()}
    options = {"nodaemon": 1} if twistd is None else twistd
    return ProcessLog(read_all(BROKER_SETTINGS, given), options, Clock().callLater)


class ProcessLogCase(SynchronousTestCase):
    """Standard output and signal handlers of their own"""

    def setUp(self) -> None:
        self.output = io.StringIO()
        self.patch(sys, "stdout", self.output)  # type: ignore[no-untyped-call]
        handler = signal.signal(signal.SIGUSR1, signal.SIG_DFL)
        self.addCleanup(signal.signal, signal.SIGUSR1, handler)

    def write(self, log: ProcessLog, *lines: str) -> None:
        """Log lines of the levels that they begin with."""
        observer = log.observer()
        for line in lines:
            level, _, text = line.partition(" ")
            getattr(Logger(namespace="pubsub.store.x", observer=observer), level)(text)

    @property
    def written(self) -> list[str]:
        return self.output.getvalue().splitlines()


class OutputTests(ProcessLogCase):
    """Where the lines go"""

    def test_standard_output_in_the_foreground(self) -> None:
        self.write(process_log(), "info hello", "debug unseen")
        (line,) = self.written
        assert line.endswith(" info store.x: hello")

    def test_json_and_levels(self) -> None:
        log = process_log(log_format="json", log_level="store=debug,warn")
        self.write(log, "debug seen")
        (line,) = self.written
        assert json.loads(line)["level"] == "debug"

    def test_a_file(self) -> None:
        path = scratch(self) / "own.log"
        self.write(process_log({"logfile": str(path)}), "info hello")
        assert path.read_text().endswith(" info store.x: hello\n")
        assert self.written == []
        assert signal.getsignal(signal.SIGUSR1) not in (signal.SIG_DFL, None)

    def test_the_signal_does_not_end_a_broker_without_a_file(self) -> None:
        class Threads:
            def callFromThread(self, call: Any) -> None:
                call()

        lines = logged(self)
        options: list[dict[str, Any]] = [{"nodaemon": 1}, {"syslog": 1}]
        with patch("twisted.internet.reactor", Threads(), create=True):
            for twistd in options:
                signal.signal(signal.SIGUSR1, signal.SIG_DFL)
                process_log(twistd).observer()
                signal.raise_signal(signal.SIGUSR1)
        text = "SIGUSR1 is ignored: the broker does not write its log into a file itself"
        assert lines == [text] * 2

    def test_a_handler_of_the_signal_stays(self) -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        self.write(process_log({"logfile": str(scratch(self) / "own.log")}), "info hello")
        assert signal.getsignal(signal.SIGUSR1) == signal.SIG_IGN

    def test_a_daemon_has_a_file_in_its_directory(self) -> None:
        before = Path.cwd()
        self.addCleanup(os.chdir, before)
        os.chdir(scratch(self))
        self.write(process_log({}), "info hello")
        assert Path("twistd.log").read_text().endswith("hello\n")

    def test_a_daemon_cannot_log_to_standard_output(self) -> None:
        error = raised(SystemExit, process_log({"logfile": "-"}).observer)
        assert "daemons cannot log to standard output" in str(error)

    def test_a_file_that_cannot_be_opened(self) -> None:
        path = scratch(self) / "missing" / "own.log"
        error = raised(StartError, process_log({"logfile": str(path)}).observer)
        assert str(error) == f"logfile: {path}: No such file or directory"

    def test_lines_that_the_file_does_not_take(self) -> None:
        """As on a full disk."""
        for form in ("text", "json"):
            errors = io.StringIO()
            log = process_log({"logfile": "/dev/full"}, log_format=form)
            with patch.object(sys, "__stderr__", errors):
                self.write(log, "info hello", "warn again")
            first, second = errors.getvalue().splitlines()
            reason = "pubsub: logfile: /dev/full: cannot write: No space left on device; line: "
            assert first.startswith(reason)
            assert "hello" in first
            assert "again" in second
        with patch.object(sys, "__stderr__", None):
            self.write(log, "info hello")
        assert self.written == []

    def test_the_file_with_the_process_id(self) -> None:
        directory = scratch(self)
        for options in (
            {},
            {"pidfile": ""},
            {"pidfile": "own.pid", "rundir": str(directory)},
            {"pidfile": str(directory / "own.pid"), "rundir": "."},
        ):
            check_pid_file(options)
        with patch("os.access", return_value=False):
            check_pid_file({"pidfile": ""})
            error = raised(StartError, check_pid_file, {"pidfile": "own.pid"})
        assert str(error).startswith("pidfile: own.pid cannot be written; ")

    def test_syslog_has_priorities(self) -> None:
        sent: list[tuple[int, str]] = []
        opened: list[str] = []
        self.patch(syslog, "openlog", opened.append)  # type: ignore[no-untyped-call]
        self.patch(syslog, "syslog", lambda *call: sent.append(call))  # type: ignore[no-untyped-call]
        self.write(process_log({"syslog": 1, "prefix": "mine"}), "warn a\nb", "error c")
        assert opened == ["mine"]
        assert sent == [(4, "store.x: a"), (4, "\tb"), (3, "store.x: c")]

    def test_the_journal_has_priorities_and_no_times(self) -> None:
        path = scratch(self) / "journal"
        with path.open("w+") as journal:
            status = os.fstat(journal.fileno())
            stream = f"{status.st_dev}:{status.st_ino}"
            assert is_journal(journal, {"JOURNAL_STREAM": stream})
            for other in ("", "1", "x:y", f"{status.st_dev}:{status.st_ino + 1}"):
                assert not is_journal(journal, {"JOURNAL_STREAM": other})
            self.patch(sys, "stdout", journal)  # type: ignore[no-untyped-call]
            self.patch(os, "environ", {"JOURNAL_STREAM": stream})  # type: ignore[no-untyped-call]
            self.write(process_log(), "warn hello")
            self.write(process_log(log_format="json"), "info hello")
            text, as_json = path.read_text().splitlines()
        assert text == "<4>store.x: hello"
        assert json.loads(as_json.removeprefix("<6>"))["message"] == "hello"

    def test_without_a_file_descriptor_it_is_no_journal(self) -> None:
        assert not is_journal(io.StringIO(), {"JOURNAL_STREAM": "1:2"})


class ServiceTests(ProcessLogCase):
    """The root of the services"""

    def test_the_application_gets_the_observer(self) -> None:
        process = LoggedProcess(process_log())
        application = Application("pubsub")
        process.setServiceParent(application)
        observer = application.getComponent(ILogObserver)
        Logger(namespace="pubsub.store.x", observer=observer).info("hello")
        assert self.written[0].endswith("hello")
        assert list(IServiceCollection(application)) == [process]

    def test_withheld_lines_are_counted_at_the_end(self) -> None:
        log = process_log()
        process = LoggedProcess(log)
        process.startService()  # type: ignore[no-untyped-call]
        self.successResultOf(process.stopService())
        process.startService()  # type: ignore[no-untyped-call]
        self.write(log, *["info hello"] * 12)
        self.successResultOf(process.stopService())
        assert self.written[-1].endswith("repeated 2 times, the last: hello")

    def test_calls_of_other_threads_are_passed_to_the_reactor(self) -> None:
        class Threads(Clock):
            def callFromThread(self, call: Any, *args: Any) -> None:
                call(*args)

        clock, calls = Threads(), []
        call_later_from_threads(clock)(3, lambda: calls.append(clock.seconds()))
        clock.advance(3)
        assert calls == [3]


class ConnectionTests(SynchronousTestCase):
    """Lines for connections that begin and end"""

    def test_they_are_shown_at_the_level_debug(self) -> None:
        assert not process_log().shows_connections
        assert not process_log(log_level="store=debug").shows_connections
        for level in ("debug", "wire=debug", "pubsub=debug", "wire.connection_log=debug"):
            assert process_log(log_level=level).shows_connections

    def test_logging_of_connections_reaches_later_listeners_too(self) -> None:
        setup = Setup()
        setup.broker.add_listener(setup.listener)
        setup.broker.served.log_connections(True)
        assert setup.listener.logs_connections
        later = Setup().listener
        assert not later.logs_connections
        setup.broker.add_listener(later)
        assert later.logs_connections
