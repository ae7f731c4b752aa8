"""``python -m tests.bench.pipeline``: the rate at which Spark reads a history.

The benchmark makes a history and reads all of it, from its file and over HTTP: as a batch to
nowhere and to Parquet, and as a stream to Parquet. It prints rows a second. The broker, Spark and
the disk are on this machine.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from pubsub.pipeline.spark_session import local_session
from tests.histories import fill
from tests.integration.broker import HOST, brokers, listen

_WARM = 200_000


def to_nothing(frame: DataFrame, directory: Path) -> None:
    """Write all columns of all rows to nowhere."""
    frame.write.format("noop").mode("overwrite").save()


def to_parquet(frame: DataFrame, directory: Path) -> None:
    """Write all columns of all rows to a directory."""
    frame.write.parquet(str(directory / "batch"))


def to_parquet_streaming(frame: DataFrame, directory: Path) -> None:
    """Write all columns of all rows with a streaming query."""
    writer = frame.writeStream.format("parquet").trigger(availableNow=True)
    checkpoint = str(directory / "checkpoint")
    options = {"path": str(directory / "stream"), "checkpointLocation": checkpoint}
    writer.options(**options).start().awaitTermination()


WAYS: Mapping[str, tuple[bool, Callable[[DataFrame, Path], None]]] = {
    "nothing": (False, to_nothing),
    "Parquet": (False, to_parquet),
    "Parquet, streaming": (True, to_parquet_streaming),
}


def measure(
    spark: SparkSession, where: Mapping[str, str], way: str, scratch: Path, rows: int
) -> float:
    """Return the rows a second of reading the history once."""
    streaming, run = WAYS[way]
    reader = spark.readStream if streaming else spark.read
    options = {**where, "startingOffsets": "earliest"}
    if streaming:
        options["maxOffsetsPerTrigger"] = str(max(rows // 4, 1))
    directory = Path(tempfile.mkdtemp(dir=scratch))
    began = time.perf_counter()
    run(reader.format("pubsub").options(**options).load(), directory)
    took = time.perf_counter() - began
    shutil.rmtree(directory)
    return rows / took


def bench(options: argparse.Namespace, scratch: Path) -> None:
    """Print a line for each sink and place."""
    path = scratch / "history"
    fill(path, options.rows, options.size)
    spark = local_session("bench", cores=options.cores)
    spark.sparkContext.setLogLevel("FATAL")
    with brokers(scratch) as start:
        broker = start(*listen("cafe"), f"--admin-port=tcp:0:interface={HOST}",
                       f"--store=log:{path}")  # fmt: skip
        places = {
            "file": {"path": str(path)},
            "HTTP": {"url": f"http://{HOST}:{broker.port('admin')}"},
        }
        for place, where in places.items():
            # The first use starts the Python workers and the Java compiler.
            warm = {**where, "endingOffsets": f'{{"0": {min(_WARM, options.rows)}}}'}
            measure(spark, warm, "Parquet", scratch, 1)
            there = spark.read.format("pubsub").options(**where).load().count()
            assert there == options.rows, f"{there} rows are there"
            for way in WAYS:
                rates = [
                    measure(spark, where, way, scratch, options.rows) for _ in range(options.repeat)
                ]
                print(f"{place} to {way}: " + ", ".join(f"{r:,.0f}" for r in rates) + " rows/s")
    spark.stop()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.pipeline", description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--cores", type=int, default=2, help="tasks at once")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--scratch", type=Path, help="a directory on the disk to use")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.scratch) as directory:
        bench(options, Path(directory))


if __name__ == "__main__":
    main()
