"""A standalone cluster of Spark on this machine: a master and two workers of one core each."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from tests.integration.broker import TIMEOUT, environment
from tests.waiting import until

_HOST = "127.0.0.1"
_SPARK = Path(pyspark.__file__).parent
_DEPLOY = "org.apache.spark.deploy"
_MASTER = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED = re.compile(r"Successfully registered with master")
WORKERS = 2


class Daemon:
    """A running process of the cluster, with its log."""

    def __init__(self, directory: Path, name: str, kind: str, *arguments: str) -> None:
        self._log = directory / f"{name}.log"
        more = {
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_HOME": str(_SPARK),
            "SPARK_LOCAL_IP": _HOST,
            "SPARK_WORKER_DIR": str(directory / name),
            "SPARK_DAEMON_MEMORY": "256m",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [_SPARK / "bin" / "spark-class", f"{_DEPLOY}.{kind}", "--host", _HOST,
                 "--port", "0", "--webui-port", "0", *arguments],
                env=environment(more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def wait_for(self, pattern: re.Pattern[str]) -> re.Match[str]:
        """Return the first match of ``pattern`` in the log."""

        def find() -> re.Match[str] | None:
            assert self._process.poll() is None, self._log.read_text()
            return pattern.search(self._log.read_text(errors="replace"))

        until(find, pattern.pattern, TIMEOUT)
        found = find()
        assert found is not None
        return found

    def stop(self) -> None:
        """Kill the process and its executors, which are in its group."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def standalone(directory: Path) -> Iterator[str]:
    """Yield the URL of the master of a cluster."""
    daemons = [Daemon(directory, "master", "master.Master")]
    try:
        url = daemons[0].wait_for(_MASTER)[1]
        for number in range(WORKERS):
            given = ("--cores", "1", "--memory", "1g", url)
            daemons.append(Daemon(directory, f"worker{number}", "worker.Worker", *given))
        for worker in daemons[1:]:
            worker.wait_for(_REGISTERED)
        yield url
    finally:
        for daemon in daemons:
            daemon.stop()
