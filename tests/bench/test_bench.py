"""The benchmark itself: it detects errors, and counts correct runs."""

from __future__ import annotations

import re
import socket
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.bench import BenchError, append, generator
from tests.bench.batches import PUBLISHER_SHIFT, build_batches
from tests.bench.broker import Broker
from tests.bench.generator import Load
from tests.bench.plan import KIB, MIB, RunPlan, Topology, make_plan
from tests.bench.publisher import Acknowledgments, Publisher
from tests.bench.selftest import run_self_test
from tests.bench.subscriber import Subscriber, receive_buffer
from tests.bench.verify import Stream, runs
from tests.bench.wires.cafe import MAX_PAYLOAD, CafeWire
from tests.bench.wires.rheos import ACKNOWLEDGMENT, RheosWire

WIRE = CafeWire()
PLAN = RunPlan(Topology(1, 1), payload=64, per_batch=5, window=2)

READY = re.compile(r"cafe on tcp 127\.0\.0\.1:(\d+)")
# Welcomes every client and delivers nothing.
SINK = """
import socket, threading
def serve(sock):
    sock.recv(64)
    sock.send(bytes.fromhex("fe ca 03 09 00 00 00 00 01 02 03 04 05 06 07 08"))
    while sock.recv(65536):
        pass
server = socket.create_server(("127.0.0.1", 0))
print("cafe on tcp 127.0.0.1:%d" % server.getsockname()[1])
while True:
    threading.Thread(target=serve, args=(server.accept()[0],), daemon=True).start()
"""


class Line:
    """A subscriber of publisher 0 at the end of a local connection."""

    def __init__(self) -> None:
        self.broker, sock = socket.socketpair()
        sock.setblocking(False)
        self.stream = Stream(PLAN.per_batch * PLAN.cycle)
        self.samples: array[int] = array("q")
        publisher = Publisher(sock, PLAN, build_batches(WIRE.publication(0, 64), 0, PLAN))
        frame = WIRE.delivery(0, 64)
        self.subscriber = Subscriber(
            sock, {0: frame}, receive_buffer(80), {0: self.stream}, {0: publisher}, self.samples
        )
        self.cycle = b"".join(build_batches(frame, 0, PLAN))
        self._sock = sock

    def feed(self, data: bytes) -> None:
        self.broker.sendall(data)
        while self.subscriber.poll():
            pass

    def close(self) -> None:
        self.broker.close()
        self._sock.close()


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.close()


@pytest.mark.parametrize("chunk", [1, 7, 79, 80, 81, 10_000])
def test_frames_split_over_reads(line: Line, chunk: int) -> None:
    data = line.cycle * 2 + line.cycle[:37]
    for start in range(0, len(data), chunk):
        line.feed(data[start : start + chunk])
    assert line.subscriber.delivered == line.stream.position == 2 * PLAN.per_batch * PLAN.cycle
    stream = line.stream
    assert (stream.lost, stream.duplicated, stream.out_of_order) == (0, 0, 0)
    assert len(line.samples) == 2 * PLAN.cycle


@pytest.mark.parametrize(
    ("order", "lost", "duplicated", "out_of_order"),
    [
        ([0, 1, 2, 3], 0, 0, 0),
        ([0, 2, 3], 1, 0, 0),
        ([4, 5, 6], 4, 0, 0),
        ([0, 1, 1, 2], 0, 1, 0),
        ([0, 1, 2, 0, 1, 2, 3], 0, 3, 0),
        ([0, 2, 1, 3], 0, 0, 1),
        ([3, 0, 1, 2, 4], 0, 0, 3),
        ([2, 0, 0, 3], 1, 1, 1),
    ],
)
def test_kinds_of_errors_are_distinguished(
    line: Line, order: list[int], lost: int, duplicated: int, out_of_order: int
) -> None:
    line.feed(b"".join(line.cycle[80 * number :][:80] for number in order))
    stream = line.stream
    assert (stream.lost, stream.duplicated, stream.out_of_order) == (lost, duplicated, out_of_order)
    assert stream.position == max(order) + 1


def test_a_loss_across_the_end_of_a_cycle_is_counted(line: Line) -> None:
    line.feed(line.cycle[:-160] + line.cycle[80:160])
    assert line.stream.lost == 3
    assert line.stream.position == PLAN.per_batch * PLAN.cycle + 2


def test_an_unexpected_frame_is_an_error(line: Line) -> None:
    error = bytes.fromhex("fe ca ff 01 00 00 00 04")
    with pytest.raises(BenchError, match="received fe ca ff 01 00 00 00 04"):
        line.feed(line.cycle[:240] + error + line.cycle[240:])


def test_the_end_of_the_stream_is_an_error(line: Line) -> None:
    line.broker.close()
    with pytest.raises(BenchError, match="closed"):
        line.subscriber.poll()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield the broker's end and the publisher's end of a connection."""
    ends = socket.socketpair()
    ends[1].setblocking(False)
    yield ends
    for end in ends:
        end.close()


def acknowledgments(count: int) -> bytes:
    return b"".join(b"\xac" + bytes([number % 256] * 16) + b"\0" for number in range(count))


@pytest.mark.parametrize("chunk", [1, 17, 18, 19, 100_000])
def test_acknowledgments_split_over_reads(
    sockets: tuple[socket.socket, socket.socket], chunk: int
) -> None:
    acks = Acknowledgments(sockets[1], ACKNOWLEDGMENT)
    data = acknowledgments(5000 if chunk > 1000 else 50)
    for start in range(0, len(data), chunk):
        sockets[0].sendall(data[start : start + chunk])
        while acks.poll():
            pass
        assert acks.count == min(start + chunk, len(data)) // 18


@pytest.mark.parametrize("bad", ["ac" + 16 * "00" + "01", "15" + 17 * "00"])
def test_an_unexpected_reply_is_an_error(
    sockets: tuple[socket.socket, socket.socket], bad: str
) -> None:
    acks = Acknowledgments(sockets[1], ACKNOWLEDGMENT)
    sockets[0].sendall(acknowledgments(3) + bytes.fromhex(bad) + acknowledgments(3))
    with pytest.raises(BenchError, match=f"a publisher received {bad[:2]} 00"):
        acks.poll()


def test_the_window_waits_for_acknowledgments(
    sockets: tuple[socket.socket, socket.socket],
) -> None:
    batches = build_batches(RheosWire().publication(0, 64), 0, PLAN)
    publisher = Publisher(sockets[1], PLAN, batches, ACKNOWLEDGMENT)
    assert publisher.acks is not None
    for sent in (5, 10, 10):
        publisher.pump()
        assert publisher.published == sent
    for acknowledged, sent in ((4, 10), (5, 15), (9, 15), (10, 20)):
        sockets[0].sendall(acknowledgments(acknowledged - publisher.acks.count))
        publisher.acks.poll()
        publisher.pump()
        publisher.pump()
        assert publisher.published == sent
    assert publisher.outstanding() == 10


def test_interleaved_publishers_have_separate_runs() -> None:
    keys = [(0, 5), (0, 6), (1, 7), (1, 8), (1, 9), (0, 7), (0, 0)]
    mixed = np.array([(who << PUBLISHER_SHIFT) + number for who, number in keys], np.uint64)
    assert runs(mixed) == [(0, 5, 2), (1, 7, 3), (0, 7, 1), (0, 0, 1)]
    assert runs(mixed[:1]) == [(0, 5, 1)]


@pytest.mark.parametrize("size", [16, 64, KIB, 64 * KIB, MIB])
@pytest.mark.parametrize("name", ["1-1", "1-100", "50-1", "10-pairs"])
def test_every_plan_has_a_message_in_a_batch_and_room_for_it(name: str, size: int) -> None:
    topology = Topology.parse(name)
    plan = make_plan(WIRE, topology, size)
    assert str(topology) == name
    assert plan.payload == min(size, MAX_PAYLOAD)
    assert plan.per_batch >= 1
    assert plan.window >= 1
    assert plan.cycle > 2 * plan.window


@pytest.mark.parametrize("name", ["", "1", "0-1", "1-", "pairs", "10-pears"])
def test_unknown_topologies_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is not like"):
        Topology.parse(name)


def test_the_self_test_reports_rates() -> None:
    result = run_self_test(WIRE, PLAN, seconds=0.05, core=0)
    assert min(result.send, result.receive, result.both) > 0


def test_a_stalled_broker_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "STALL_SECONDS", 0.2)
    with Broker([sys.executable, "-c", SINK], READY, core=0) as broker:
        load = Load(broker.address, WIRE, PLAN)
        with pytest.raises(BenchError, match="of 10 messages published 10 have not reached"):
            load.run(5)
        load.close()
        assert broker.resident_bytes() > 0
        assert broker.cpu_seconds() > 0
    with pytest.raises(BenchError, match="the broker has exited"):
        broker.resident_bytes()


def test_a_broker_that_does_not_start_is_an_error() -> None:
    command = [sys.executable, "-c", "print('no such option'); raise SystemExit(3)"]
    with pytest.raises(BenchError, match="exited with 3") as caught, Broker(command, READY, 0):
        pass
    assert caught.value.__notes__ == ["no such option"]


def test_the_cost_of_a_plain_append(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert append.main([str(tmp_path), "--mib", "2", "--rounds", "2"]) == 0
    rows = re.findall(r"\| (\d+) \| [\d,]+ \| [\d,]+ \|", capsys.readouterr().out)
    assert rows == ["1", "2"]
    assert list(tmp_path.iterdir()) == []
