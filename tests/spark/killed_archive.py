"""Runs the job archive, which kills itself."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from pyspark.sql import DataFrame

from pubsub.pipeline.job_runs.job_runner import main
from pubsub.pipeline.jobs import archive
from pubsub.pipeline.jobs.archive import Target, save
from pubsub.pipeline.tables.spark import TableTarget


def kill_group() -> None:
    """Kill this process, Java, and the rest of their process group."""
    os.killpg(0, signal.SIGKILL)


def count_files(target: Target) -> int:
    """Return the number of data files, in the table or not."""
    if isinstance(target, TableTarget):
        root = target.location.url
    else:
        root = dict(target.name.options)["warehouse"].removeprefix("file://")
    return sum(1 for _ in Path(root).rglob("*.parquet"))


def kill_on_new_file(target: Target, before: int) -> None:
    """Kill the group as soon as there is another file."""
    while count_files(target) <= before:
        pass
    kill_group()


def never(*given: object) -> bool:
    """Wait for the end of the process, in place of a commit."""
    threading.Event().wait()
    return False


def run(kill_point: str, batches: int, arguments: list[str]) -> int:
    """Run the job with ``arguments`` until it kills itself."""
    left = batches

    def save_and_die(
        batch: DataFrame,
        target: Target,
        headers: bool,
        query: str,
        number: int,
        repeatable: bool = True,
    ) -> int:
        nonlocal left
        left -= 1
        if left < 0 and kill_point == "write":
            # However late the thread sees the file, the batch is not committed.
            vars(archive)["commit_once"] = never
            threading.Thread(
                target=kill_on_new_file, args=(target, count_files(target)), daemon=True
            ).start()
        count = save(batch, target, headers, query, number, repeatable)
        if left < 0:
            kill_group()
        return count

    archive.save = save_and_die
    return main(archive.NAME, arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
