"""Tokens appear in no plan, error, checkpoint or event log of Spark."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.integration.broker import HOST, Broker, Start
from tests.integration.fast_client import make_token
from tests.spark.http_brokers import read, run_once, serve, stored_values, stream, url_of
from tests.spark.sink_frames import rows, write
from tests.spark.source_messages import wait_for_messages
from tests.spark.token_events import events, everything

TOPIC = "keyed"


@pytest.fixture
def closed(start: Start, tmp_path: Path, secret: Path) -> Broker:
    """Return a broker that requires a token for topics with queue keys."""
    return serve(start, tmp_path / "history", f"--secret-file={secret}")


def test_tokens_appear_nowhere(
    spark: SparkSession,
    closed: Broker,
    secret: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    token = make_token(secret).decode()
    write(rows(spark, 100, TOPIC), f"fast://{HOST}:{closed.port('fast')}", token=token)
    wait_for_messages(closed, 100)
    write(rows(spark, 100, TOPIC), url_of(closed), token=token)
    frame = read(spark, closed, subscribe=TOPIC, token=token)
    assert frame.count() == 200
    frame.explain("extended")
    frame.explain("formatted")
    streamed = stream(spark, closed, subscribe=TOPIC, token=token)
    run_once(streamed, tmp_path / "out")
    run_once(
        streamed.select("value"), tmp_path / "back", "pubsub", url=url_of(closed), topic=TOPIC,
        token=token,
    )  # fmt: skip
    shown = capfd.readouterr()
    plans = repr(frame._jdf.queryExecution().toString()) + repr(streamed)
    for text in (shown.out, shown.err, plans):
        assert token not in text
    written = events(spark)
    # The event log has the plan of the query.
    assert b"BatchScan pubsub" in written
    assert b"BatchScan pubsub" in shown.out.encode()
    for data in (
        written,
        everything(tmp_path / "out-checkpoint"),
        everything(tmp_path / "back-checkpoint"),
    ):
        assert token.encode() not in data


def test_tokens_do_not_appear_in_errors(
    spark: SparkSession, closed: Broker, secret: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Invalid tokens, in every place that accepts one."""
    forged = make_token(secret).decode()[:-4] + "AAAA"
    fast = f"fast://{HOST}:{closed.port('fast')}"
    messages = []
    write(rows(spark, 10, "open"), url_of(closed))
    for url in (url_of(closed), fast):
        with pytest.raises(Exception, match=r"(?i)bad.token") as caught:
            write(rows(spark, 10, TOPIC), url, token=forged)
        messages.append(str(caught.value))
    with pytest.raises(Exception, match=r"(?i)bad.token") as caught:
        read(spark, closed, subscribe=TOPIC, token=forged).count()
    messages.append(str(caught.value))
    with pytest.raises(Exception, match="did you mean token") as caught:
        read(spark, closed, tokn=forged).count()
    messages.append(str(caught.value))
    with pytest.raises(Exception, match="a character that tokens cannot have") as caught:
        read(spark, closed, token=f"{forged} x").count()
    messages.append(str(caught.value))
    shown = capfd.readouterr()
    for text in (*messages, shown.out, shown.err, closed.output):
        assert forged not in text
    assert forged.encode() not in events(spark)


def test_a_closed_topic_requires_a_token(
    spark: SparkSession, closed: Broker, secret: Path, tmp_path: Path
) -> None:
    token = make_token(secret).decode()
    write(rows(spark, 10, TOPIC), f"fast://{HOST}:{closed.port('fast')}", token=token)
    wait_for_messages(closed, 10)
    assert read(spark, closed).count() == 0
    assert stored_values(closed) == []
    with pytest.raises(Exception, match="not-authorized"):
        read(spark, closed, subscribe=TOPIC).count()
    with pytest.raises(Exception, match="not-authorized"):
        write(rows(spark, 1, TOPIC), url_of(closed))
    assert read(spark, closed, token=token).count() == 10


def test_a_token_in_a_file(
    spark: SparkSession, closed: Broker, secret: Path, tmp_path: Path
) -> None:
    """A plan has the name of the file only, and the token in it can be renewed."""
    path = tmp_path / "token"
    path.write_bytes(make_token(secret))
    write(rows(spark, 10, TOPIC), f"fast://{HOST}:{closed.port('fast')}", tokenFile=str(path))
    wait_for_messages(closed, 10)
    frame = read(spark, closed, subscribe=TOPIC, tokenFile=str(path))
    assert frame.count() == 10
    path.write_text("a.b.c")
    with pytest.raises(Exception, match=r"(?i)bad.token"):
        read(spark, closed, subscribe=TOPIC, tokenFile=str(path)).count()
    assert not re.search(r"eyJ[\w-]+\.eyJ", events(spark).decode(errors="replace"))


@pytest.mark.parametrize("side", ["source", "sink"])
def test_a_wrong_token_is_an_error_of_an_idle_stream(
    spark: SparkSession, closed: Broker, secret: Path, tmp_path: Path, side: str
) -> None:
    right = make_token(secret).decode()
    forged = right[:-4] + "AAAA"
    tokens = {"source": right, "sink": right, side: forged}
    frame = stream(spark, closed, subscribe=TOPIC, token=tokens["source"]).select("value")
    writer = frame.writeStream.format("pubsub").options(
        url=url_of(closed), topic="out", token=tokens["sink"]
    )
    with pytest.raises(Exception, match=f"{side}: the broker at .*: bad-token"):
        writer.option("checkpointLocation", str(tmp_path / "c")).start().awaitTermination(60)
