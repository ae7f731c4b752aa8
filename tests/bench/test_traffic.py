"""The benchmark of mixed traffic: it passes with the broker, and detects a changed byte."""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.bench import BenchError, traffic
from tests.bench.broker import twistd_broker
from tests.bench.traffic import Receiver, Row, measure
from tests.bench.wires import WIRES

TWISTD = Path(sys.executable).with_name("twistd")
MESSAGES = [(0, 20), (1, 30), (0, 16), (2, 17)]


def test_messages_of_several_topics_arrive_in_order() -> None:
    both, all_three = frozenset({0, 1}), frozenset({0, 1, 2})
    row = Row("test", [MESSAGES], [(0, both), (0, all_three), (0, frozenset({2}))])
    with twistd_broker(TWISTD, WIRES["cafe"], (), 0) as broker:
        assert measure(broker, row, seconds=0.2, window=4) > 0


class TestReceiver:
    """A subscriber of topics 0 and 2"""

    def receiver(self) -> tuple[Receiver, socket.socket, bytes]:
        broker, sock = socket.socketpair()
        sock.setblocking(False)
        with patch.object(traffic, "_connect", lambda *_: sock):
            made = Receiver(("", 0), MESSAGES, frozenset({0, 2}), 0)
        return made, broker, made.cycle_bytes()

    def test_the_expected_bytes(self) -> None:
        receiver, broker, cycle = self.receiver()
        broker.sendall(cycle * 2 + cycle[:5])
        receiver.poll()
        assert receiver.received == 2 * len(cycle) + 5
        assert receiver.messages == 3

    def test_timestamps_differ(self) -> None:
        receiver, broker, cycle = self.receiver()
        broker.sendall(cycle[:8] + b"12345678" + cycle[16:])
        receiver.poll()
        assert receiver.received == len(cycle)

    @pytest.mark.parametrize("place", [0, 7, 16, 35, 36, 60])
    def test_a_changed_byte_is_an_error(self, place: int) -> None:
        receiver, broker, cycle = self.receiver()
        changed = bytes([cycle[place] ^ 1])
        broker.sendall(cycle + cycle[:place] + changed + cycle[place + 1 :])
        with pytest.raises(BenchError, match=f"at byte {len(cycle) + place}$"):
            receiver.poll()

    def test_the_end_of_the_stream_is_an_error(self) -> None:
        receiver, broker, _ = self.receiver()
        broker.close()
        with pytest.raises(BenchError, match="closed"):
            receiver.poll()
