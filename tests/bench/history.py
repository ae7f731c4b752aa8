"""Reading and writing a history as Arrow: ``python -m tests.bench.history``.

The benchmark reads a history from its file and over HTTP, and writes to it over HTTP. The writer of
the store makes the file, in blocks whose runs have a few or many messages. Each line has messages
per second of the clock, and the processor time per message of the broker and of the reader.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from pubsub.broker.batch import Batch
from pubsub.client.history_client import HistoryClient
from pubsub.kernel import Columns
from pubsub.store import arrow
from pubsub.store.retention import Retention
from pubsub.store.schema import begin_epoch, open_reader
from pubsub.store.stored_runs import record_of
from pubsub.store.writer import Group, Writer
from tests.integration.broker import HOST, Broker, brokers

_MOST_BYTES = 100
_FEWEST_BYTES = 64
_BLOCK_RUNS = 1000
_TOPICS = 10


@dataclass(frozen=True)
class Figures:
    """The cost of one way of reading or writing; ``own`` and ``broker`` are processor seconds."""

    messages: int
    seconds: float
    own: float
    broker: float

    def __str__(self) -> str:
        shown = f"{self.messages / self.seconds / 1e6:6.2f} million/s, CPU us a message: "
        shown += f"{self.own / self.messages * 1e6:.3f} here"
        if self.broker:
            shown += f", {self.broker / self.messages * 1e6:.3f} broker"
        return shown


def write(path: Path, messages: int, longest: int) -> None:
    """Write a history with messages of 64 to 100 bytes, in runs of 1 to ``longest``."""
    writer = Writer(path, 7, Retention(()))
    writer.connection.execute("BEGIN")
    begin_epoch(writer.connection)
    writer.connection.execute("COMMIT")
    chance = random.Random(7)
    payloads = [bytes(chance.randint(_FEWEST_BYTES, _MOST_BYTES)) for _ in range(longest + 100)]
    offset = 0
    while offset < messages:
        group = Group()
        for _ in range(_BLOCK_RUNS):
            count = chance.randint(1, longest)
            at = chance.randrange(100)
            some = payloads[at : at + count]
            group.runs.append(
                record_of(
                    Batch(
                        (f"topic/{chance.randrange(_TOPICS)}",), Columns.of(some),
                        offset, offset, b"bench", "cafe", None, offset,
                    )
                )
            )  # fmt: skip
            offset += count
        writer.commit(group)
        writer.checkpoint()
    writer.close()


def measure_usage(read: Callable[[], int], broker: Broker | None = None) -> Figures:
    """Measure ``read``, which returns its number of messages."""
    before, began, own = _cpu(broker), time.perf_counter(), time.process_time()
    messages = read()
    return Figures(
        messages,
        time.perf_counter() - began,
        time.process_time() - own,
        _cpu(broker) - before,
    )


def _cpu(broker: Broker | None) -> float:
    if broker is None:
        return 0.0
    fields = Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def from_file(path: Path) -> int:
    """Read the whole history from the file and return the number of messages."""
    connection = open_reader(path)
    _, stop = arrow.bounds(connection)
    items = arrow.read_arrow(connection, 0, stop, None)
    return sum(item.num_rows for item in items if isinstance(item, pa.RecordBatch))


def over_http(client: HistoryClient, stop: int) -> int:
    """Read the whole history over HTTP and return the number of messages."""
    items = client.read(0, stop)
    return sum(item.num_rows for item in items if isinstance(item, pa.RecordBatch))


def publish(client: HistoryClient, messages: int) -> int:
    """Stage and commit batches of 100,000 messages and return the number of messages."""
    size = 100_000
    table = pa.table({"topic": ["bench"] * size, "value": [bytes(_MOST_BYTES)] * size})
    for batch in range(messages // size):
        client.commit("bench", batch, [client.stage("bench", batch, table)])
    return messages // size * size


def lines(directory: Path, messages: int, longest: int) -> Iterator[str]:
    """Measure with runs of up to ``longest`` messages and yield the lines."""
    path = directory / f"{longest}.db"
    write(path, messages, longest)
    what = f"runs of 1 to {longest}"
    yield f"{what}: from the file  {measure_usage(lambda: from_file(path))}"
    with brokers(directory) as start:
        broker = start(
            f"--store=sqlite:{path}",
            "--retention=*=age:36500d",
            f"--admin-port=tcp:0:interface={HOST}",
            f"--listen=cafe=tcp:0:interface={HOST}",
        )
        client = HistoryClient(f"http://{HOST}:{broker.port('admin')}")
        stop = client.bounds().next
        yield f"{what}: over HTTP      {measure_usage(lambda: over_http(client, stop), broker)}"
        yield f"{what}: published HTTP {measure_usage(lambda: publish(client, messages), broker)}"


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.history", description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    options = parser.parse_args()
    for longest in (1000, 10):
        with tempfile.TemporaryDirectory() as directory:
            for line in lines(Path(directory), options.messages, longest):
                print(line, flush=True)


if __name__ == "__main__":
    main()
