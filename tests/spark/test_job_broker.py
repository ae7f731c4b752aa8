"""Messages from five protocols, through each job, from a real broker and back to it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import SparkSession

from pubsub.errors import ConfigurationError
from pubsub.pipeline.job_runs.job_errors import explain
from pubsub.pipeline.jobs import archive, derive, metrics, replay
from pubsub.pipeline.tables.spark import read
from tests.integration.broker import HOST, Broker, Start
from tests.spark.broker_runs import run
from tests.spark.http_brokers import PROTOCOLS, client_of, serve, stored_values, url_of
from tests.spark.http_brokers import read as source
from tests.spark.job_once import options
from tests.spark.messages import table_rows
from tests.spark.sink_frames import address, rows, write
from tests.spark.source_messages import wait_for_messages

COUNT = 300


def topic_of(protocol: str) -> str:
    """Return the topic of a protocol's messages."""
    return "cafe/3" if protocol == "cafe" else f"out/{protocol}"


@pytest.fixture
def filled(spark: SparkSession, broker: Broker, secret: Path) -> Broker:
    """Return a broker with the same number of messages from each protocol."""
    for protocol in PROTOCOLS:
        given = address(broker, secret, protocol)
        write(rows(spark, COUNT, topic_of(protocol)), str(given.pop("url")), **given)
    wait_for_messages(broker, COUNT * len(PROTOCOLS))
    return broker


def test_archive_and_replay(spark: SparkSession, filled: Broker, tmp_path: Path) -> None:
    url, to = url_of(filled), tmp_path / "archive"
    before = {name: stored_values(filled, name) for name in map(topic_of, PROTOCOLS)}
    assert run(archive, spark, "--url", url, "--to", to, "--once") == 0
    archived = table_rows(to)
    assert sorted(row["offset"] for row in archived) == list(range(COUNT * len(PROTOCOLS)))
    assert {row["protocol"] for row in archived} == set(PROTOCOLS)
    assert len({row["message_id"] for row in archived}) == len(archived)
    # From the position of the reader, the broker reports that nothing is left.
    assert run(archive, spark, "--url", url, "--to", to, "--once") == 0
    assert read(spark, str(to)).count() == len(archived)

    again = ["--from", to, "--url", url, "--prefix", "again/", "--checkpoint", tmp_path / "c"]
    for _ in range(2):
        # The second run has nothing left to do.
        assert run(replay, spark, *again) == 0
    for name, values in before.items():
        assert stored_values(filled, f"again/{name}") == values


def test_headers_and_senders_go_through_an_archive(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    url, to = url_of(broker), tmp_path / "archive"
    for number in range(2):
        frame = spark.sql(
            f"SELECT 'out' topic, X'0{number}' value, X'FE' key, "
            "array(struct('a' AS key, X'01' AS value), struct('b' AS key, X'' AS value)) headers"
        )
        write(frame, url)
        # Twice, so that the second batch meets an existing table.
        assert run(archive, spark, "--url", url, "--to", to, "--headers", "--once") == 0
    headers = [{"key": "a", "value": b"\x01"}, {"key": "b", "value": b""}]
    assert [row["headers"] for row in table_rows(to)] == [headers, headers]
    again = ["--from", to, "--url", url, "--prefix", "again/", "--checkpoint", tmp_path / "c"]
    assert run(replay, spark, *again) == 0
    found = source(spark, broker, subscribe="again/out", includeHeaders=True).collect()
    assert [(bytes(row.key), len(row.headers)) for row in found] == [(b"\xfe", 2)] * 2


def test_an_interrupted_replay_goes_on(spark: SparkSession, filled: Broker, tmp_path: Path) -> None:
    url, to = url_of(filled), tmp_path / "archive"
    topic = topic_of("nsd")
    run(archive, spark, "--url", url, "--to", to, "--once")
    again = ["--from", to, "--url", url, "--prefix", "again/", "--checkpoint", tmp_path / "c"]
    given = options("replay", *again, "--subscribe", topic, "--rate", "100")

    class Stopped(threading.Event):
        """Set while the second of three pieces waits for its time."""

        waits = 0

        def wait(self, timeout: float | None = None) -> bool:
            self.waits += 1
            if self.waits == 2:
                self.set()
            return self.is_set()

    assert replay.run(spark, given, Stopped()) == 0
    assert stored_values(filled, f"again/{topic}") == stored_values(filled, topic)[:100]
    given.rate = None
    assert replay.run(spark, given, threading.Event()) == 0
    assert stored_values(filled, f"again/{topic}") == stored_values(filled, topic)
    given.prefix = "other/"
    with pytest.raises(ConfigurationError, match="belongs to a replay with prefix 'again/'"):
        replay.run(spark, given, threading.Event())


def test_metrics_are_written_and_published(
    spark: SparkSession, filled: Broker, tmp_path: Path
) -> None:
    to = tmp_path / "metrics"
    more = ["--window", "1s", "--watermark", "0s", "--publish", "--once"]
    # A later message closes the windows of the earlier ones.
    (last,) = {row["timestamp"] for row in _last(filled)}
    _until_later(spark, filled, last)
    assert run(metrics, spark, "--url", url_of(filled), "--to", to, *more) == 0
    found = table_rows(to)
    counts: dict[str, int] = {}
    for row in found:
        counts[row["topic"]] = counts.get(row["topic"], 0) + row["messages"]
    assert {name: counts[name] for name in map(topic_of, PROTOCOLS)} == dict.fromkeys(
        map(topic_of, PROTOCOLS), COUNT
    )
    published = [json.loads(value) for value in stored_values(filled, "$SYS/pipeline/metrics")]
    assert sum(row["messages"] for row in published) == sum(row["messages"] for row in found)
    assert set(published[0]) == set(found[0]) - {"day"}


def _last(broker: Broker) -> list[dict[str, Any]]:
    client = client_of(broker)
    end = client.bounds().next
    return [row for part in client.read(end - 1) for row in part.to_pylist()]  # type: ignore[union-attr]


def _until_later(spark: SparkSession, broker: Broker, last: Any) -> None:
    """Publish until the broker's clock has advanced by more than two seconds."""
    pause = threading.Event()
    while (_last(broker)[0]["timestamp"] - last).total_seconds() < 2.5:
        pause.wait(0.5)
        write(rows(spark, 1, "tick"), url_of(broker))


def test_derive_to_a_topic_and_a_table(spark: SparkSession, filled: Broker, tmp_path: Path) -> None:
    url = url_of(filled)
    sql = tmp_path / "query.sql"
    sql.write_text(
        "SELECT topic AS source, cast(value AS string) AS text FROM messages\n"
        "WHERE protocol = 'nsd' AND cast(cast(value AS string) AS int) % 100 = 0;\n"
    )
    given = ["--url", url, "--sql", sql, "--once", "--subscribe-pattern", "out/.*"]
    assert run(derive, spark, *given, "--to", "topic:d", "--checkpoint", tmp_path / "c") == 0
    found = [json.loads(value) for value in stored_values(filled, "d")]
    assert sorted(row["text"] for row in found) == ["0", "100", "200"]
    assert {row["source"] for row in found} == {"out/nsd"}
    to = tmp_path / "table"
    assert run(derive, spark, *given, "--to", f"table:{to}", "--partition-by", "source") == 0
    assert sorted(row["text"] for row in table_rows(to)) == ["0", "100", "200"]


@pytest.mark.parametrize(
    ("to", "select", "chosen", "error"),
    [
        ("topic:errors", "value", [], "the job reads the topic 'errors'"),
        ("topic:errors", "value", ["--subscribe", "a,errors"], "the job reads the topic 'errors'"),
        ("topic:", "'errors' AS topic, value", [], "the job reads every topic"),
        (
            "topic:",
            "'errors' AS topic, value",
            ["--subscribe-pattern", "e.*|out/.*"],
            "the job reads the topic 'errors'",
        ),
    ],
)
def test_derive_refuses_to_feed_itself(
    spark: SparkSession,
    filled: Broker,
    tmp_path: Path,
    to: str,
    select: str,
    chosen: list[str],
    error: str,
) -> None:
    sql = tmp_path / "query.sql"
    sql.write_text(f"SELECT {select} FROM messages")
    given = ["--url", url_of(filled), "--sql", sql, "--once", "--to", to, *chosen]
    with pytest.raises((ConfigurationError, PySparkException)) as caught:
        run(derive, spark, *given, "--checkpoint", tmp_path / "c")
    cause = explain(caught.value)
    assert cause is not None
    assert error in cause
    assert "--allow-feedback" in cause
    assert stored_values(filled, "errors") == []


def test_derive_may_feed_itself_with_an_option(
    spark: SparkSession, filled: Broker, tmp_path: Path
) -> None:
    sql = tmp_path / "query.sql"
    sql.write_text("SELECT 'd' AS topic, value FROM messages WHERE topic = 'out/nsd'")
    given = ["--url", url_of(filled), "--sql", str(sql), "--once", "--to", "topic:"]
    given += ["--allow-feedback", "--checkpoint", str(tmp_path / "c")]
    assert run(derive, spark, *given) == 0
    assert stored_values(filled, "d") == stored_values(filled, "out/nsd")


def test_two_brokers_into_one_archive(spark: SparkSession, start: Start, tmp_path: Path) -> None:
    both = [serve(start, tmp_path / f"{n}.db", "--grant=*") for n in range(2)]
    for broker in both:
        write(rows(spark, 50), url_of(broker))
    to = tmp_path / "archive"
    url = ",".join(map(url_of, both))
    assert run(archive, spark, "--url", url, "--to", to, "--once") == 0
    found = sorted((row["partition"], row["offset"]) for row in table_rows(to))
    assert found == [(part, offset) for part in range(2) for offset in range(50)]
    again = ["--from", to, "--url", url_of(both[0]), "--prefix", "x/"]
    assert run(replay, spark, *again, "--checkpoint", tmp_path / "c") == 0
    assert len(stored_values(both[0], "x/out")) == 100


def test_a_backlog_of_large_messages_is_derived_archived_and_replayed(
    spark: SparkSession, broker: Broker, tmp_path: Path
) -> None:
    """60 MB: nothing has to be set, though a batch of the broker has 32 MiB at most."""
    url = url_of(broker)
    frame = spark.range(0, 120, 1, 1).selectExpr(
        "'in' topic", "concat(string(id), ':', repeat('x', 500000)) value"
    )
    write(frame, url, atomic="false")
    sql = tmp_path / "query.sql"
    sql.write_text("SELECT value FROM messages")
    given = ["--url", url, "--once", "--subscribe", "in"]
    derived = ["--sql", sql, "--to", "topic:d", "--checkpoint", tmp_path / "d"]
    assert run(derive, spark, *given, *derived) == 0
    assert stored_values(broker, "d") == stored_values(broker, "in")
    to = tmp_path / "archive"
    assert run(archive, spark, *given, "--to", to, "--max-bytes", "20m") == 0
    again = ["--from", to, "--url", url, "--prefix", "again/", "--checkpoint", tmp_path / "r"]
    assert run(replay, spark, *again) == 0
    assert stored_values(broker, "again/in") == stored_values(broker, "in")


def test_a_broker_that_forgets_parts(
    spark: SparkSession,
    start: Start,
    secret: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As if it was restarted before each commit: the batch is run again, but not for ever."""
    broker = serve(
        start, tmp_path / "history", f"--secret-file={secret}", "--admin-stage-seconds=0"
    )
    url = url_of(broker)
    write(rows(spark, 10), f"nsd://{HOST}:{broker.port('nsd')}")
    sql = tmp_path / "query.sql"
    sql.write_text("SELECT value FROM messages")
    given = ["--url", url, "--once", "--subscribe", "out", "--sql", str(sql), "--to", "topic:d"]
    with pytest.raises(StreamingQueryException, match="no longer has the parts of batch 0"):
        run(derive, spark, *given, "--checkpoint", tmp_path / "c")
    assert capsys.readouterr().err.count("the batch is run again") == 2
    assert stored_values(broker, "d") == []
