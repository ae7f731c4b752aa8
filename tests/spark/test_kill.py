"""A query whose processes are killed repeatedly loses and duplicates nothing.

Each life of the query ends at one of four points: while a task reads, after rows are staged, before
the commit, and after the broker has committed and before Spark knows. From the second half of the
lives on, the query reads another topic too. PUBSUB_KILLS is the total number of lives;
`make test-long` has more.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from tests.integration.broker import TIMEOUT, Broker, Start, environment
from tests.spark.copy_topic import BATCH_MESSAGES, COPY_TOPIC
from tests.spark.http_brokers import serve, stored_values, url_of
from tests.spark.relay import Relay
from tests.spark.stream_rows import numbers, send

KILLS = int(os.environ.get("PUBSUB_KILLS", "8"))
# Two chains of lives in parallel, as a life mostly waits for the start of Java.
CHAINS = 2
KILL_POINTS = (
    ("/v1/history", False),
    ("/v1/stage", True),
    ("/v1/commit", False),
    ("/v1/commit", True),
)
# Enough for one batch and not for two.
MAX_STAGED = "24K"
ROOT = Path(__file__).parents[2]


class Chain(threading.Thread):
    """The lives of one query, one after another, on a broker of its own."""

    def __init__(self, broker: Broker, directory: Path, lives: int) -> None:
        super().__init__()
        self._broker = broker
        self._directory = directory
        self._lives = lives
        self._lock = threading.Lock()
        self._kill_point: tuple[str, bool] | None = None
        # Some batches succeed before the kill.
        self._skip = 0
        self._process: subprocess.Popen[bytes] | None = None
        self.killed: list[tuple[str, bool]] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        relay = Relay(url_of(self._broker), self._watch)
        try:
            for life in range(self._lives):
                self._kill_point, self._skip = KILL_POINTS[life % len(KILL_POINTS)], life % 2
                topics = "cafe/1" if life < self._lives // 2 else "cafe/1,cafe/2"
                assert self._run_life(relay, topics) == -signal.SIGKILL, self._log()
            self._kill_point = None
            assert self._run_life(relay, "cafe/1,cafe/2") == 0, self._log()
        except BaseException as failure:
            self.failure = failure
        finally:
            relay.stop()

    def _run_life(self, relay: Relay, topics: str) -> int:
        with (self._directory / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.copy_topic", relay.url, relay.url,
                 str(self._directory / "checkpoint"), topics],
                cwd=ROOT,
                env=environment(),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )  # fmt: skip
            with self._lock:
                self._process = process
            try:
                return process.wait(2 * TIMEOUT)
            finally:
                self._end(process)

    def _log(self) -> str:
        return (self._directory / "log").read_text(errors="replace")[-3000:]

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        """Kill every process of a life; Java and the Python workers are in its group."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        process.wait()

    def _watch(self, path: str, answered: bool) -> bool:
        with self._lock:
            if (path, answered) != self._kill_point:
                return False
            if self._skip:
                self._skip -= 1
                return False
            self.killed.append(self._kill_point)
            self._kill_point = None
            assert self._process is not None
            self._end(self._process)
            return True


def test_killed_again_and_again(start: Start, tmp_path: Path) -> None:
    lives = -(-KILLS // CHAINS)
    # Four lives complete two batches.
    sent = numbers(0, (lives // 2 + 3) * BATCH_MESSAGES)
    middle = len(sent) // 2
    chains = []
    for number in range(CHAINS):
        directory = tmp_path / str(number)
        directory.mkdir()
        # Parts that one life has staged must not block those of the next.
        broker = serve(start, directory / "history", f"--admin-max-batch={MAX_STAGED}")
        send(broker, *sent[:middle], channel=1)
        send(broker, *sent[middle:], channel=2)
        chains.append((broker, Chain(broker, directory, lives)))
    for _, chain in chains:
        chain.start()
    for _, chain in chains:
        chain.join()
    for broker, chain in chains:
        assert chain.failure is None, chain.failure
        assert chain.killed == [KILL_POINTS[life % len(KILL_POINTS)] for life in range(lives)]
        assert sorted(stored_values(broker, COPY_TOPIC)) == sorted(sent)
