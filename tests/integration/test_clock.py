"""A broker whose wall clock is set while it runs: deadlines, timestamps and retention."""

from __future__ import annotations

import json
import struct
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.integration import set_clock
from tests.integration.broker import Broker, Start, listen
from tests.integration.clients import Cafe, publish
from tests.waiting import until

HOUR, DAY = 3600.0, 86_400.0
JUMPED = r"clock: the system's clock jumped forward by"
SET_BACK = r"clock: the system's clock was set back by"


class House:
    """A history, and brokers on it one after another, which see this computer's clock shifted."""

    def __init__(self, start: Start, directory: Path) -> None:
        self._start = start
        self._store = directory / "history"
        self._offset = directory / "clock"
        self.set(0)

    def set(self, ahead: float) -> None:
        """Set the clock this many seconds ahead of this computer's."""
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack("d", ahead))

    def open(self, *options: str) -> Broker:
        """Start a broker."""
        return self._start(
            *listen("cafe"),
            "--admin-port=tcp:0:interface=127.0.0.1",
            f"--store=log:{self._store}",
            *options,
            env={
                "PYTHONPATH": str(Path(set_clock.__file__).parent),
                "PUBSUB_TEST_CLOCK": str(self._offset),
            },
        )


@pytest.fixture
def house(start: Start, tmp_path: Path) -> House:
    return House(start, tmp_path)


def get(broker: Broker, path: str) -> bytes:
    with urllib.request.urlopen(f"http://127.0.0.1:{broker.port('http')}{path}") as response:
        data: bytes = response.read()
        return data


def bounds(broker: Broker) -> tuple[int, int]:
    """The first and the next offset."""
    found = json.loads(get(broker, "/v1/bounds"))
    return found["first"], found["next"]


def history(broker: Broker) -> list[dict[str, Any]]:
    lines = get(broker, "/v1/history?start=0&format=jsonl").splitlines()
    return [json.loads(line) for line in lines]


def send(broker: Broker, *texts: bytes) -> None:
    """Publish, and wait until the broker has read it."""
    with Cafe.publisher(broker) as publisher:
        publisher.send(*(publish(1, text) for text in texts))
        publisher.sync()


def test_a_clock_that_is_set_back_stops_neither_commits_nor_evictions(house: House) -> None:
    first = house.open("--idle-timeout=2")
    send(first, b"before")
    house.set(-HOUR)
    with Cafe.subscriber(first) as idle:
        send(first, *(b"%d" % n for n in range(500)))
        until(lambda: bounds(first) == (0, 501), "the commit")
        assert idle.receive_texts(500)[-1] == b"499"
        # An error and the end: it has been silent for too long.
        idle.receive_rest()
    first.wait_line(SET_BACK)
    first.kill()
    assert bounds(house.open()) == (0, 501)


def test_timestamps_do_not_go_backwards_over_a_restart(house: House) -> None:
    first = house.open()
    send(first, b"1")
    until(lambda: bounds(first) == (0, 1), "the commit")
    first.kill()
    house.set(-HOUR)
    second = house.open()
    second.wait_line(r"clock: the last stored message is 3[56]\d\d s ahead of the system's clock")
    send(second, b"2")
    until(lambda: bounds(second) == (0, 2), "the commit")
    one, two = history(second)
    assert one["timestamp"] == two["timestamp"]


def test_a_jump_deletes_nothing_and_marks_nothing(house: House) -> None:
    broker = house.open("--retention=*=age:7d")
    send(broker, b"1")
    until(lambda: bounds(broker) == (0, 1), "the commit")
    house.set(8 * DAY)
    send(broker, b"2")
    until(lambda: bounds(broker)[1] == 2, "the commit")
    broker.wait_line(JUMPED)
    assert bounds(broker) == (0, 2)
    house.set(0)
    broker.wait_line(r"clock: the jump forward ended after \d+ s and was not accepted")
    one, two = history(broker)
    assert 0 <= two["timestamp"] - one["timestamp"] < 60_000_000
    broker.stop()
    broker.wait_line("stopped: .* 1 clock jumps")


def test_a_start_with_a_clock_that_is_ahead_deletes_nothing_yet(house: House) -> None:
    first = house.open("--retention=*=age:7d")
    send(first, b"1")
    until(lambda: bounds(first) == (0, 1), "the commit")
    first.stop()
    house.set(8 * DAY)
    second = house.open("--retention=*=age:7d")
    second.wait_line(JUMPED)
    send(second, b"2")
    until(lambda: bounds(second)[1] == 2, "the commit")
    second.kill()
    third = house.open("--retention=*=age:7d")
    third.wait_line(JUMPED)
    house.set(0)
    third.wait_line("clock: the jump forward ended")
    assert bounds(third) == (0, 2)
    one, two = history(third)
    assert 0 <= two["timestamp"] - one["timestamp"] < 60_000_000
