"""Jobs on a standalone cluster, from one broker and back to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.broker import Broker, Start
from tests.spark.commands import pipeline
from tests.spark.http_brokers import serve, stored_values, url_of
from tests.spark.messages import table_rows
from tests.spark.standalone import WORKERS, standalone
from tests.spark.stream_rows import numbers, send

COUNT = 2000


@pytest.fixture
def broker(start: Start, tmp_path: Path) -> Broker:
    """Return a broker with cafe only."""
    return serve(start, tmp_path / "history")


def test_archive_and_sink_on_two_workers(broker: Broker, tmp_path: Path) -> None:
    send(broker, *numbers(0, COUNT))
    sql, to = tmp_path / "sql", tmp_path / "archive"
    sql.write_text("SELECT value FROM messages")
    with standalone(tmp_path) as master:
        given = ["--url", url_of(broker), "--once", "--subscribe", "cafe/1", "--master", master]
        for name, value in (
            ("spark.driver.host", "127.0.0.1"),
            ("spark.driver.bindAddress", "127.0.0.1"),
            ("spark.executor.memory", "512m"),
            ("spark.ui.enabled", "false"),
        ):
            given += ["--conf", f"{name}={value}"]
        code, _out, err = pipeline("archive", *given, "--to", to)
        assert code == 0, err
        sink = ["--sql", sql, "--to", "topic:copy", "--checkpoint", tmp_path / "c"]
        code, _out, err = pipeline("derive", *given, *sink)
        assert code == 0, err
    assert sorted(row["offset"] for row in table_rows(to)) == list(range(COUNT))
    assert sorted(stored_values(broker, "copy")) == sorted(numbers(0, COUNT))
    # The master gave both jobs executors on both workers.
    for number in range(WORKERS):
        assert len(list((tmp_path / f"worker{number}").glob("app-*"))) == 2
