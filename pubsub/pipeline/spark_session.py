"""A Spark session in this process, set up so that nothing of it leaves the machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

_LOOPBACK = "127.0.0.1"


def settings(cores: int | None = None, ui: bool = False) -> dict[str, str]:
    """The configuration of ``local_session``: ``cores`` tasks at once (None: one a processor)."""
    count = os.cpu_count() or 1 if cores is None else cores
    return {
        "spark.master": f"local[{count}]",
        # Else Spark asks for the name of the host, which need not lead back to it.
        "spark.driver.host": _LOOPBACK,
        "spark.driver.bindAddress": _LOOPBACK,
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        # The default of 200 is for clusters; each costs a task, however little there is.
        "spark.sql.shuffle.partitions": str(2 * count),
    }


def local_session(
    name: str = "pubsub",
    cores: int | None = None,
    ui: bool = False,
    more: Mapping[str, str] | None = None,
) -> SparkSession:
    """A local session; ``more`` is configuration of the caller's own, which goes first.

    Needs Java 17 or later. A process has one session: if there is one already, it is given back
    with what of the configuration can still be changed.
    """
    # The workers have to be this Python, with what is installed for it.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ.setdefault("SPARK_LOCAL_IP", _LOOPBACK)
    builder = SparkSession.Builder().appName(name)
    for key, value in {**settings(cores, ui), **(more or {})}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()
