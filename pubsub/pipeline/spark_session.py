"""A Spark session in this process that opens no port beyond the loopback interface."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"


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
    }


def local_session(
    name: str = "pubsub",
    cores: int | None = None,
    ui: bool = False,
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a local session; settings in ``more`` override the others.

    Needs Java 17 or later. A process has one session: an existing session is returned, with the
    settings that can still change.
    """
    # The workers must run this Python, with its installed packages.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    builder = SparkSession.Builder().appName(name)
    for key, value in {**settings(cores, ui), **(more or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
