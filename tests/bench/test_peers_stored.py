"""Stored messages beside other brokers: each log, the messages read again, the tables."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench import BenchError
from tests.bench.peers import stored, storing
from tests.bench.peers.kept import Figures
from tests.bench.peers.logs import Marked, log_contenders, marked
from tests.bench.peers.rounds import Results
from tests.bench.rows import Row
from tests.bench.traffic_rows import IN_TURN


def test_the_tables_of_stored_messages() -> None:
    results: Results[Figures] = Results()
    results.runs["one", "64 B"].append({"rate": 2e6, "cpu": 2.5e6, "read": 5e5, "read_cpu": 6e5})
    results.runs["one", "65,000 B"].append({"rate": 3.7e3, "cpu": 4e3, "read": 1, "read_cpu": 1})
    results.runs["one", stored.ACKS.name].append({"p50": 0.1, "p99": 1.5})
    lines = stored.stored_tables(results, ["one"]).splitlines()
    assert "| 64 B | 2,000 (2,500) |" in lines
    assert "| 65,000 B | 3.70 (4.00) |" in lines
    assert "| 1 KiB | - |" in lines
    assert "| 64 B, read again | 500 (600) |" in lines
    assert lines[-2:] == ["| p50 ms | 0.10 |", "| p99 ms | 1.50 |"]


STORES = ("redis-server everysec", "nats-server JetStream", "rheos async", "rheos sync")


@pytest.mark.parametrize("which", STORES)
def test_a_log_with_its_broker(which: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "WARM_UP_SECONDS", 0.05)
    program, _, variant = which.partition(" ")
    found, logs = log_contenders(Path(sys.executable).with_name("twistd"))
    who = next(c for c in found if c.name.startswith(program) and c.name.endswith(variant))
    for row in (IN_TURN, Row("two", [[(0, 64)] * 5] * 2)):
        with who.start() as broker:
            work = storing.Storing(broker, logs[who.name], row)
            rate, _ = work.run(0.1)
            assert rate > 0
            _, count = storing.read_again(broker, logs[who.name], row, work.stored)
            assert count == work.stored
    with who.start() as broker:
        monkeypatch.setattr(storing, "RATE", 500.0)
        assert len(storing.acknowledgment_latencies(broker, logs[who.name], 0.1)) == 50


def test_a_stored_message_that_is_lost_or_out_of_order_is_an_error() -> None:
    messages = IN_TURN.batches[0]
    each = [marked(0, place, size) for place, (_, size) in enumerate(messages)]
    topics = frozenset({0, 1, 12})
    whole = b"head".join([b"", *each, *each])
    storing.check_part((topics, whole), messages, 8)
    storing.check_part((frozenset({0}), each[0] + b"-" + each[2] + each[0]), messages, 6)
    for data in (
        whole.replace(each[1], b"", 1),
        whole.replace(each[2] + b"head" + each[3], each[3] + b"head" + each[2], 1),
        whole.replace(each[3], each[3][:-2] + b"\0~", 1),
    ):
        with pytest.raises(BenchError, match="lost, changed or is out of order"):
            storing.check_part((topics, data), messages, 8)


def test_acknowledgments_are_distinguished_from_errors() -> None:
    count: Callable[[bytes], int] = Marked(b"$", b"-ERR")
    assert count(b"$15\r\n1700000000000-0\r\n$1") == 2
    with pytest.raises(BenchError, match="not stored"):
        count(b"-ERR full\r\n")
