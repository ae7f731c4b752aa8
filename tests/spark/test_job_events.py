"""The jobs on events: sessions, audit and dead letters."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import SparkSession

from pubsub.pipeline.jobs import audit, dead_letters, job_publisher, sessions
from tests.spark.job_once import run
from tests.spark.messages import EVENTS, Feed, at, event, frame, table_rows


def test_a_session_is_its_connect_and_its_disconnect(spark: SparkSession, tmp_path: Path) -> None:
    feed, to = Feed(spark, tmp_path / "feed", EVENTS), tmp_path / "sessions"
    end = {"messages": 5, "bytes": 50, "reason": "closed"}
    feed.put([event(0, "connect", session="a"), event(1, "connect", session="b")])
    feed.put([event(2, "disconnect", session="a", seconds=2.5, **end)])
    feed.put([event(3, "disconnect", session="b", seconds=60, **end)])
    feed.put([event(4, "disconnect", session="x", seconds=61, **end)])
    feed.put([event(5, "connect", session="y", seconds=70), event(6, "refused", seconds=71)])
    assert run(sessions, spark, feed.stream, "--to", to, "--longest", "1h") == 0
    rows = {row["session"]: row for row in table_rows(to)}
    assert set(rows) == {"a", "b"}
    first = rows["a"]
    assert (first["started"], first["ended"], first["seconds"]) == (at(0), at(2.5), 2.5)
    assert (first["messages"], first["bytes"], first["reason"]) == (5, 50, "closed")
    assert (first["protocol"], first["listener"], first["client"]) == ("cafe", "tcp:7070", "alice")
    assert rows["b"]["seconds"] == 59


def test_half_a_session_is_written_when_the_other_half_is_overdue(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, to = Feed(spark, tmp_path / "feed", EVENTS), tmp_path / "sessions"
    feed.put([event(0, "disconnect", session="old", reason="closed")])
    feed.put([event(1, "connect", session="lost")])
    feed.put([event(2, "connect", session="later", seconds=7200)])
    feed.put([event(3, "connect", session="even later", seconds=7300)])
    assert run(sessions, spark, feed.stream, "--to", to, "--longest", "1h") == 0
    rows = {row["session"]: row for row in table_rows(to)}
    assert set(rows) == {"old", "lost"}
    assert (rows["old"]["started"], rows["old"]["ended"]) == (None, at(0))
    assert (rows["lost"]["started"], rows["lost"]["ended"]) == (at(1), None)
    assert rows["lost"]["seconds"] is None
    assert rows["lost"]["client"] == "alice"


def test_audit_counts_refusals(spark: SparkSession) -> None:
    rows = [event(n, "refused", topic="t", reason="wrong-key", seconds=n) for n in range(5)]
    rows += [event(5, "refused", topic="t", reason="wrong-key", seconds=61)]
    rows += [event(6, "evicted", client="bob", reason="slow", seconds=3, messages=70)]
    rows += [event(7, "connect", seconds=4)]
    events = audit.relevant_events(frame(spark, rows, EVENTS), 60)
    found = audit.rows(events).toArrow().cast(audit.SCHEMA).to_pylist()
    by = {(row["event"], row["client"], row["window_start"]): row for row in found}
    assert len(found) == len(by) == 3
    first = by["refused", "alice", at(0)]
    assert (first["events"], first["topic"], first["reason"]) == (5, "t", "wrong-key")
    assert (first["first"], first["last"]) == (at(0), at(4))
    assert by["refused", "alice", at(60)]["events"] == 1
    assert by["evicted", "bob", at(0)]["times"] == 70


def test_an_alert_is_sent_once_when_the_threshold_is_reached(
    spark: SparkSession, tmp_path: Path
) -> None:
    feed, to = Feed(spark, tmp_path / "feed", EVENTS), tmp_path / "audit"
    sent: list[tuple[str, dict[str, object]]] = []

    def send(_self: object, messages: list[pa.RecordBatch], _query: str, _batch: int) -> None:
        for batch in messages:
            rows = zip(batch["topic"].to_pylist(), batch["value"].to_pylist(), strict=True)
            sent.extend((topic, json.loads(value)) for topic, value in rows)

    refused = {"topic": "t", "reason": "bad-token"}
    with patch.object(job_publisher.JobPublisher, "send", send):
        for first, count in ((0, 3), (3, 3), (6, 1), (7, 9)):
            rows = [event(n, "refused", **refused) for n in range(first, first + count)]
            feed.put([*rows, event(first, "rotated", client="bob")])
            # One run for each batch, as the table holds the counts so far.
            run(audit, spark, feed.stream, "--to", to, "--threshold", "5")
    ((topic, alert),) = sent
    assert topic == "$SYS/pipeline/alerts"
    assert (alert["event"], alert["client"], alert["times"]) == ("refused", "alice", 6)
    assert (alert["reason"], alert["threshold"]) == ("bad-token", 5)
    assert sum(row["events"] for row in table_rows(to) if row["event"] == "refused") == 16


def test_dead_letters_are_decoded_as_far_as_they_go(spark: SparkSession, tmp_path: Path) -> None:
    feed, to = Feed(spark, tmp_path / "feed", EVENTS), tmp_path / "letters"
    short = bytes.fromhex("feca0103000000070568")
    feed.put(
        [
            event(0, "malformed", frame=short, reason="malformed-handshake"),
            event(1, "malformed", protocol="nsd", frame=b'{"_class":'),
            event(2, "malformed", protocol="else", frame=None),
            event(3, "refused"),
        ]
    )
    assert run(dead_letters, spark, feed.stream, "--to", to) == 0
    rows = {row["offset"]: row for row in table_rows(to)}
    assert set(rows) == {0, 1, 2}
    assert (rows[0]["frame"], rows[0]["frame_type"]) == (short, "HandshakePub")
    assert json.loads(rows[0]["fields"]) == {"opcode": 1, "length": 3, "channel": 7}
    assert (rows[0]["understood"], rows[0]["reason"]) == (8, "malformed-handshake")
    assert rows[0]["fault"] == "client_id: 5 bytes at byte 9 of 10"
    assert rows[1]["fault"].startswith("not JSON: ")
    assert rows[2]["fault"] == "no protocol 'else' is known"
