"""The rate at which jobs read a history, and the delay of metrics.

    python -m tests.bench.archive                        5 million messages into an archive
    python -m tests.bench.archive --copy                 beside Spark copying the same rows
    python -m tests.bench.archive --live 60 --rate 100000    metrics of live messages for a minute

The broker, Spark with two cores and the disk are on this machine. The first command prints messages
a second within the batches, without the start of Java, and of the whole command. With ``--copy`` a
program of Spark that copies the same rows from Parquet to Parquet files is measured beside it, from
the start of its process to the end. The last command prints the ages in the metrics table, from
publishing to reading.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow import RecordBatch
from pyarrow.parquet import ParquetWriter

from pubsub.store.reading.arrow import SCHEMA, read_arrow
from pubsub.store.reading.log_view import LogView
from tests.histories import fill
from tests.integration.broker import HOST, brokers, listen
from tests.spark.commands import Command

_HEADER = struct.Struct("<HBI")
_CAFE, _HANDSHAKE, _PUBLISH = 0xCAFE, 0x01, 0x10
_ACK_BYTES = 16
_TURN = 0.05
# The messages of the history are years old.
_KEEP = "--retention=*=messages:1000000000"


def archive(options: argparse.Namespace, scratch: Path) -> dict[str, object]:
    """Archive a history from its file or over HTTP, and return the figures."""
    path = scratch / "history"
    fill(path, options.rows, options.size)
    to = scratch / "archive"
    job = ["--to", to, "--once", "--master", f"local[{options.cores}]", "--format", options.format]
    with brokers(scratch) as start:
        where: list[object] = ["--path", path]
        if options.http:
            api = f"--admin-port=tcp:0:interface={HOST}"
            broker = start(*listen("cafe"), api, f"--store=log:{path}", _KEEP)
            where = ["--url", f"http://{HOST}:{broker.port('http')}"]
        began = time.perf_counter()
        code, out, err = Command("archive", *job, *where).finish()
        took = time.perf_counter() - began
    if code:
        raise SystemExit(err)
    steps = [json.loads(line) for line in out.splitlines()]
    rows = sum(step["rows"] for step in steps)
    seconds = sum(step["seconds"] for step in steps)
    figures: dict[str, object] = {
        "rows": rows,
        "rows_per_second": round(rows / seconds),
        "of_each_batch": [round(step["rate"]) for step in steps],
        "with_start_and_compaction": round(rows / took),
    }
    if options.copy:
        beside = copy_seconds(options, path, scratch)
        figures["copied_by_spark"] = round(rows / beside)
        figures["part"] = round(beside / took, 2)
    return figures


def copy_seconds(options: argparse.Namespace, history: Path, scratch: Path) -> float:
    """Return the seconds that a process needs to copy the rows with Spark, its start included."""
    rows = scratch / "rows"
    rows.mkdir()
    with closing(LogView(history)) as view, ParquetWriter(rows / "rows.parquet", SCHEMA) as writer:
        for batch in read_arrow(view, 0, options.rows, None):
            assert isinstance(batch, RecordBatch)
            writer.write_batch(batch)
    where = json.dumps({"parquet": str(rows)})
    given = [where, "Parquet", str(scratch), str(options.rows), str(options.cores)]
    command = [sys.executable, "-m", "tests.bench.pipeline", "--measure", *given]
    began = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def publish(port: int, options: argparse.Namespace) -> int:
    """Publish over cafe for ``options.live`` seconds and return the number of messages."""
    frame = _HEADER.pack(_CAFE, _PUBLISH, options.size + 1) + b"\x07" + b"x" * options.size
    burst = frame * round(options.rate * _TURN)
    shake = _HEADER.pack(_CAFE, _HANDSHAKE, 7) + b"\x07\x05bench"
    sent = 0
    with socket.create_connection((HOST, port)) as connection:
        connection.sendall(shake)
        connection.recv(_ACK_BYTES)
        began = time.perf_counter()
        while (elapsed := time.perf_counter() - began) < options.live:
            time.sleep(max(sent / options.rate - elapsed, 0))
            connection.sendall(burst)
            sent += round(options.rate * _TURN)
    return sent


def metrics(options: argparse.Namespace, scratch: Path) -> dict[str, object]:
    """Run the job during live publishing and return the ages of the messages when it read them."""
    to = scratch / "metrics"
    with brokers(scratch) as start:
        api = f"--admin-port=tcp:0:interface={HOST}"
        broker = start(*listen("cafe"), api, f"--store=log:{scratch / 'history'}")
        url = f"http://{HOST}:{broker.port('http')}"
        master = f"local[{options.cores}]"
        job = Command("metrics", "--url", url, "--to", to, "--master", master)
        try:
            # The job reads the first messages late, because Java starts. They are left out below.
            warm = argparse.Namespace(**{**vars(options), "live": 1})
            publish(broker.port("cafe"), warm)
            job.line()
            began = time.time()
            sent = publish(broker.port("cafe"), options)
            while json.loads(job.line())["lag"]:
                pass
            job.signal(signal.SIGTERM)
            code, _out, err = job.finish()
        finally:
            job.discard()
    if code:
        raise SystemExit(err)
    table = DeltaTable(str(to)).to_pyarrow_table()
    late = pc.sum(table["late"]).as_py()
    live = [row for row in table.to_pylist() if row["window_start"].timestamp() > began]
    return {
        "sent": sent,
        "sent_per_second": round(sent / options.live),
        "windows": len(live),
        "age_p50_ms": sorted(row["age_p50"] for row in live)[len(live) // 2] if live else None,
        "age_p99_ms": max((row["age_p99"] for row in live), default=None),
        "age_max_ms": max((row["age_max"] for row in live), default=None),
        "late": late,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.archive",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--size", type=int, default=100, help="bytes of a payload")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--http", action="store_true", help="over HTTP instead of from the file")
    parser.add_argument("--copy", action="store_true", help="measure a copy by Spark as well")
    parser.add_argument("--format", choices=("delta", "parquet"), default="delta")
    parser.add_argument(
        "--live",
        type=float,
        default=0,
        help="seconds of metrics instead (30 or more, as a window has 10)",
    )
    parser.add_argument("--rate", type=int, default=100_000, help="messages a second of --live")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-archive-") as scratch:
        run = metrics if options.live else archive
        print(json.dumps(run(options, Path(scratch)), indent=2))


if __name__ == "__main__":
    main()
