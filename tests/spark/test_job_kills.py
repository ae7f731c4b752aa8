"""Jobs that publish are killed before and after the commit of a batch, and publish it once."""

from __future__ import annotations

import signal
import threading
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from pubsub.pipeline.tables.spark import TableTarget, append
from tests.integration.broker import Broker, Start
from tests.spark.commands import PUBSUB, Command
from tests.spark.http_brokers import serve, stored_values, url_of
from tests.spark.relay import Relay
from tests.spark.stream_rows import numbers, send

COUNT = 30
# Before the broker has the request, and before the job has the reply.
KILL_POINTS = (("/v1/commit", False), ("/v1/commit", True))


class Lives:
    """Runs a command through a relay that kills it, and then to its end."""

    def __init__(self, broker: Broker) -> None:
        self._point: tuple[str, bool] | None = None
        self._started = threading.Event()
        self._command: Command | None = None
        self.relay = Relay(url_of(broker), self._watch)

    def _watch(self, path: str, answered: bool) -> bool:
        if (path, answered) != self._point:
            return False
        self._point = None
        assert self._started.wait(30)
        assert self._command is not None
        self._command.signal_group(signal.SIGKILL)
        return True

    def run(self, *arguments: object) -> None:
        """Run the command once for each kill point, and once more."""
        try:
            for point in (*KILL_POINTS, None):
                self._started.clear()
                self._point = point
                self._command = Command(*arguments, program=(PUBSUB, "pipeline"))
                self._started.set()
                code, _out, err = self._command.finish()
                assert code == (0 if point is None else -signal.SIGKILL), err
                assert self._point is None
        finally:
            self.relay.stop()


@pytest.fixture
def broker(start: Start, tmp_path: Path) -> Broker:
    """Return a broker with cafe only."""
    return serve(start, tmp_path / "history")


def archive(path: Path) -> None:
    """Write an archive of messages, as the job does."""
    when = datetime(2026, 3, 1, tzinfo=UTC)
    rows = pa.table(
        {
            "topic": pa.array(["orders"] * COUNT),
            "partition": pa.array([0] * COUNT, pa.int32()),
            "offset": pa.array(range(COUNT), pa.int64()),
            "timestamp": pa.array([when] * COUNT, pa.timestamp("us", tz="UTC")),
            "key": pa.nulls(COUNT, pa.binary()),
            "value": pa.array(numbers(0, COUNT)),
            "day": pa.array([date(2026, 3, 1)] * COUNT),
        }
    )
    append(TableTarget(str(path), ("topic", "day")), rows, "q", 0)


def test_a_replay(broker: Broker, tmp_path: Path) -> None:
    archive(tmp_path / "archive")
    lives = Lives(broker)
    # Each message is some hundred bytes with its columns, so that there are several pieces.
    given = ["--from", tmp_path / "archive", "--checkpoint", tmp_path / "c", "--max-bytes", "1k"]
    lives.run("replay", "--url", lives.relay.url, *given)
    assert stored_values(broker, "orders") == numbers(0, COUNT)


def test_derived_messages(broker: Broker, tmp_path: Path) -> None:
    send(broker, *numbers(0, COUNT))
    sql = tmp_path / "sql"
    sql.write_text("SELECT value FROM messages")
    lives = Lives(broker)
    given = ["--sql", sql, "--to", "topic:copy", "--subscribe", "cafe/1", "--once"]
    given += ["--max-rows", "10", "--checkpoint", tmp_path / "c"]
    lives.run("derive", "--url", lives.relay.url, *given)
    assert stored_values(broker, "copy") == numbers(0, COUNT)
