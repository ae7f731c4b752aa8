"""The Spark sink at two brokers that share a history, called as Spark calls it."""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import threading
from pathlib import Path

import nats
import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, StringType, StructField, StructType

from pubsub.errors import ConfigurationError
from pubsub.pipeline.histories.history import PartsLost, Unreachable
from pubsub.pipeline.histories.retry import Retry
from pubsub.pipeline.jobs.job_publisher import JobPublisher
from pubsub.pipeline.publishing import shared_sink
from pubsub.pipeline.sink import BrokerSink, TaskResult, make_sink
from tests.integration.broker import HOST, Start, listen
from tests.integration.nats_server import NatsServer
from tests.integration.node_urls import url
from tests.integration.places import Place, settle, two_places
from tests.unit.raising import raised

KILLS = int(os.environ.get("PUBSUB_KILLS", "8"))
SCHEMA = StructType([StructField("topic", StringType()), StructField("value", BinaryType())])


@pytest.fixture
def places(start: Start, server: NatsServer, tmp_path: Path) -> tuple[Place, Place]:
    return two_places(start, server, tmp_path)


def sink(*places: Place) -> BrokerSink:
    return make_sink({"url": ",".join(map(url, places))}, SCHEMA, False, streaming=True)


def write(target: BrokerSink, batch: int, *values: bytes) -> list[TaskResult | None]:
    """Stage a row in each of some tasks; return their results."""
    copy = pickle.loads(pickle.dumps(target))
    rows = [pa.RecordBatch.from_pydict({"topic": ["t"], "value": [value]}) for value in values]
    return [copy.write(iter([one]), "query", batch, "run") for one in rows]


def values(place: Place) -> list[str]:
    return sorted(body for body, _ in place.messages())


def test_each_batch_once_at_any_broker(places: tuple[Place, Place]) -> None:
    first, second = places
    target = sink(first, second)
    results = write(target, 0, b"1", b"2")
    target.commit(results, 0)
    settle(first, second)
    assert values(second) == ["1", "2"]
    # Spark does not know that the batch is done, and runs it again. Its broker is away.
    first.broker.kill()
    target.commit(results, 0)
    again = sink(second, first)
    again.commit(write(again, 0, b"1", b"2"), 0)
    again.commit(write(again, 1, b"3"), 1)
    assert values(second) == ["1", "2", "3"]
    first.begin()
    settle(first, second)
    assert values(first) == ["1", "2", "3"]
    # The next one, where the last one was not.
    third = sink(first, second)
    third.commit(write(third, 1, b"3"), 1)
    third.commit(write(third, 2, b"4"), 2)
    settle(first, second)
    assert values(second) == ["1", "2", "3", "4"]


def test_a_broker_is_killed_between_stage_and_commit(places: tuple[Place, Place]) -> None:
    first, second = places
    target = sink(first, second)
    results = write(target, 0, b"1", b"2")
    first.broker.kill()
    raised(PartsLost, target.commit, results, 0)
    target.abort(results, 0)
    # The query is started again.
    target.commit(write(target, 0, b"1", b"2"), 0)
    assert values(second) == ["1", "2"]


def test_the_shared_state_is_lost(places: tuple[Place, Place], server: NatsServer) -> None:
    first, second = places
    target = sink(first, second)
    target.commit(write(target, 0, b"1"), 0)
    settle(first, second)
    asyncio.run(remove_state(server))
    # At once, before the brokers have noticed it.
    again = sink(second, first)
    again.commit(write(again, 0, b"1"), 0)
    again.commit(write(again, 1, b"2"), 1)
    settle(first, second)
    target.commit(write(target, 1, b"2"), 1)
    for place in places:
        assert values(place) == ["1", "2"]


async def remove_state(server: NatsServer) -> None:
    client = await nats.connect(server.url)
    await client.jetstream().delete_stream("KV_pubsub")
    await client.close()


def test_a_job_that_publishes(places: tuple[Place, Place]) -> None:
    first, second = places
    options = argparse.Namespace(url=f"{url(first)},{url(second)}", token_file=None)
    publisher = JobPublisher(options, "t")
    assert publisher.batch_bytes() > 0
    publisher.publish([b"1", b"2"], "job", 0)
    settle(first, second)
    first.broker.kill()
    publisher.publish([b"1", b"2"], "job", 0)
    publisher.publish([b"3"], "job", 1)
    publisher.publish([], "job", 2)
    assert values(second) == ["1", "2", "3"]


def test_brokers_with_histories_of_their_own(start: Start, tmp_path: Path) -> None:
    brokers = [start(*listen("http"), f"--store=log:{tmp_path / name}") for name in "ab"]
    urls = ",".join(f"http://{HOST}:{one.port('http')}" for one in brokers)
    error = raised(ConfigurationError, make_sink, {"url": urls}, SCHEMA, False)
    assert "share a history" in str(error)
    options = argparse.Namespace(url=urls, token_file=None)
    assert "share a history" in str(raised(ConfigurationError, JobPublisher, options, "t"))


def test_a_broker_is_killed_while_it_commits(
    places: tuple[Place, Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At another moment of the commit each time; the batch is run again until it is done."""
    monkeypatch.setattr(shared_sink, "Retry", lambda seconds=0.0: Retry(1.0 if seconds else 6.0))
    first, second = places
    for batch in range(KILLS):
        killer = threading.Timer(batch * 0.003, first.broker.kill)
        target = sink(first, second)
        results = write(target, batch, b"%d" % batch, b"%d.5" % batch)
        killer.start()
        done = committed(target, results, batch)
        killer.join()
        if batch % 2 and not done:
            # At the other broker, as far as that can know what became of it.
            results = write(target, batch, b"%d" % batch, b"%d.5" % batch)
            done = committed(target, results, batch)
        first.begin()
        settle(first, second)
        # Also if it is done: Spark may be killed before it notes that.
        target = sink(second, first)
        target.commit(write(target, batch, b"%d" % batch, b"%d.5" % batch), batch)
    settle(first, second)
    wanted = [f"{batch}{end}" for batch in range(KILLS) for end in ("", ".5")]
    for place in places:
        assert values(place) == sorted(wanted)


def committed(target: BrokerSink, results: list[TaskResult | None], batch: int) -> bool:
    """Commit a batch; return whether it is known to be published."""
    try:
        target.commit(results, batch)
    except (PartsLost, Unreachable):
        return False
    return True
