"""Runs a job: its session, its streaming query, progress, signals, and one-line errors.

Exit codes: 0 when the job ended or was stopped by a signal, 1 for an error that the user can
correct, 3 for any other failure of a query.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from pubsub.errors import PubSubError, StartError
from pubsub.pipeline.command_line.arguments import job_parser
from pubsub.pipeline.job_runs.checkpoint_lock import check_free, checkpoint_lock
from pubsub.pipeline.job_runs.class_data import java_option
from pubsub.pipeline.job_runs.job_errors import print_error
from pubsub.pipeline.job_runs.late_messages import LateMessageCounter
from pubsub.pipeline.job_runs.progress import Display, batch_progress
from pubsub.pipeline.publishing.staged_writer import RUN_AGAIN
from pubsub.pipeline.spark_session import local_session, start_session
from pubsub.pipeline.tables.location import Location
from pubsub.pipeline.tables.spark import query_id

_LOG4J = Path(__file__).parents[1] / "log4j2.properties"
_OLDEST_JAVA = 17
# With its defaults Java spends half of the processor time of a short job on compiling methods in
# full. These are the defaults times ten: code that runs for each row is still compiled at once.
_LATE_COMPILATION = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
_NO_FULL_COMPILATION = "-XX:TieredStopAtLevel=1"
# Within Spark's error for a start that it has given up in another thread.
_CONTEXT_ENDED = "stopped SparkContext"
_POLL_SECONDS = 1
_LAST_BATCH_SECONDS = 60.0
_ATTEMPTS = 3
_RUNNING_AGAIN = "the broker was restarted during a commit; the batch is run again"

HandleBatch = Callable[[DataFrame, int, str], None]
"""Handles a batch: its rows, its number and the id of the query."""


@dataclass(frozen=True, slots=True)
class JobQuery:
    """A streaming query to run.

    Either ``handle_batch`` receives the batches of ``rows``, or ``configure_sink`` sets their sink.
    The checkpoint is below the directory ``checkpoint_home`` unless the command line names another.
    ``late_counter`` counts the messages after the watermark. ``count_messages`` returns the number
    of messages in a batch where that is not its number of rows. ``on_finished`` is called when a
    query of ``--once`` has ended.
    """

    rows: DataFrame
    handle_batch: HandleBatch | None = None
    configure_sink: Callable[[DataStreamWriter], DataStreamWriter] | None = None
    checkpoint_home: str | None = None
    late_counter: LateMessageCounter | None = None
    count_messages: Callable[[int], int] | None = None
    on_finished: Callable[[], None] | None = None


def main(name: str, arguments: Sequence[str] | None = None) -> int:
    """Run the job ``name`` with a command line of its own and return the exit code."""
    return launch(name, job_parser(name).parse_args(arguments))


def launch(name: str, options: argparse.Namespace) -> int:
    """Run the job ``name`` and return the exit code. Errors go to standard error."""
    job = importlib.import_module(f"pubsub.pipeline.jobs.{name.replace('-', '_')}")
    try:
        # Java takes seconds to start, and a mistake in the options should be seen before.
        job.check(options)
        check_free(_checkpoint_of(name, options, _home(job, options)))
        in_java = getattr(job, "MESSAGES_IN_JAVA", True)
        # The handlers come first: a KeyboardInterrupt while Java starts would leave it behind, as
        # PySpark then removes the directory in which Java is to write its port, and Java neither
        # ends after that error nor reads the end of its input.
        with stop_on_signal() as stop, job_session(f"pubsub {name}", options, in_java) as spark:
            return 0 if stop.is_set() else int(job.run(spark, options, stop))
    except (PubSubError, PySparkException, Py4JError, OSError) as error:
        return print_error(error, options.verbose)


@contextmanager
def job_session(
    name: str, options: argparse.Namespace, messages_in_java: bool = True
) -> Iterator[SparkSession]:
    """Yield a session on the cluster in ``options`` or on this machine, and stop it at the end.

    Without ``messages_in_java`` Java only plans.
    """
    if not options.verbose:
        # These loggers show the stack trace of errors that are reported in one line.
        for logger in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
            logging.getLogger(logger).setLevel(logging.CRITICAL)
    try:
        spark = _start_session(name, options, messages_in_java)
    except Py4JJavaError as error:
        if options.verbose:
            print(error, file=sys.stderr)
        # Stacks can follow.
        cause = str(error.java_exception.getMessage()).split("\n")[0]
        if _CONTEXT_ENDED in cause:
            cause = f"{options.master} does not reply, or has ended it; --debug shows Spark's log"
        raise StartError(f"Spark cannot start: {cause}") from None
    try:
        yield spark
    finally:
        spark.stop()


def _start_session(name: str, options: argparse.Namespace, messages_in_java: bool) -> SparkSession:
    settings = {
        "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
        # Above this number of groups Spark sorts; percentiles of many topics need more groups.
        "spark.sql.objectHashAggregate.sortBased.fallbackThreshold": "100000",
        **dict(options.conf),
    }
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        # spark-submit has started Java and sets the master.
        return _build_session(name, settings, options.master)
    check_java()
    level = "warn" if options.verbose else "off"
    log4j = f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} -Dpubsub.log.level={level}"
    java_options = settings.get("spark.driver.extraJavaOptions", "")
    compilation = _LATE_COMPILATION if messages_in_java else _NO_FULL_COMPILATION
    options_of_java = (log4j, compilation, java_option(), java_options)
    settings["spark.driver.extraJavaOptions"] = " ".join(filter(None, options_of_java))
    if options.master is None or options.master.startswith("local"):
        if options.master is not None:
            settings["spark.master"] = options.master
        return local_session(name, more=settings, detached=True)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.ui.showConsoleProgress": "false", **settings}
    return _build_session(name, settings, options.master)


def _build_session(name: str, settings: dict[str, str], master: str | None) -> SparkSession:
    chosen = {"spark.sql.session.timeZone": "UTC"}
    if master is not None:
        chosen["spark.master"] = master
    return start_session(name, {**chosen, **settings}, detached=True)


def check_java() -> None:
    """Raise StartError unless Java is installed and recent enough."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        raise StartError(f"Spark needs Java {_OLDEST_JAVA} or later; install it, or set JAVA_HOME")
    output = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    match = re.search(r'version "(\d+)', output)
    if match is None:
        raise StartError(f"Spark needs Java {_OLDEST_JAVA} or later; {java} reports no version")
    if int(match[1]) < _OLDEST_JAVA:
        raise StartError(f"Spark needs Java {_OLDEST_JAVA} or later; {java} is version {match[1]}")


@contextmanager
def stop_on_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set. A second signal of either ends the process."""
    stop = threading.Event()
    numbers = (signal.SIGINT, signal.SIGTERM)

    def handle(_number: int, _frame: FrameType | None) -> None:
        stop.set()
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)

    previous = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _home(job: ModuleType, options: argparse.Namespace) -> str | None:
    """Return the directory below which the checkpoint of ``job`` is by default, if any."""
    if hasattr(job, "checkpoint_home"):
        home: str | None = job.checkpoint_home(options)
        return home
    return getattr(options, "to", None)


def _checkpoint_of(name: str, options: argparse.Namespace, home: str | None) -> str | None:
    """Return the checkpoint of the job ``name``: an absolute path or a URL; None without one."""
    given = getattr(options, "checkpoint", None)
    checkpoint = given or (home and f"{Location.parse(home)}/_checkpoints/{name}")
    if not checkpoint:
        return None
    # Spark takes URLs too, of the file systems that it has jars for.
    return checkpoint if "://" in checkpoint else str(Path(checkpoint).absolute())


def run(name: str, job_query: JobQuery, options: argparse.Namespace, stop: threading.Event) -> int:
    """Run ``job_query`` until it ends or ``stop`` is set, and return the exit code.

    Raises the errors of Spark and of the functions that the query calls.
    """
    batch_lock = threading.Lock()
    writer = job_query.rows.writeStream.queryName(name).outputMode("append")
    location = _checkpoint_of(name, options, job_query.checkpoint_home)
    if location:
        writer = writer.option("checkpointLocation", location)
    if options.once:
        writer = writer.trigger(availableNow=True)
    else:
        writer = writer.trigger(processingTime=f"{round(options.trigger * 1000)} milliseconds")
    if job_query.configure_sink is not None:
        writer = job_query.configure_sink(writer)
    if job_query.handle_batch is not None:
        handle = _while_locked(batch_lock, job_query.handle_batch, job_query.rows.sparkSession)
        writer = writer.foreachBatch(handle)
    display = Display(sys.stdout, sys.stdout.isatty())
    with checkpoint_lock(location):
        try:
            run_repeatedly(lambda: _run_query(writer, job_query, display, stop, batch_lock))
        finally:
            display.end()
        if job_query.on_finished is not None and options.once and not stop.is_set():
            job_query.on_finished()
    return 0


def run_repeatedly(run_query: Callable[[], None]) -> None:
    """Run a query, and again if the broker has lost the staged parts of a batch.

    A broker that is restarted between the tasks of a batch and its commit forgets them. Nothing of
    the batch is published then, and Spark runs it again. Raises the error of the last attempt.
    """
    for attempt in range(_ATTEMPTS):
        try:
            run_query()
            return
        except StreamingQueryException as error:
            if RUN_AGAIN not in str(error) or attempt == _ATTEMPTS - 1:
                raise
            print(f"pubsub: {_RUNNING_AGAIN}", file=sys.stderr)


def _run_query(
    writer: DataStreamWriter,
    job_query: JobQuery,
    display: Display,
    stop: threading.Event,
    batch_lock: threading.Lock,
) -> None:
    query = writer.start()
    try:
        _show_progress(query, job_query, display, stop, batch_lock)
    except StreamingQueryException:
        # The error is known before the thread of the query has ended, which needs the session, and
        # without whose end the query cannot be started again.
        with suppress(PySparkException, Py4JError):
            query.stop()
        raise


def _while_locked(
    batch_lock: threading.Lock, handle: HandleBatch, spark: SparkSession
) -> Callable[[DataFrame, int], None]:
    """Return ``handle`` as ``foreachBatch`` calls it; it runs with ``batch_lock`` held."""

    def handle_locked(rows: DataFrame, batch: int) -> None:
        with batch_lock:
            handle(rows, batch, query_id(spark))

    return handle_locked


def _show_progress(
    query: StreamingQuery,
    job_query: JobQuery,
    display: Display,
    stop: threading.Event,
    batch_lock: threading.Lock,
) -> None:
    shown = -1
    ended = False
    while not ended:
        if stop.is_set():
            # The current batch finishes first, so that it need not run again. The lock is released
            # at once, as otherwise the next batch would wait for it, and ``stop`` for that batch.
            if batch_lock.acquire(timeout=_LAST_BATCH_SECONDS):
                batch_lock.release()
            query.stop()
            ended = True
        else:
            ended = bool(query.awaitTermination(_POLL_SECONDS))
        for progress in query.recentProgress:
            # A waiting query also reports progress, with the number of its next batch.
            if progress.batchId > shown and progress.batchDuration and _has_run(progress):
                shown = progress.batchId
                fields = progress_fields(progress)
                if job_query.count_messages is not None:
                    fields["numInputRows"] = job_query.count_messages(shown)
                counter = job_query.late_counter
                late = counter.count(fields, str(query.id)) if counter else 0
                display.show(batch_progress(fields, late))


def _has_run(progress: Any) -> bool:
    return "addBatch" in progress.durationMs


def progress_fields(progress: Any) -> dict[str, Any]:
    """Return the progress of a query as plain mappings."""
    return dict(json.loads(progress.json))
