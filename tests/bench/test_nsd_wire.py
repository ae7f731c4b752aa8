"""The nsd wire of the load generator matches the broker."""

from __future__ import annotations

import json
import re
import socket
from array import array
from collections.abc import Iterator

import pytest

from tests.bench import BenchError
from tests.bench.batches import build_batches
from tests.bench.plan import RunPlan, Topology
from tests.bench.poller import LIST, Poller
from tests.bench.publisher import Publisher
from tests.bench.verify import Stream
from tests.bench.wires import WIRES
from tests.bench.wires.nsd import SUCCESS, poll_request

WIRE = WIRES["nsd"]
PLAN = RunPlan(Topology(1, 1), payload=20, per_batch=5, window=2)
COUNT = PLAN.per_batch * PLAN.cycle


def sent(publisher: int) -> list[str]:
    """Return the bodies of a cycle."""
    lines = b"".join(build_batches(WIRE.publication(7, 20), publisher, PLAN)).splitlines()
    requests = [json.loads(line) for line in lines]
    assert {request["identity"] for request in requests} == {"bench/7"}
    return [request["message"]["body"] for request in requests]


def test_keys_are_text() -> None:
    assert sent(3) == [f"{3 << 32 | number:016x}xxxx" for number in range(COUNT)]


def test_only_the_complete_reply_is_a_welcome() -> None:
    answer = SUCCESS * 2
    assert [WIRE.welcomed(answer[:end]) for end in range(len(answer) + 1)][-2:] == [False, True]
    with pytest.raises(BenchError):
        WIRE.welcomed(b'{"_class":"ErrorResponse","error":"BROKER BUSY"}\n')


class Line:
    """A polling subscriber at the end of a local connection, and its publisher."""

    def __init__(self) -> None:
        self.broker, self.sock = socket.socketpair()
        self.sock.setblocking(False)
        self.stream = Stream(COUNT)
        self.samples: array[int] = array("q")
        frame = WIRE.delivery(0, 20)
        self.publisher = Publisher(self.sock, PLAN, build_batches(WIRE.publication(0, 20), 0, PLAN))
        following = ({0: self.stream}, {0: self.publisher})
        self.poller = Poller(self.sock, {0: frame}, bytearray(1000), *following, self.samples)
        self.poller.poll_with(lambda after: poll_request("me", after))

    def requested_offset(self) -> int:
        """Return the number in the poller's request."""
        found = re.search(rb'"after":(\d+)', self.broker.recv(1000))
        assert found is not None
        return int(found[1])

    def answer(self, first: int, bodies: list[str]) -> bytes:
        """Return the list of ``bodies``, numbered from ``first``."""
        fields = {"_class": "Message", "from": "bench"}
        found = [{**fields, "when": first + n, "body": body} for n, body in enumerate(bodies)]
        return LIST + json.dumps(found, separators=(",", ":")).encode()[1:] + b"}\n"


@pytest.fixture
def line() -> Iterator[Line]:
    line = Line()
    yield line
    line.broker.close()
    line.sock.close()


def test_it_polls_while_messages_are_in_flight(line: Line) -> None:
    assert line.poller.poll() == 0
    with pytest.raises(BlockingIOError):
        line.broker.recv(1, socket.MSG_DONTWAIT)
    line.publisher.published = 1
    assert line.poller.poll() == 0
    assert line.requested_offset() == 0


@pytest.mark.parametrize("cut", [1, 50, 10_000])
def test_it_polls_from_the_last_message(line: Line, cut: int) -> None:
    line.publisher.published = 11
    bodies = sent(0)
    for after, number in ((0, 1), (99, 10)):
        line.poller.poll()
        assert line.requested_offset() == after
        start = line.stream.position
        data = line.answer(100 - number if not after else 100, bodies[start : start + number])
        for at in range(0, len(data), cut):
            line.broker.sendall(data[at : at + cut])
            assert line.poller.poll()
    assert line.poller.delivered == line.stream.position == 11
    assert line.stream.lost == line.stream.duplicated == 0
    # One sample for each batch that was started.
    assert len(line.samples) == 3


def test_loss_is_detected(line: Line) -> None:
    line.publisher.published = 5
    line.poller.poll()
    bodies = sent(0)
    line.broker.sendall(line.answer(1, [bodies[0], bodies[3]]))
    line.poller.poll()
    assert line.stream.lost == 2


@pytest.mark.parametrize(
    "data",
    [b'{"_class":"ErrorResponse","error":"BROKER BUSY"}\n', LIST + b'{"when":1,"body":"0"}]}\n'],
)
def test_other_replies_are_reported(line: Line, data: bytes) -> None:
    line.publisher.published = 5
    line.poller.poll()
    line.broker.sendall(data)
    with pytest.raises(BenchError):
        line.poller.poll()
