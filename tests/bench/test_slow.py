"""The benchmark of slow subscribers: it detects losses, and passes with the broker."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.bench import BenchError, slow
from tests.bench.batches import build_batches
from tests.bench.measure import Accounting
from tests.bench.plan import RunPlan, Topology
from tests.bench.report import Report
from tests.bench.slow import Side, SlowRound, measure_slow
from tests.bench.slow_clients import Follower, SlowAccounting
from tests.bench.wires.cafe import CafeWire

PLAN = RunPlan(Topology(1, 1), payload=64, per_batch=5, window=2)
FRAME = CafeWire().delivery(0, 64)
CYCLE = b"".join(build_batches(FRAME, 0, PLAN))
CLEAN = Accounting(1, 1, 0, 0, 0)


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, Follower]]:
    """The broker's end of a connection, and the follower at the other."""
    broker, sock = socket.socketpair()
    with broker, sock:
        yield broker, Follower(sock, FRAME)


def numbers(count: int) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    return np.arange(count, dtype=np.uint64)


def test_a_follower_counts_messages_in_pieces(ends: tuple[socket.socket, Follower]) -> None:
    broker, follower = ends
    for start in range(0, len(CYCLE), 100):
        broker.sendall(CYCLE[start : start + 100])
        while follower.read(33):
            pass
    assert follower.received == PLAN.per_batch * PLAN.cycle
    assert follower.misplaced(numbers(follower.received)) == 0
    assert follower.read(1) == 0


def test_a_gap_is_found(ends: tuple[socket.socket, Follower]) -> None:
    broker, follower = ends
    broker.sendall(CYCLE[: 3 * FRAME.size] + CYCLE[4 * FRAME.size : 6 * FRAME.size])
    follower.read(10_000)
    assert follower.received == 5
    assert follower.misplaced(numbers(6)) == 2


def test_a_closed_connection_is_an_error(ends: tuple[socket.socket, Follower]) -> None:
    broker, follower = ends
    broker.close()
    with pytest.raises(BenchError, match="closed the connection of a slow subscriber"):
        follower.read(1)


def test_a_loss_makes_the_report_fail() -> None:
    alone = Side(100.0, 200.0, 10.0, 20.0, (CLEAN,))
    again = replace(alone, throughput=102.0)
    good = SlowRound(alone, replace(alone, throughput=95.0, slow=SlowAccounting(0, 0, 7)), again)
    assert Report(slow=[good]).clean
    assert "| 0.95 (1.02) |" in Report(slow=[good]).markdown()
    for lost in (SlowAccounting(1, 0, 7), SlowAccounting(0, 1, 7)):
        assert not Report(slow=[SlowRound(alone, replace(alone, slow=lost), again)]).clean


def test_it_passes_with_the_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow, "ROUNDS", 1)
    monkeypatch.setattr(slow, "TOPOLOGY", Topology(1, 10))
    core = min(os.sched_getaffinity(0))
    twistd = Path(sys.executable).with_name("twistd")
    (one,) = measure_slow(twistd, [], (core, core), 0.5)
    assert one.clean
    assert one.beside.slow is not None
    assert one.beside.slow.returns > 0
