"""The benchmarks of TLS, of followers, of readers and of clients that come and go run."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench import beside_readers, churn, followers, tls

TWISTD = Path(sys.executable).with_name("twistd")


@pytest.fixture(autouse=True)
def any_core() -> Iterator[None]:
    """Undo the choice of a core."""
    before = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.parametrize("lone", [False, True])
def test_tls(lone: bool) -> None:
    assert tls.measure(TWISTD, "cafe", tls=True, lone=lone, seconds=0.2) > 0


@pytest.mark.parametrize("kind", followers.KINDS)
def test_followers(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "_WARM_UP_SECONDS", 0.1)
    found = followers.measure(TWISTD, kind, topics=3, subscribers=2, seconds=0.1)
    assert min(found) > 0


def test_publishing_to_several_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "_WARM_UP_SECONDS", 0.1)
    assert min(followers.measure_publishing(TWISTD, "http", topics=3, seconds=0.1)) > 0


def test_clients_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(churn, "_WARM_UP_SECONDS", 0.1)
    assert churn.measure(TWISTD, topics=20, rate=100, seconds=0.3) > 0


def test_messages_beside_readers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["beside_readers", "--messages", "20000", "--rate", "200", "--seconds", "0.2"]
    monkeypatch.setattr(sys, "argv", arguments)
    beside_readers.main()
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" | ")[0].strip("| ") for line in lines[2:]] == list(beside_readers.READS)
