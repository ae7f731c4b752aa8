"""The model of many brokers."""

from __future__ import annotations

import pytest

from tests.bench.fleet import HEAD_BYTES, Workload, main, simulate

COSTS = {"read": (1.0, 0.0), "write": (10.0, 0.0), "send": (100.0, 0.0), "receive": (1e3, 0.0)}


def test_one_broker_has_no_message_from_the_engine() -> None:
    result = simulate(Workload("x", 1, 3, 50, 1), COSTS, brokers=1)
    assert result.engine_out == result.megabytes_out == 0
    assert result.load == pytest.approx([result.engine_in * (1 + 3 * 10 + 100) / 1e6])


def test_each_step_is_counted() -> None:
    workload = Workload("x", 4, 1000, 50, 5)
    result = simulate(workload, COSTS, brokers=2)
    # Every topic has subscribers at both brokers.
    assert result.subscriptions == 4
    assert result.engine_out == result.engine_in
    assert result.engine_in == pytest.approx(4 * 50 / 5, rel=0.5)
    each = 1 + 100 + 1000 * 10 + 1000
    assert result.load.sum() == pytest.approx(result.engine_in * each / 1e6)
    size = 5 * 64 + HEAD_BYTES
    assert result.megabytes_out == pytest.approx(result.engine_out * size / 1e6)


def test_subscribers_at_the_broker_of_their_topic_need_no_engine() -> None:
    result = simulate(Workload("x", 50, 10, 10, 1, spread=0.0), COSTS, brokers=5)
    assert result.engine_in > result.engine_out == 0


def test_messages_cost_more_in_larger_batches() -> None:
    costs = dict.fromkeys(COSTS, (1.0, 1.0))
    one, ten = (
        simulate(Workload("x", 100, 1, 100 * batch, batch), costs, brokers=2) for batch in (1, 10)
    )
    assert ten.load.sum() / one.load.sum() == pytest.approx(11 / 2)


def test_the_same_seed_gives_the_same_table(capsys: pytest.CaptureFixture[str]) -> None:
    tables = []
    for arguments in ([], [], ["--seed=2"], ["--cost", "send", "0", "0"]):
        assert main(["--brokers=3", *arguments]) == 0
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1]
    assert tables[0] not in tables[2:]
    with pytest.raises(SystemExit):
        main(["--cost", "cook", "1", "1"])
