"""``python -m tests.bench.pipeline``: the rate at which Spark reads a history.

The benchmark makes a history and reads all of it, from its file and over HTTP: as a batch to
nowhere and to Parquet, and as a stream to Parquet. It prints rows a second, and the ratio to Spark
reading and writing the same rows as Parquet, measured beside it. The broker, Spark and the disk are
on this machine.

With ``--cold`` each rate is of a session of its own: the first use starts the Python workers and
the Java compiler. Otherwise these are warm.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from pubsub.pipeline.spark_session import local_session
from tests.histories import fill, fill_mixed
from tests.integration.broker import HOST, brokers, listen

_WARM = 200_000
_PARQUET = "Parquet files"


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


def load(spark: SparkSession, where: Mapping[str, str], streaming: bool, rows: int) -> DataFrame:
    """Return a frame of the history, or of Parquet files with the same rows."""
    reader: DataFrameReader | DataStreamReader = spark.readStream if streaming else spark.read
    if "parquet" in where:
        if streaming:
            schema = spark.read.parquet(where["parquet"]).schema
            return spark.readStream.schema(schema).parquet(where["parquet"])
        return spark.read.parquet(where["parquet"])
    options = {**where, "startingOffsets": "earliest"}
    if streaming:
        options["maxOffsetsPerTrigger"] = str(max(rows // 4, 1))
    return reader.format("pubsub").options(**options).load()


def measure(
    spark: SparkSession, where: Mapping[str, str], way: str, scratch: Path, rows: int
) -> float:
    """Return the rows a second of reading the history once."""
    streaming, run = WAYS[way]
    directory = Path(tempfile.mkdtemp(dir=scratch))
    began = time.perf_counter()
    run(load(spark, where, streaming, rows), directory)
    took = time.perf_counter() - began
    shutil.rmtree(directory)
    return rows / took


def measure_cold(
    options: argparse.Namespace, where: Mapping[str, str], way: str, scratch: Path
) -> float:
    """Measure in a process of its own, whose session has done nothing before."""
    given = [json.dumps(dict(where)), way, str(scratch), str(options.rows), str(options.cores)]
    command = [sys.executable, "-m", "tests.bench.pipeline", "--measure", *given]
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return float(out.splitlines()[-1])


def print_cold(given: list[str]) -> None:
    """Measure once and print the rate; the other side of ``measure_cold``."""
    where, way, scratch, rows, cores = given
    spark = session(int(cores))
    print(measure(spark, json.loads(where), way, Path(scratch), int(rows)))
    spark.stop()


def session(cores: int) -> SparkSession:
    """Return the session of the benchmark."""
    spark = local_session("bench", cores=cores)
    spark.sparkContext.setLogLevel("FATAL")
    return spark


def bench(options: argparse.Namespace, scratch: Path) -> None:
    """Print a line for each sink and place."""
    path = scratch / "history"
    if options.topics > 1:
        fill_mixed(path, options.rows, options.size, options.topics)
    else:
        fill(path, options.rows, options.size, topics=1)
    spark = session(options.cores)
    parquet = {"parquet": str(scratch / "rows")}
    spark.read.format("pubsub").option("path", str(path)).load().write.parquet(parquet["parquet"])
    if options.cold:
        spark.stop()
    with brokers(scratch) as start:
        broker = start(*listen("cafe"), f"--admin-port=tcp:0:interface={HOST}",
                       f"--store=log:{path}")  # fmt: skip
        places = {
            _PARQUET: parquet,
            "file": {"path": str(path)},
            "HTTP": {"url": f"http://{HOST}:{broker.port('http')}"},
        }
        if not options.cold:
            warm_up(spark, places, scratch, options.rows)
        for way in options.ways or WAYS:
            beside = 0.0
            for place, where in places.items():
                rates = [
                    measure_cold(options, where, way, scratch)
                    if options.cold
                    else measure(spark, where, way, scratch, options.rows)
                    for _ in range(options.repeat)
                ]
                beside = beside or max(rates)
                shown = ", ".join(f"{rate:,.0f} ({rate / beside:.2f})" for rate in rates)
                print(f"{place} to {way}: {shown} rows/s", flush=True)
    if not options.cold:
        spark.stop()


def warm_up(
    spark: SparkSession, places: Mapping[str, Mapping[str, str]], scratch: Path, rows: int
) -> None:
    """Start the Python workers and the Java compiler, and check that all rows are there."""
    for place, where in places.items():
        if place != _PARQUET:
            first = {**where, "endingOffsets": f'{{"0": {min(_WARM, rows)}}}'}
            measure(spark, first, "Parquet", scratch, 1)
        there = load(spark, where, False, rows).count()
        assert there == rows, f"{there} rows are there"


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.pipeline",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument(
        "--topics", type=int, default=1, help="with several, payloads of 1 to 2 * SIZE bytes"
    )
    parser.add_argument("--cores", type=int, default=2, help="tasks at once")
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--cold", action="store_true", help="a new session for each rate")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="by default all")
    parser.add_argument("--scratch", type=Path, help="a directory on the disk to use")
    parser.add_argument("--measure", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print_cold(options.measure)
        return
    with tempfile.TemporaryDirectory(dir=options.scratch) as directory:
        bench(options, Path(directory))


if __name__ == "__main__":
    main()
