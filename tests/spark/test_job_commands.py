"""The command: signals, exit codes, one-line errors, kills, and a cluster."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree
from subprocess import PIPE, STDOUT, Popen

import pyarrow.dataset as ds
import pyspark
import pytest

from tests.histories import history
from tests.integration.broker import HOST, Broker, Start, environment
from tests.spark.commands import ROOT, Command, pipeline
from tests.spark.http_brokers import client_of, serve, url_of
from tests.spark.lake import Lake
from tests.spark.messages import table_rows
from tests.spark.stream_rows import numbers, send

KILLS = int(os.environ.get("PUBSUB_ARCHIVE_KILLS", "4"))
_BATCH = 1000


@pytest.fixture
def broker(start: Start, tmp_path: Path) -> Broker:
    """Return a broker with cafe only."""
    return serve(start, tmp_path / "history")


def offsets(path: Path, kind: str) -> list[int]:
    """Return the offsets in an archive."""
    if kind == "parquet":
        return sorted(ds.dataset(str(path)).to_table(["offset"])["offset"].to_pylist())
    return sorted(row["offset"] for row in table_rows(path))


@pytest.mark.parametrize("kind", ["delta", "parquet", "iceberg"])
def test_an_archive_killed_again_and_again_has_each_message_once(
    broker: Broker, tmp_path: Path, kind: str
) -> None:
    kills = KILLS if kind == "delta" else KILLS // 2
    count = (kills + 2) * _BATCH
    send(broker, *numbers(0, count))
    to = tmp_path / "archive"
    job = ["--url", url_of(broker), "--format", kind, "--once", "--max-rows", _BATCH]
    lake = Lake(tmp_path)
    job += lake.arguments("lake.messages") if kind == "iceberg" else ["--to", to]
    for life in range(kills):
        kill_point = ("write", "commit")[life % 2]
        program = (
            sys.executable,
            "-m",
            "tests.spark.killed_archive",
            kill_point,
            str(life % 3 % 2),
        )
        code, _out, err = Command(*job, program=program).finish()
        assert code == -signal.SIGKILL, err
    code, out, err = pipeline("archive", *job)
    assert code == 0, err
    found = lake.offsets() if kind == "iceberg" else offsets(to, kind)
    assert found == list(range(count))
    # The broker knows the position of the job.
    assert json.loads(out.splitlines()[-1])["lag"] == 0


@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_only_the_leftovers_of_a_kill_are_removed(tmp_path: Path, kind: str) -> None:
    file, to = tmp_path / "history", tmp_path / "archive"
    with history(file) as messages:
        messages.put_all(messages.batch("orders", [b"%d" % number]) for number in range(30))
    job = ["--path", file, "--to", to, "--format", kind, "--once", "--max-rows", 10]
    program = (sys.executable, "-m", "tests.spark.killed_archive", "write", "1")
    code, _out, err = Command(*job, program=program).finish()
    assert code == -signal.SIGKILL, err
    data = set(to.rglob("*.parquet"))
    (to / "notes.txt").touch()
    # Log lines of Spark itself are suppressed.
    copytree(to, tmp_path / "copy")
    (tmp_path / "copy").rename(to / "copy")
    copied = {path for path in (to / "copy").rglob("*") if path.is_file()}
    for path in to.rglob("*"):
        os.utime(path, (0, 0))

    code, _out, err = pipeline("archive", *job)
    assert code == 0, err
    assert copied == {path for path in (to / "copy").rglob("*") if path.is_file()}
    assert (to / "notes.txt").exists()
    (to / "copy").rename(tmp_path / "copy")
    (to / "notes.txt").unlink()
    assert offsets(to, kind) == list(range(30))
    # A master or a worker of Spark's own cluster.
    assert len(data) == 2
    assert len([path for path in data if path.exists()]) == 1
    assert len(list(to.rglob("*.parquet"))) == 3


@pytest.mark.parametrize(
    ("number", "whole_group"),
    [(signal.SIGTERM, True), (signal.SIGTERM, False), (signal.SIGINT, True)],
)
def test_a_signal_stops_it_in_order(
    broker: Broker, tmp_path: Path, number: signal.Signals, whole_group: bool
) -> None:
    send(broker, *numbers(0, 10))
    to = tmp_path / "archive"
    job = ["--url", url_of(broker), "--to", to, "--trigger", "100ms"]
    command = Command("archive", *job)
    first = json.loads(command.line())
    assert (first["batch"], first["rows"]) == (0, 10)
    if whole_group:
        command.signal_group(number)
    else:
        command.signal(number)
    code, _out, err = command.finish()
    assert code == 0, err
    assert "Traceback" not in err
    assert "Exception" not in err
    assert offsets(to, "delta") == list(range(10))


def test_errors_are_one_line(broker: Broker, tmp_path: Path) -> None:
    sql = tmp_path / "query.sql"
    sql.write_text("SELECT topik FROM messages")
    given = ["--url", url_of(broker), "--once", "--to", "console"]
    code, _out, err = pipeline("derive", *given, "--sql", sql)
    assert code == 1
    said = [line for line in err.splitlines() if line.startswith("pubsub: ")]
    assert said == [line for line in err.splitlines() if "topik" in line]
    assert "cannot be resolved" in said[0]
    assert "\tat " not in err


def test_a_result_on_the_console(broker: Broker, tmp_path: Path) -> None:
    send(broker, *numbers(0, 10))
    sql = tmp_path / "query.sql"
    sql.write_text("SELECT topic, string(value) AS text FROM messages WHERE offset = 7")
    given = ["--url", url_of(broker), "--once", "--to", "console"]
    code, out, err = pipeline("derive", *given, "--sql", sql)
    assert code == 0, err
    assert "|cafe/1|7   |" in out
    # Spark's own lines about itself are suppressed; lines of Java are not.
    assert "WARN " not in err


def test_an_offset_beyond_the_end_is_a_one_line_error(broker: Broker, tmp_path: Path) -> None:
    send(broker, *numbers(0, 10))
    given = ["--to", tmp_path / "archive", "--once", "--url", url_of(broker)]
    code, _out, err = pipeline("archive", *given, "--starting", '{"0": 1000}')
    assert code == 1
    said = [line for line in err.splitlines() if line.startswith("pubsub: ")]
    assert len(said) == 1
    assert "offset 1000 is beyond the end" in said[0]
    assert "\tat " not in err


class Daemon:
    """Return the line of its log that contains ``text``."""

    def __init__(self, kind: str, *arguments: str) -> None:
        home = Path(pyspark.__file__).parent
        self._process = Popen(
            [home / "bin" / "spark-class", f"org.apache.spark.deploy.{kind}", *arguments],
            env=environment({"SPARK_HOME": str(home), "SPARK_LOCAL_IP": HOST}),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
            text=True,
            start_new_session=True,
        )  # Kill it with its children.

    def wait_line(self, text: str) -> str:
        """Yield the URL of a master with two workers of one core each."""
        assert self._process.stdout is not None
        seen = []
        for line in self._process.stdout:
            seen.append(line)
            if text in line:
                return line
        raise AssertionError(f"no {text!r} in:\n{''.join(seen)}")

    def stop(self) -> None:
        """End it, with the processes that it has started."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[str]:
    """Both workers had an executor of the job."""
    daemons = [Daemon("master.Master", "--host", HOST, "--port", "0", "--webui-port", "0")]
    try:
        line = daemons[0].wait_line("Starting Spark master at ")
        url = line.rsplit(" ", 1)[1].strip()
        for number in range(2):
            more = ["--work-dir", str(tmp_path / f"worker-{number}"), "-c", "1", "-m", "700m"]
            worker = Daemon("worker.Worker", "--host", HOST, "--webui-port", "0", *more, url)
            daemons.append(worker)
            worker.wait_line("Successfully registered with master")
        yield url
    finally:
        for daemon in daemons:
            daemon.stop()


def test_an_archive_by_a_cluster(broker: Broker, cluster: str, tmp_path: Path) -> None:
    send(broker, *numbers(0, 20_000))
    to = tmp_path / "archive"
    small = ["spark.executor.memory=600m", "spark.driver.memory=600m",
             f"spark.driver.host={HOST}"]  # fmt: skip
    conf = [part for setting in small for part in ("--conf", setting)]
    job = ["--url", url_of(broker), "--to", to, "--once", "--max-rows", "5000"]
    code, out, err = pipeline("archive", *job, "--master", cluster, *conf)
    assert code == 0, err
    assert sum(json.loads(line)["rows"] for line in out.splitlines()) == 20_000
    assert offsets(to, "delta") == list(range(20_000))
    assert client_of(broker).bounds().next == 20_000
    # Both workers had an executor of it.
    for number in range(2):
        assert list((tmp_path / f"worker-{number}").glob("app-*/*/stderr"))


def test_spark_submit_takes_a_job(broker: Broker, tmp_path: Path) -> None:
    send(broker, *numbers(0, 100))
    to = tmp_path / "archive"
    program = [
        str(Path(pyspark.__file__).parent / "bin" / "spark-submit"),
        "--master", "local[1]", "--conf", f"spark.driver.host={HOST}",
        str(ROOT / "pubsub" / "pipeline" / "jobs" / "archive.py"),
    ]  # fmt: skip
    python = {"PYSPARK_PYTHON": sys.executable}
    job = ["--url", url_of(broker), "--to", to, "--once"]
    code, _out, err = Command(*job, program=program, env=python).finish()
    assert code == 0, err
    assert offsets(to, "delta") == list(range(100))
