"""Brokers and histories that end at any moment. ``python -m tests.crash`` is the long form."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.crash.damages import damages
from tests.crash.faults import cuts, failures
from tests.crash.lives import crash
from tests.crash.points import points

LOOPS = int(os.environ.get("PUBSUB_CRASHES", "30"))


def test_acknowledged_messages_are_there_once_and_offsets_continue(tmp_path: Path) -> None:
    result = crash(tmp_path, LOOPS, seed=1)
    assert result.acknowledged > 100
    assert result.stored >= result.acknowledged


@pytest.mark.usefixtures("compiler")
def test_power_cuts(tmp_path: Path) -> None:
    result = cuts(tmp_path, max(LOOPS // 4, 1), seed=1)
    assert result.acknowledged > 20


@pytest.mark.usefixtures("compiler")
def test_writes_and_fsyncs_that_fail(tmp_path: Path) -> None:
    result = failures(tmp_path, max(LOOPS // 4, 1), seed=1)
    assert result.acknowledged > 20


@pytest.mark.usefixtures("compiler")
def test_a_kill_between_two_system_calls(tmp_path: Path) -> None:
    result = points(tmp_path, LOOPS, seed=1)
    assert result.stored > 100


def test_random_damage(tmp_path: Path) -> None:
    result = damages(tmp_path, 4 * LOOPS, seed=1)
    assert result.acknowledged > LOOPS
