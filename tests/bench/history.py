"""Reading and writing a history as Arrow: ``python -m tests.bench.history``.

The benchmark reads a history from its directory and over HTTP, and writes to it over HTTP. The
writer of the log makes the directory: messages of 64 bytes to one topic and to ten in turn, then
runs of a few or many messages. Each line has messages per second of the clock, and the processor
time per message of the broker and of the reader.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.request import urlopen

import pyarrow as pa

from pubsub.broker.routing.batch import Batch
from pubsub.client.history_client import HistoryClient
from pubsub.kernel import Columns
from pubsub.store.reading import arrow
from pubsub.store.reading.log_view import LogView
from tests.histories import history
from tests.integration.broker import HOST, Broker, brokers

_MOST_BYTES = 100
_FEWEST_BYTES = 64
_RECORD_RUNS = 1000
# Messages of one read of 64 KiB, with their heads in cafe.
_READ_MESSAGES = 900
_TOPICS = 10
_MANY_TOPICS = 200


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
    chance = random.Random(7)
    payloads = [bytes(chance.randint(_FEWEST_BYTES, _MOST_BYTES)) for _ in range(longest + 100)]

    def some() -> Iterator[Batch]:
        left = messages
        while left > 0:
            count, at = chance.randint(1, longest), chance.randrange(100)
            left -= count
            columns = Columns.of(payloads[at : at + count])
            yield _batch((f"topic/{chance.randrange(_TOPICS)}",), columns)

    _write(path, some(), _RECORD_RUNS)


def write_in_turn(path: Path, messages: int, topics: int) -> None:
    """Write messages of 64 bytes to one topic or to several in turn, as reads of 64 KiB have them.

    A record has four reads.
    """
    names = tuple(f"topic/{number}" for number in range(topics))
    columns = Columns.of(
        [bytes(_FEWEST_BYTES)] * _READ_MESSAGES,
        [number % topics for number in range(_READ_MESSAGES)] if topics > 1 else None,
    )
    _write(path, (_batch(names, columns) for _ in range(messages // _READ_MESSAGES)), 4)


def _batch(topics: tuple[str, ...], columns: Columns) -> Batch:
    return Batch(topics, columns, 0, 0, b"bench", "cafe")


def _write(path: Path, batches: Iterator[Batch], a_record: int) -> None:
    with history(path) as log:
        while some := list(islice(batches, a_record)):
            log.put_all(some)


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


def from_directory(path: Path) -> int:
    """Read the whole history from its directory and return the number of messages."""
    view = LogView(path)
    try:
        items = arrow.read_arrow(view, 0, view.refresh().stop, None)
        return sum(item.num_rows for item in items if isinstance(item, pa.RecordBatch))
    finally:
        view.close()


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


@contextmanager
def serving(path: Path) -> Iterator[Broker]:
    """Run a broker with the history in ``path``."""
    with brokers(path.parent) as start:
        yield start(
            f"--store=log:{path}",
            "--retention=*=age:36500d",
            f"--admin-port=tcp:0:interface={HOST}",
            f"--listen=cafe=tcp:0:interface={HOST}",
        )


def lines(directory: Path, messages: int, longest: int) -> Iterator[str]:
    """Measure with runs of up to ``longest`` messages and yield the lines."""
    path = directory / f"{longest}"
    write(path, messages, longest)
    what = f"runs of 1 to {longest}"
    yield f"{what}: from the directory  {measure_usage(lambda: from_directory(path))}"
    with serving(path) as broker:
        client = HistoryClient(f"http://{HOST}:{broker.port('http')}")
        stop = client.bounds().next
        yield f"{what}: over HTTP      {measure_usage(lambda: over_http(client, stop), broker)}"
        yield f"{what}: published HTTP {measure_usage(lambda: publish(client, messages), broker)}"


def one_of_many(directory: Path, messages: int) -> Iterator[str]:
    """Measure one topic of many in turn, as JSON; yield a line with figures for all messages."""
    path = directory / "many"
    write_in_turn(path, messages, _MANY_TOPICS)
    with serving(path) as broker:
        url = f"http://{HOST}:{broker.port('http')}/v1/topics/topic%2F7/messages"

        def read() -> int:
            with urlopen(url) as response:
                found = len(response.readlines())
            assert found == messages // _READ_MESSAGES * (_READ_MESSAGES // _MANY_TOPICS + 1)
            return messages

        yield f"one of {_MANY_TOPICS} topics in turn: over HTTP {measure_usage(read, broker)}"


def lines_in_turn(directory: Path, messages: int) -> Iterator[str]:
    """Measure messages of 64 bytes and yield the lines."""
    for topics in (1, _TOPICS):
        path = directory / f"turn-{topics}"
        write_in_turn(path, messages, topics)
        # Once to warm the cache of the file system.
        from_directory(path)
        figures = measure_usage(lambda path=path: from_directory(path))  # type: ignore[misc]
        yield f"64 bytes, {topics} topics in turn: from the directory  {figures}"


def main() -> None:
    """Print a line for each measurement."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.history", description=__doc__)
    parser.add_argument("--messages", type=int, default=2_000_000)
    parser.add_argument("--local", action="store_true", help="without HTTP")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        for line in lines_in_turn(Path(directory), options.messages):
            print(line, flush=True)
    if options.local:
        return
    with tempfile.TemporaryDirectory() as directory:
        for line in one_of_many(Path(directory), options.messages):
            print(line, flush=True)
    for longest in (1000, 10):
        with tempfile.TemporaryDirectory() as directory:
            for line in lines(Path(directory), options.messages, longest):
                print(line, flush=True)


if __name__ == "__main__":
    main()
