"""The jobs on events of a real broker, compared with the incidents of its clients."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from pubsub.client.history_client import HistoryClient
from pubsub.pipeline.jobs import audit, dead_letters, sessions
from tests.integration.broker import Broker, brokers
from tests.integration.fast_client import make_secret, make_token
from tests.spark.broker_incidents import FORGED, MALFORMED, PAYLOADS, BrokerRun, run_incidents
from tests.spark.broker_runs import run
from tests.spark.http_brokers import serve, url_of
from tests.spark.messages import table_rows

ALERTS = "$SYS/pipeline/alerts"


@pytest.fixture(scope="module")
def finished_run(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[BrokerRun, Broker, Path]]:
    """Yield a finished run, a broker with its history, and a token that opens the events."""
    directory = tmp_path_factory.mktemp("events")
    path, secret = directory / "history", make_secret(directory / "secret")
    token = directory / "token"
    token.write_bytes(make_token(secret, permission="admin"))
    with brokers(directory) as start:
        life = run_incidents(start, path, secret)
        yield life, serve(start, path, f"--secret-file={secret}"), token


def job_rows(
    job: Any, spark: SparkSession, broker: Broker, token: Path, *more: object
) -> list[Any]:
    """Return the rows of the table that a job makes of the events."""
    to = token.parent / job.NAME
    given = ["--url", url_of(broker), "--token-file", token, "--to", to, "--once", *more]
    assert run(job, spark, *given) == 0
    return table_rows(to)


def test_sessions(spark: SparkSession, finished_run: tuple[BrokerRun, Broker, Path]) -> None:
    life, broker, token = finished_run
    rows = job_rows(sessions, spark, broker, token)
    assert len({row["session"] for row in rows}) == len(rows)
    for row in rows:
        assert life.began <= row["started"] <= row["ended"] <= life.ended
        assert row["seconds"] == (row["ended"] - row["started"]).total_seconds()
    published = [row for row in rows if row["reason"] == "left" and row["messages"] == 3]
    assert Counter(row["protocol"] for row in published) == dict.fromkeys(MALFORMED, 1)
    assert {row["bytes"] for row in published} == {sum(map(len, PAYLOADS))}
    (faithful,) = [row for row in rows if row["client"].startswith("faithful@")]
    assert (faithful["reason"], faithful["messages"], faithful["bytes"]) == ("stopped", 1, 1)
    (stuck,) = [row for row in rows if row["client"].startswith("stuck@")]
    assert (stuck["reason"].split(":")[0], stuck["messages"]) == ("slow consumer", 0)
    # One for each publisher and each sender of malformed frames; ada, the forgers, one of nsd and
    # one of HTTP; two of the flood; the last.
    assert len(rows) == 5 + 5 + 1 + FORGED + 2 + 2 + 1


def test_audit(spark: SparkSession, finished_run: tuple[BrokerRun, Broker, Path]) -> None:
    life, broker, token = finished_run
    # A window longer than the test.
    given = ["--window", "365d", "--threshold", FORGED]
    rows = job_rows(audit, spark, broker, token, *given)
    times: Counter[tuple[str, str | None]] = Counter()
    for row in rows:
        times[row["event"], row["reason"]] += row["times"]
        assert life.began <= row["first"] <= row["last"] <= life.ended
        # A client that reconnects from another port is the same.
        assert row["client"].endswith("127.0.0.1")
    assert times["refused", "bad-token"] == FORGED
    assert times["refused", "wrong-queue-key"] == 1
    assert times["refused", "not-authorized"] == 2
    assert sum(count for (event, _), count in times.items() if event == "dropped") == life.dropped
    assert sum(count for (event, _), count in times.items() if event == "rotated") == 1
    (evicted,) = [row for row in rows if row["event"] == "evicted"]
    assert (evicted["client"], evicted["protocol"]) == ("stuck@127.0.0.1", "cafe")
    malformed = Counter(row["protocol"] for row in rows if row["event"] == "malformed")
    assert malformed == dict.fromkeys(MALFORMED, 1)
    history = HistoryClient(url_of(broker), token.read_text())
    parts: Iterable[Any] = history.read(0, topics=[ALERTS])
    alerts = [json.loads(value) for part in parts for value in part["value"].to_pylist()]
    (forged,) = [alert for alert in alerts if alert["reason"] == "bad-token"]
    assert (forged["client"], forged["topic"], forged["times"]) == ("127.0.0.1", "news", FORGED)


def test_dead_letters(spark: SparkSession, finished_run: tuple[BrokerRun, Broker, Path]) -> None:
    _, broker, token = finished_run
    rows = {row["protocol"]: row for row in job_rows(dead_letters, spark, broker, token)}
    # Events of fast show no bytes, as they could contain a token.
    shown = {**MALFORMED, "fast": None}
    assert {name: row["frame"] for name, row in rows.items()} == shown
    assert rows["cafe"]["frame_type"] == "HandshakePub"
    assert rows["cafe"]["fault"] == "client_id: 5 bytes at byte 9 of 10"
    assert rows["nsd"]["fault"].startswith("not JSON: ")
    assert rows["rheos"]["fault"] == "magic 0x00 instead of 0xfa"
    assert rows["spot"]["reason"] == "not-zmtp"
    assert rows["fast"]["fault"] == "no bytes are shown"
