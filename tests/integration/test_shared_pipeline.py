"""The readers of the Spark source at two brokers that share a history, called as Spark calls them.

No Spark session is needed; ``tests/spark`` has one.
"""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nats
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows

from pubsub.errors import ConfigurationError
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.readers.batch_reader import BatchReader
from pubsub.pipeline.readers.stream_reader import StreamReader
from pubsub.pipeline.source import PubSubSource
from pubsub.pipeline.tasks.shared_tasks import SharedTask
from tests.integration.broker import HOST, Start, listen
from tests.integration.nats_server import NatsServer, nats_server
from tests.integration.node_urls import url
from tests.integration.places import Place, body_of, settle, two_places
from tests.unit.raising import raised
from tests.waiting import until

ALL = ReadAllAvailable()


@pytest.fixture
def places(start: Start, server: NatsServer, tmp_path: Path) -> tuple[Place, Place]:
    """Return two brokers with twenty messages of each."""
    first, second = two_places(start, server, tmp_path)
    publish(first, second, range(20))
    return first, second


def publish(first: Place, second: Place, numbers: range) -> None:
    """Publish alternately, until both have everything."""
    for number in numbers:
        assert first.publish(f"a{number}")
        assert second.publish(f"b{number}")
    settle(first, second)


def bodies(*numbers: range) -> list[str]:
    """Return what is published with these numbers, in order."""
    return sorted(f"{name}{number}" for each in numbers for number in each for name in "ab")


class Query:
    """A streaming query; ``urls`` are its brokers."""

    def __init__(self, *urls: str, **options: str) -> None:
        given = {name.lower(): value for name, value in options.items()}
        source = PubSubSource(
            {"url": ",".join(urls), "startingoffsets": "earliest", "subscribe": "a,b", **given}
        )
        reader = source.streamReader(source.schema())
        assert isinstance(reader, StreamReader)
        reader._retry = Retry(seconds=20)
        self.reader = reader

    def tasks(self, start: dict[str, Any], end: dict[str, Any]) -> list[Any]:
        return pickle.loads(pickle.dumps(list(self.reader.partitions(start, end))))  # type: ignore[no-any-return]

    def read(self, tasks: list[Any]) -> list[str]:
        """Return the bodies that tasks read in a worker."""
        worker = pickle.loads(pickle.dumps(self.reader))
        found = [batch for task in tasks for batch in worker.read(task)]
        return [body_of(value.decode()) for batch in found for value in batch["value"].to_pylist()]

    def run(
        self, start: dict[str, Any], limit: ReadLimit = ALL
    ) -> tuple[list[str], dict[str, Any], int]:
        """Run batches until nothing is left; return the bodies, the last offsets, the batches."""
        found: list[str] = []
        batches = 0
        while (end := self.reader.latestOffset(start, limit)) != start:
            found += self.read(self.tasks(start, end))
            self.reader.commit(end)
            start = json.loads(json.dumps(end))
            batches += 1
        return found, start, batches


def test_a_batch_is_read_at_all_brokers(places: tuple[Place, Place]) -> None:
    urls = ",".join(map(url, places))
    source = PubSubSource({"url": urls, "minpartitions": "4", "subscribepattern": "[ab]"})
    reader = source.reader(source.schema())
    assert isinstance(reader, BatchReader)
    tasks = list(reader.partitions())
    assert [task.broker for task in tasks if isinstance(task, SharedTask)] == [0, 1, 0, 1]
    rows = [row for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
    assert sorted(body_of(row["value"].decode()) for row in rows) == bodies(range(20))
    assert {row["partition"] for row in rows} == {0, 1}
    assert len({(row["partition"], row["offset"]) for row in rows}) == 40


def test_a_query_goes_on_with_other_brokers(places: tuple[Place, Place]) -> None:
    first, second = places
    one, other = url(first), url(second)
    query = Query(one, other, minPartitions="3")
    found, end, batches = query.run(query.reader.initialOffset(), ReadMaxRows(13))
    assert sorted(found) == bodies(range(20))
    assert batches >= 3
    assert set(end["0"]) >= {"next", "epoch", "shared", "reads"}
    # In the other order.
    publish(first, second, range(20, 30))
    found, end, _ = Query(other, one).run(end)
    assert sorted(found) == bodies(range(20, 30))
    # The broker that planned is killed between two batches.
    query = Query(one, other)
    publish(first, second, range(30, 40))
    found, end, _ = query.run(end)
    assert sorted(found) == bodies(range(30, 40))
    publish(first, second, range(40, 50))
    first.broker.kill()
    found, end, _ = query.run(end)
    assert sorted(found) == bodies(range(40, 50))
    # A new driver, without the first broker.
    assert second.publish("b50")
    settle(second)
    found, end, _ = Query(one, other).run(end)
    assert found == ["b50"]


def test_a_batch_of_messages_that_were_read_at_another_broker(
    start: Start, server: NatsServer, tmp_path: Path
) -> None:
    """It does not look like the end of the history."""
    first, second = two_places(start, server, tmp_path)
    # Each broker has its own messages first.
    server.kill()
    until(
        lambda: not any(one.figure("connected") for one in (first, second)), "both are disconnected"
    )
    for number in range(6):
        assert first.publish(f"a{number}")
    assert second.publish("b0")
    server.start()
    settle(first, second)
    publish(first, second, range(6, 8))
    query = Query(url(first), url(second))
    begin = query.reader.initialOffset()
    end = query.reader.latestOffset(begin, ReadMaxRows(6))
    found = query.read(query.tasks(begin, end))
    assert found == [f"a{number}" for number in range(6)]
    first.broker.kill()
    rest, _, _ = query.run(end, ReadMaxRows(1))
    assert sorted(rest) == ["a6", "a7", "b0", "b6", "b7"]


def test_the_planner_is_killed_in_a_batch(places: tuple[Place, Place]) -> None:
    first, second = places
    query = Query(url(first), url(second), minPartitions="4")
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ALL)
    tasks = query.tasks(start, end)
    found = query.read(tasks[:2])
    first.broker.kill()
    found += query.read(tasks[2:])
    assert sorted(found) == bodies(range(20))
    # The batch is planned again by another driver, which has to find its end at the other broker.
    again = Query(url(first), url(second))
    assert sorted(again.read(again.tasks(start, end))) == bodies(range(20))
    found, _, _ = again.run(end)
    assert found == []


def test_small_batches_at_another_broker(places: tuple[Place, Place]) -> None:
    """They begin behind what was read, although the checkpoint in its log is far before that."""
    first, second = places
    query = Query(url(first), url(second))
    start = query.reader.initialOffset()
    end = query.reader.latestOffset(start, ReadMaxRows(30))
    found = query.read(query.tasks(start, end))
    first.broker.kill()
    rest, _, batches = query.run(end, ReadMaxRows(5))
    # Three if the brokers have stored the rest in different orders; eight from the beginning.
    assert batches <= 4
    assert sorted(found + rest) == bodies(range(20))


def test_a_task_goes_on_at_another_broker(places: tuple[Place, Place]) -> None:
    first, second = places
    query = Query(url(first), url(second))
    start = query.reader.initialOffset()
    (task,) = query.tasks(start, query.reader.latestOffset(start, ALL))
    brokers = query.reader._histories()[0].brokers  # type: ignore[attr-defined]
    read: Callable[..., Any] = brokers[0].read_between
    taken = []

    def broken(*given: Any) -> Iterator[Any]:
        for batch in read(*given):
            yield batch.slice(0, 17)
            first.broker.kill()
            taken.append(17)
            yield from read(*given)

    brokers[0].read_between = broken
    rows = [row for batch in query.reader.read(task) for row in batch.to_pylist()]
    assert taken == [17]
    assert sorted(body_of(row["value"].decode()) for row in rows) == bodies(range(20))
    assert {row["partition"] for row in rows} == {0, 1}


def test_a_checkpoint_of_one_broker_goes_on(places: tuple[Place, Place]) -> None:
    first, second = places
    single = Query(url(second))
    found, end, _ = single.run(single.reader.initialOffset(), ReadMaxRows(25))
    assert sorted(found) == bodies(range(20))
    assert "shared" not in end["0"]
    publish(first, second, range(20, 30))
    # This batch was planned, and is run after the change.
    planned = single.reader.latestOffset(end, ALL)
    query = Query(url(first), url(second))
    found = query.read(query.tasks(end, planned))
    assert sorted(found) == bodies(range(20, 30))
    publish(first, second, range(30, 40))
    found, end, _ = query.run(planned)
    assert sorted(found) == bodies(range(30, 40))
    assert "shared" in end["0"]
    error = raised(ConfigurationError, Query(url(first)).run, end)
    assert "name at least two of them" in str(error)


def test_brokers_that_do_not_share_a_history(
    places: tuple[Place, Place], start: Start, tmp_path: Path
) -> None:
    first, _ = places
    own = start(*listen("http"), f"--store=log:{tmp_path / 'own'}")
    where = f"http://{HOST}:{own.port('http')}"
    error = raised(ConfigurationError, Query, url(first), where)
    assert "do not share one history" in str(error)


def test_brokers_of_two_shared_histories(
    places: tuple[Place, Place], start: Start, tmp_path: Path
) -> None:
    first, second = places
    other = tmp_path / "other"
    other.mkdir()
    with nats_server(other) as engine:
        third = Place(start, engine.url, tmp_path / "c")
        settle(third)
        error = raised(ConfigurationError, Query, url(first), url(second), url(third))
        assert "do not share one history" in str(error)
        third.broker.kill()


async def purge(server: NatsServer) -> None:
    """Remove what the stream has, as its limits do."""
    client = await nats.connect(server.url)
    await client.jetstream().purge_stream("pubsub_history")
    await client.close()


def test_a_new_broker_lacks_messages(start: Start, server: NatsServer, tmp_path: Path) -> None:
    """The stream had removed them. The other broker has them."""
    first = Place(start, server.url, tmp_path / "a")
    settle(first)
    assert first.publish("a0")
    assert first.publish("a1")
    settle(first)
    asyncio.run(purge(server))
    second = Place(start, server.url, tmp_path / "b")
    until(lambda: second.figure("connected") == 1, "it is connected")
    assert first.publish("a2")
    until(lambda: [body for body, _ in second.messages()] == ["a2"], "a2")
    query = Query(url(second), url(first))
    # From where the planner, the first in the list, has everything.
    found, _, _ = query.run(query.reader.initialOffset())
    assert found == ["a2"]
    query = Query(url(first), url(second), minPartitions="2")
    start_of_all = query.reader.initialOffset()
    found, _, _ = query.run(start_of_all)
    assert sorted(found) == ["a0", "a1", "a2"]
