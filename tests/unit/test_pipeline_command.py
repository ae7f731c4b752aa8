"""The command line of the pipeline, its progress and its errors, without a session."""

from __future__ import annotations

import io
import json
import logging
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any
from unittest.mock import MagicMock, call, patch

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from twisted.trial.unittest import TestCase

from pubsub.commands import command
from pubsub.errors import ConfigurationError, StartError
from pubsub.pipeline.command_line import argument_values, arguments
from pubsub.pipeline.job_runs import job_errors, job_runner
from pubsub.pipeline.job_runs.late_messages import LateMessageCounter
from pubsub.pipeline.job_runs.progress import BatchProgress, Display, batch_progress, lag
from pubsub.pipeline.jobs import archive, job_source
from pubsub.pipeline.jobs.derive import parse_destination
from pubsub.pipeline.jobs.replay import RateLimit, check_names
from pubsub.pipeline.publishing.staged_writer import RUN_AGAIN
from tests.unit.raising import raised

STACKS = """Job aborted: Traceback (most recent call last):
  File "x.py", line 1, in f
    raise ValueError("it is broken")
ValueError: it is broken

\tat org.apache.spark.X(X.java:1)"""


def progress(**fields: Any) -> dict[str, Any]:
    """Return the progress of a query as Spark reports it."""
    return {"batchId": 4, "numInputRows": 100, "batchDuration": 500, **fields}


class ArgumentsTests(TestCase):
    """Options are checked before anything starts."""

    def refused(self, *given: str) -> str:
        errors = io.StringIO()
        with redirect_stderr(errors):
            assert command.main(["pipeline", *given]) == 2
        assert errors.getvalue().count("\n") == 1
        return errors.getvalue()

    def test_invalid_arguments_are_usage_errors(self) -> None:
        assert "--to" in self.refused("archive")
        assert "not allowed with" in self.refused("archive", "--to=x", "--url=u", "--path=p")
        assert "a duration such as 10s" in self.refused("archive", "--to=x", "--trigger=soon")
        assert "a whole number of at least 1" in self.refused("archive", "--to=x", "--max-rows=0")
        assert "expected spark://" in self.refused("archive", "--to=x", "--master=nonsense")
        assert "NAME=VALUE" in self.refused("archive", "--to=x", "--conf=spark")
        assert "at least 1ms, not '0s'" in self.refused("metrics", "--to=x", "--window=0s")

    def test_every_job_has_a_module(self) -> None:
        for name in arguments.JOBS:
            module = __import__(
                f"pubsub.pipeline.jobs.{name.replace('-', '_')}", fromlist=["run", "NAME"]
            )
            assert name == module.NAME
            assert callable(module.run)

    def test_masters(self) -> None:
        for text in ("local", "local[2]", "local[*]", "spark://h:7077", "yarn", "k8s://https://h"):
            assert argument_values.parse_master(text) == text

    def test_times_have_units(self) -> None:
        found = [
            argument_values.parse_seconds(text) for text in ("500ms", "1.5s", "2m", "1h", "7d")
        ]
        assert found == [0.5, 1.5, 120, 3600, 604_800]

    def test_starting_options(self) -> None:
        assert job_source.starting_option("latest") == ("startingOffsets", "latest")
        assert job_source.starting_option('{"0": 5}') == ("startingOffsets", '{"0": 5}')
        time = "2026-03-01T12:00:00+00:00"
        assert job_source.starting_option(time) == ("startingTimestamp", time)
        for wrong in ("yesterday", "2026-03-01T12:00:00"):
            with pytest.raises(ConfigurationError):
                job_source.starting_option(wrong)

    def test_lost_messages_are_skipped_on_request_only(self) -> None:
        for more in ((), ("--skip-lost",)):
            options = arguments.job_parser("archive").parse_args(["--to", "/x", *more])
            found = job_source.stream_options(options, "archive")
            assert found.get("failOnDataLoss", "true") == ("false" if more else "true")

    def test_destinations(self) -> None:
        assert parse_destination("topic:a:b") == ("topic", "a:b")
        assert parse_destination("table:/x") == ("table", "/x")
        assert parse_destination("console") == ("console", "")
        for wrong in ("table:", "file:x", "", "console:1"):
            with pytest.raises(ConfigurationError):
                parse_destination(wrong)


class ProgressTests(TestCase):
    """The progress line of a batch."""

    def test_progress_of_a_batch(self) -> None:
        source = {"endOffset": {"0": {"next": 90, "epoch": "1"}},
                  "latestOffset": '{"0": {"next": 100, "epoch": "1"}}'}  # fmt: skip
        watermark = {"watermark": "2026-03-01T12:00:00.000Z"}
        found = batch_progress(progress(sources=[source], eventTime=watermark), late=3)
        assert found == BatchProgress(4, 100, 200.0, 0.5, 10, "2026-03-01T12:00:00.000Z", 3)

    def test_unknown_values(self) -> None:
        never = {"watermark": "1970-01-01T00:00:00.000Z"}
        assert batch_progress(progress(eventTime=never)) == BatchProgress(
            4, 100, 200.0, 0.5, None, None, 0
        )
        assert lag([{"endOffset": None, "latestOffset": "nonsense"}]) is None
        assert lag([{"endOffset": {"0": 5}, "latestOffset": {"0": 7, "1": 3}}]) == 5

    def test_the_lag_of_a_stream_read_twice_counts_once(self) -> None:
        source = {"endOffset": {"0": 5}, "latestOffset": {"0": 7}}
        assert lag([source, source]) == 2
        # Messages of other topics do not count.
        latest = {"0": {"next": 90, "epoch": "1-a", "lag": {"messages": 3, "bytes": 9}}}
        assert lag([{"endOffset": {"0": {"next": 5}}, "latestOffset": json.dumps(latest)}]) == 3

    def test_json_lines_and_a_line_that_is_rewritten(self) -> None:
        out, live = io.StringIO(), io.StringIO()
        lines, terminal = Display(out, False), Display(live, True)
        for shown in (
            BatchProgress(0, 1_000_000, 5e5, 2.0, 12_345, "w", 2),
            BatchProgress(1, 1, 1.0, 1.0, 0, "w"),
        ):
            lines.show(shown)
            terminal.show(shown)
        lines.end()
        terminal.end()
        assert [json.loads(line)["rows"] for line in out.getvalue().splitlines()] == [1_000_000, 1]
        first, second = live.getvalue().removeprefix("\r").split("\r")
        assert first == ("batch 0, 1,000,000 rows, 500,000 rows/s, lag 12,345, watermark w, 2 late")
        # The second line overwrites the longer first one.
        assert len(second.rstrip("\n")) == len(first)
        assert second.endswith("\n")


class LateMessageCounterTests(TestCase):
    """Messages are late with respect to the watermark of the previous batch."""

    def test_they_are_counted_by_window(self) -> None:
        reported: list[tuple[dict[int, int], str, int]] = []
        late = LateMessageCounter(lambda ends, query, batch: reported.append((ends, query, batch)))

        def batch(number: int, watermark: str, *ends: tuple[float, float]) -> int:
            observed = {"arrivals": {"ends": [{"x": x, "y": y} for x, y in ends]}}
            time = {"watermark": f"1970-01-01T00:{watermark}.000Z"}
            fields = progress(batchId=number, eventTime=time, observedMetrics=observed)
            return late.count(fields, "q")

        assert batch(0, "00:00", (10.0, 5.0)) == 0
        assert batch(1, "00:20", (10.0, 4.0)) == 0
        assert batch(2, "00:30", (10.0, 3.0), (20.0, 2.0), (30.0, 7.0)) == 5
        assert reported == [({10: 3, 20: 2}, "q", 2)]
        assert late.total == 5

    def test_without_a_watermark_nothing_is_late(self) -> None:
        late = LateMessageCounter(lambda *_args: self.fail("reported"))
        assert late.count(progress(), "q") == 0


class ErrorsTests(TestCase):
    """An error that the user can correct is one line; others keep their stack trace."""

    def test_known_errors_in_the_text_of_spark(self) -> None:
        text = (
            "Job failed: Traceback (most recent call last):\n  File x, line 1\n"
            "pubsub.pipeline.histories.history.DataLoss: offsets 1 to 5 have expired\n"
            "\tat org.apache.X"
        )
        assert job_errors.explain(RuntimeError(text)) == "offsets 1 to 5 have expired"
        assert job_errors.explain(ConfigurationError("no url")) == "no url"
        text = "Multiple streaming queries are concurrently using file:/c/offsets. SQLSTATE: XXKST"
        found = job_errors.explain(RuntimeError(text))
        assert found is not None
        assert found.startswith("file:/c/offsets: another job uses this checkpoint; stop it")
        assert job_errors.explain(FileNotFoundError(2, "No such file", "/x")) == "/x: No such file"
        assert job_errors.explain(RuntimeError("java.lang.NullPointerException")) is None
        full = RuntimeError("\nOSError: [Errno 28] No space left on device: '/x/y'\n")
        assert job_errors.explain(full) == "/x/y: No space left on device"

    def test_a_full_disk_that_java_finds(self) -> None:
        for text in ("No space left on device", "Disk quota exceeded"):
            error = StreamingQueryException(
                "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: "
                f"java.io.IOException: {text} SQLSTATE: XXKST"
            )
            where = "the disk of the checkpoint, or of Spark's temporary files"
            assert job_errors.explain(error) == f"{text}: {where}; make room, and run the job again"

    def test_a_checkpoint_that_java_cannot_write(self) -> None:
        error = StreamingQueryException(
            "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: "
            "/x/a (1)/offsets/.1.b.tmp (Read-only file system) SQLSTATE: XXKST\n=== Query ===\n"
        )
        assert job_errors.explain(error) == "/x/a (1)/offsets/.1.b.tmp: Read-only file system"

    def test_exit_codes(self) -> None:
        errors = io.StringIO()
        with redirect_stderr(errors):
            assert job_errors.print_error(ConfigurationError("no url"), verbose=False) == 1
            for verbose in (False, True):
                error = RuntimeError(STACKS)
                assert job_errors.print_error(error, verbose) == job_errors.FAILED
        short = "pubsub: ValueError: it is broken; --debug shows the stack\n"
        assert errors.getvalue() == f"pubsub: no url\n{short}{STACKS}\n{short}"
        assert job_errors.summarize(RuntimeError("a.b.C: d.\n\tat b")) == "a.b.C: d"
        assert job_errors.summarize(RuntimeError("")) == "RuntimeError"

    def test_a_second_signal_of_either_kind_ends_the_process(self) -> None:
        kinds = (signal.SIGINT, signal.SIGTERM)
        before = [signal.getsignal(kind) for kind in kinds]
        for first in kinds:
            with job_runner.stop_on_signal() as stop:
                assert not stop.is_set()
                signal.raise_signal(first)
                assert stop.is_set()
                assert [signal.getsignal(kind) for kind in kinds] == [signal.SIG_DFL] * 2
            assert [signal.getsignal(kind) for kind in kinds] == before

    def test_a_signal_while_java_starts_stops_the_job_after_the_start(self) -> None:
        ended = []

        @contextmanager
        def session(*_: object) -> Iterator[None]:
            signal.raise_signal(signal.SIGINT)
            yield
            ended.append(True)

        options = arguments.job_parser("archive").parse_args([f"--to={mkdtemp()}"])
        self.addCleanup(rmtree, options.to)
        with (
            patch.object(job_runner, "job_session", session),
            patch.object(archive, "run", side_effect=AssertionError("run")),
        ):
            assert job_runner.launch("archive", options) == 0
        assert ended

    def test_the_cause_of_a_failure_in_java(self) -> None:
        stack = "An error occurred while calling o81.start.\n: java.io.IOException: full\n\tat a.b"
        assert job_errors.summarize(RuntimeError(stack)) == "java.io.IOException: full"
        stack += "\nCaused by: java.io.X: No space left on device\n\t... 3 more"
        assert job_errors.summarize(RuntimeError(stack)) == "java.io.X: No space left on device"
        ended = "[STREAM_FAILED] Query [id = a, runId = b] terminated with exception: [CAST] no."
        assert job_errors.summarize(RuntimeError(ended)) == "[CAST] no"

    def test_a_failed_query_has_ended_before_its_error_is_raised(self) -> None:
        query = MagicMock()
        query.awaitTermination.side_effect = StreamingQueryException("failed")
        query.stop.side_effect = PySparkException("not stopped")
        writer = MagicMock()
        writer.start.return_value = query
        shown = Display(io.StringIO(), live=False)
        given = (MagicMock(), shown, threading.Event(), threading.Lock())
        with pytest.raises(StreamingQueryException):
            job_runner._run_query(writer, *given)
        assert query.mock_calls[-1] == call.stop()

    def loggers(self) -> list[logging.Logger]:
        """Return the loggers that a session sets; they are as before after the test."""
        names = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
        found = [logging.getLogger(name) for name in names]
        for logger in found:
            self.addCleanup(logger.setLevel, logger.level)
        return found

    def test_loggers_of_pyspark_show_stacks_on_request_only(self) -> None:
        loggers = self.loggers()
        for more, shown in ((("--debug",), True), ((), False)):
            options = arguments.job_parser("archive").parse_args(["--to=x", *more])
            with patch.object(job_runner, "_start_session"), job_runner.job_session("x", options):
                assert [each.isEnabledFor(logging.ERROR) for each in loggers] == [shown] * 2

    def test_a_master_that_does_not_reply(self) -> None:
        self.loggers()
        options = arguments.job_parser("archive").parse_args(["--to=x", "--master=spark://h:1"])
        for text, cause in (
            (
                "Cannot call methods on a stopped SparkContext.\nThis",
                "spark://h:1 does not reply, or",
            ),
            ("Could not parse Master URL: 'x'\n\tat a.b", "Could not parse Master URL: 'x'"),
        ):
            error = Py4JJavaError.__new__(Py4JJavaError)
            error.java_exception = MagicMock(**{"getMessage.return_value": text})
            with (
                patch.object(job_runner, "_start_session", side_effect=error),
                pytest.raises(StartError, match=f"^Spark cannot start: {cause}") as caught,
                job_runner.job_session("x", options),
            ):
                pass
            assert "\n" not in str(caught.value)

    def test_a_commit_that_the_broker_forgot_is_tried_again(self) -> None:
        lost = StreamingQueryException(f"[STREAM_FAILED] sink: parts are lost; {RUN_AGAIN}")
        outcomes: list[Exception | None] = [lost, lost, None]

        def run_query() -> None:
            outcome = outcomes.pop(0)
            if outcome is not None:
                raise outcome

        errors = io.StringIO()
        with redirect_stderr(errors):
            job_runner.run_repeatedly(run_query)
            assert errors.getvalue().count("the batch is run again\n") == 2
            outcomes[:] = [lost, lost, lost]
            raised(StreamingQueryException, job_runner.run_repeatedly, run_query)
            other = StreamingQueryException("[STREAM_FAILED] another error")
            outcomes[:] = [other, None]
            assert raised(StreamingQueryException, job_runner.run_repeatedly, run_query) is other

    def test_an_old_java_is_refused(self) -> None:
        path = self.java('openjdk version "11.0.2" 2019-01-15')
        old = pytest.raises(StartError, match=r"Java 17 or later; .* is version 11$")
        with patch.dict("os.environ", {"JAVA_HOME": path}), old:
            job_runner.check_java()
        path = self.java("cannot start")
        silent = pytest.raises(StartError, match=r"reports no version$")
        with patch.dict("os.environ", {"JAVA_HOME": path}), silent:
            job_runner.check_java()
        none = pytest.raises(StartError, match="set JAVA_HOME")
        with patch.dict("os.environ", {"JAVA_HOME": "/nowhere"}), none:
            job_runner.check_java()
        path = self.java('openjdk version "21" 2023-09-19')
        with patch.dict("os.environ", {"JAVA_HOME": path}):
            job_runner.check_java()

    def java(self, version: str) -> str:
        """Return a directory with a bin/java that prints this version."""
        home = mkdtemp()
        self.addCleanup(rmtree, home)
        program = Path(home, "bin", "java")
        program.parent.mkdir()
        program.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
        program.chmod(0o700)
        return home


class ReplayTests(TestCase):
    """The names of the topics that a replay publishes to."""

    def test_the_prefix_makes_a_name_too_long(self) -> None:
        longest = "é" * 127
        for prefix, name in (("", longest + "x"), ("c", longest), ("copy/", "orders")):
            check_names(pa.table({"topic": ["a", prefix + name]}), prefix)
        for prefix, name in (("c/", longest), ("x" * 256, "a")):
            error = raised(
                ConfigurationError, check_names, pa.table({"topic": [prefix + name]}), prefix
            )
            assert str(error).startswith(f"--prefix: topic {name!r} has more than 255 bytes with ")


class RateLimitTests(TestCase):
    """A replay keeps to its rate."""

    def test_it_waits_until_a_message_is_due(self) -> None:
        now = 100.0
        waited: list[float] = []

        class Clocked(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                nonlocal now
                assert timeout is not None
                waited.append(timeout)
                now += timeout
                return False

        stop = Clocked()
        rate_limit = RateLimit(1000, lambda: now)
        for count in (500, 500, 1000, 0):
            rate_limit.wait(count, stop)
            now += 0.25
        assert waited == [0, 0.25, 0.25, 0.75]

    def test_without_a_rate_it_never_waits(self) -> None:
        class Never(threading.Event):
            def wait(self, timeout: float | None = None) -> bool:
                raise AssertionError

        RateLimit(None).wait(10**9, Never())
