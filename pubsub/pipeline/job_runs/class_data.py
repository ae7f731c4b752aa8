"""Class data of Java: jobs start in about half the time if Java finds Spark's classes prepared.

``pubsub pipeline prepare`` runs a small query whose Java process writes the classes that it has
loaded to a file, which later processes map. Java checks that the file fits its version and Spark's
packages, and loads classes as before if it does not.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark
from pyspark.sql import DataFrame

from pubsub.errors import StartError
from pubsub.pipeline.spark_session import local_session

_ROWS = 1000


def java_option() -> str:
    """Return the option with which Java uses the prepared file; empty without one."""
    path = _path()
    if path is None or not path.is_file():
        return ""
    # Java would warn on standard output of a file that does not fit any more.
    return f'-Xshare:auto -Xlog:disable -Xlog:all=error:stderr "-XX:SharedArchiveFile={path}"'


def run(options: argparse.Namespace) -> int:
    """Prepare the file. Raises StartError."""
    path = _path()
    if path is None:
        raise StartError(
            "the class data cannot be prepared: there is no Java, or no directory for caches; "
            "install Java, or set XDG_CACHE_HOME"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as directory:
        new = Path(directory, "new.jsa")
        # Java ends after Python; waiting for the end of its output waits for Java.
        done = subprocess.run(
            [sys.executable, "-m", "pubsub.pipeline.job_runs.class_data", str(new), directory],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode or not new.is_file():
            last = (done.stdout.strip().splitlines() or ["no output"])[-1]
            raise StartError(f"the class data cannot be prepared: {last}")
        new.replace(path)
    print(f"prepared {path}")
    return 0


def _path() -> Path | None:
    """Return the file for this Java and this Spark."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home, "bin", "java")) if home else "java")
    if java is None:
        return None
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        return None
    program = Path(java).resolve()
    found = program.stat()
    known = (program, found.st_mtime_ns, found.st_size, pyspark.__file__, pyspark.__version__)
    digest = hashlib.sha256(repr(known).encode()).hexdigest()[:16]
    return cache / "pubsub" / f"spark-{digest}.jsa"


def _load_classes(new: str, directory: str) -> None:
    """Run a streaming query as jobs do, in a Java process that writes ``new`` at its end."""
    spark = local_session("prepare", more={
        "spark.driver.extraJavaOptions": f'"-XX:ArchiveClassesAtExit={new}"',
    })  # fmt: skip
    rows = Path(directory, "rows")
    spark.range(_ROWS).selectExpr("id", "cast(id AS string) AS text").write.parquet(str(rows))

    def count(batch: DataFrame, number: int) -> None:
        batch.rdd.mapPartitions(lambda found: [sum(1 for _ in found)]).collect()
        batch.groupBy("text").count().collect()

    stream = spark.readStream.schema("id bigint, text string").parquet(str(rows))
    writer = stream.writeStream.foreachBatch(count).trigger(availableNow=True)
    checkpoint = str(Path(directory, "checkpoint"))
    writer.option("checkpointLocation", checkpoint).start().awaitTermination()
    spark.stop()


if __name__ == "__main__":
    _load_classes(*sys.argv[1:])
