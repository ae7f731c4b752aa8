"""A Spark session in this process that opens no port beyond the loopback interface."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"
_WORKER_PYTHON = Path(__file__).with_name("worker_python")


def settings(cores: int | None = None, ui: bool = False) -> dict[str, str]:
    """Return the configuration of ``local_session`` with ``cores`` tasks at once.

    None stands for one task for each processor.
    """
    count = os.cpu_count() or 1 if cores is None else cores
    return {
        "spark.master": f"local[{count}]",
        # By default Spark uses the host name, which need not resolve to this machine.
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # The default of 200 is for clusters; each partition costs a task, even an empty one.
        "spark.sql.shuffle.partitions": str(2 * count),
        # Most of the cost of a short job are the imports of its workers.
        "spark.python.daemon.module": "pubsub.pipeline.worker_daemon",
    }


def local_session(
    name: str = "pubsub",
    cores: int | None = None,
    ui: bool = False,
    more: Mapping[str, str] | None = None,
    detached: bool = False,
) -> SparkSession:
    """Return a local session; settings in ``more`` override the others, and ``detached`` is as in
    ``start_session``.

    Needs Java 17 or later. A process has one session: an existing session is returned, with the
    settings that can still change.
    """
    # The workers must run this Python, with its installed packages.
    os.environ["PYSPARK_PYTHON"] = worker_python()
    os.environ["PUBSUB_WORKER_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    return start_session(name, {**settings(cores, ui), **(more or {})}, detached)


def worker_python() -> str:
    """Return the program that runs this Python without the archives of PySpark.

    It is this Python itself if PySpark is only in an archive, or if the program cannot be executed.
    """
    found = find_spec("pyspark")
    is_installed = found is not None and Path(found.origin or "").is_file()
    usable = is_installed and os.name == "posix" and os.access(_WORKER_PYTHON, os.X_OK)
    return str(_WORKER_PYTHON) if usable else sys.executable


def start_session(name: str, chosen: Mapping[str, str], detached: bool = False) -> SparkSession:
    """Return a session with the settings ``chosen``.

    With ``detached`` Java and the workers get a process group of their own: a signal to the group
    of this process, such as that of a service manager, reaches only this process, which can end in
    order. If this process is killed, Java ends too, as its standard input is closed. The handler
    of SIGINT stays, too.
    """
    handler = signal.getsignal(signal.SIGINT)
    if detached and "PYSPARK_GATEWAY_PORT" not in os.environ:
        conf = SparkConf().setAppName(name).setAll(list(chosen.items()))
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            conf, popen_kwargs={"start_new_session": True}
        )
        SparkContext(conf=conf, gateway=gateway)
        # It has set a handler that raises KeyboardInterrupt in the middle of calls of Java.
        signal.signal(signal.SIGINT, handler)
    builder = SparkSession.Builder().appName(name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    if detached:
        # Where spark-submit has started Java, the context is made only now.
        signal.signal(signal.SIGINT, handler)
    return session
