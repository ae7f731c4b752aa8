"""``python -m tests.spark.dying MOMENT BATCHES ARGUMENTS``: the job archive, which kills itself.

MOMENT is ``write`` (files of a batch are there, and not in the table) or ``commit`` (they are, and
Spark does not know). BATCHES go well before.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame

from pubsub.pipeline.job_runner import main
from pubsub.pipeline.jobs import archive
from pubsub.pipeline.jobs.archive import save
from pubsub.pipeline.tables.spark import Target


def die() -> None:
    """Kill this process, Java, and all else in their group."""
    os.killpg(0, signal.SIGKILL)


def files(target: Target) -> int:
    """How many data files there are, in the table or not."""
    return sum(1 for _ in Path(target.path).rglob("*.parquet"))


def watch(target: Target, before: int) -> None:
    """Die as soon as there is a file more."""
    while files(target) <= before:
        pass
    die()


def run(moment: str, batches: int, arguments: list[str]) -> int:
    """Run the job with ``arguments`` until it dies."""
    left = batches

    def dying(batch: DataFrame, target: Target, headers: bool, query: str, number: int) -> int:
        nonlocal left
        left -= 1
        if left < 0 and moment == "write":
            threading.Thread(target=watch, args=(target, files(target)), daemon=True).start()
        count = save(batch, target, headers, query, number)
        if left < 0:
            die()
        return count

    archive.save = dying
    return main(archive.NAME, arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
