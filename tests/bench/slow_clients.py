"""Subscribers that do not keep up, in a process of their own: they do not read, read little, or
return again and again without reading. In the end all of them but the latter read everything."""

from __future__ import annotations

import multiprocessing
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import numpy.typing as npt

from tests.bench import BenchError
from tests.bench.batches import SEQUENCE_MASK, view_keys
from tests.bench.generator import Address, connect, receive
from tests.bench.plan import KIB
from tests.bench.wires.cafe import ACK_SIZE, CafeWire
from tests.bench.wires.frame import Frame

STUCK = 20
"""Subscribers that do not read."""
PACED = 20
"""Subscribers that read BYTES_PER_SECOND."""
BYTES_PER_SECOND = 60_000
_STEP_SECONDS = 0.1
_FINISH_SECONDS = 60.0
_READ_BYTES = 256 * KIB
# A small receive buffer, so that they fall behind soon.
_BUFFER_BYTES = 64 * KIB
_RESET = struct.pack("ii", 1, 0)
_WIRE = CafeWire()

Run = tuple[int, int]
"""The number of messages that were published, and after how many the numbers start again."""


@dataclass(frozen=True)
class SlowAccounting:
    """The messages that the slow subscribers received when they read at last.

    ``missing`` messages did not arrive, ``misplaced`` ones were not in order, doubled, or after a
    gap. ``returns`` counts the connections of the client that returns without reading.
    """

    missing: int
    misplaced: int
    returns: int


class Follower:
    """A subscriber that keeps the sequence numbers of all messages that it reads."""

    def __init__(self, sock: socket.socket, frame: Frame) -> None:
        sock.setblocking(False)
        self.sock = sock
        self.received = 0
        self._frame = frame
        self._numbers = [np.zeros(0, np.uint64)]
        self._rest = b""

    def read(self, limit: int) -> int:
        """Read up to ``limit`` bytes; return how many there were."""
        try:
            data = self.sock.recv(limit)
        except BlockingIOError:
            return 0
        if not data:
            raise BenchError("the broker closed the connection of a slow subscriber")
        buffer = bytearray(self._rest + data)
        count = len(buffer) // self._frame.size
        self._numbers.append(view_keys(buffer, self._frame)[:count] & np.uint64(SEQUENCE_MASK))
        self.received += count
        self._rest = bytes(buffer[count * self._frame.size :])
        return len(data)

    def misplaced(self, expected: npt.NDArray[np.uint64]) -> int:
        """Return how many messages are not those that they must be."""
        numbers = np.concatenate(self._numbers)
        return int(np.count_nonzero(numbers != expected[: len(numbers)]))


class Returning:
    """A subscriber that resets its connection and resumes its session, and never reads."""

    def __init__(self, address: Address) -> None:
        self.returns = 0
        self._address = address
        self._open(_WIRE.subscriber_hello([0], "returns"))

    def _open(self, hello: bytes) -> None:
        self._sock = connect(self._address, hello)
        self._session = int.from_bytes(receive(self._sock, ACK_SIZE)[8:], "little")

    def come_again(self) -> None:
        """Reset the connection, and resume the session on another one."""
        self.close()
        self._open(_WIRE.subscriber_hello([0], f"returns;resume={self._session:016x}"))
        self.returns += 1

    def close(self) -> None:
        """Reset the connection."""
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._sock.close()


class SlowClients:
    """The process with the slow subscribers, as the benchmark controls it."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def finish(self, runs: Sequence[Run]) -> SlowAccounting:
        """Let all of them read the messages of ``runs``. Raises BenchError."""
        self._pipe.send(tuple(runs))
        return self.result()

    def result(self) -> SlowAccounting:
        """Return the next report of the process. Raises BenchError."""
        try:
            found = self._pipe.recv()
        except EOFError:
            raise BenchError("the process of the slow subscribers has ended") from None
        if isinstance(found, str):
            raise BenchError(found)
        assert isinstance(found, SlowAccounting)
        return found


@contextmanager
def slow_clients(address: Address, payload: int, core: int) -> Iterator[SlowClients]:
    """Connect the slow subscribers; they end with the context. Raises BenchError."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(
        target=_run, args=(theirs, address, payload, core), daemon=True
    )
    process.start()
    theirs.close()
    try:
        clients = SlowClients(ours)
        clients.result()
        yield clients
    finally:
        process.terminate()
        process.join()


def _run(pipe: Connection, address: Address, payload: int, core: int) -> None:
    os.sched_setaffinity(0, {core})
    try:
        frame = _WIRE.delivery(0, payload)
        followers = [_follower(address, frame, number) for number in range(STUCK + PACED)]
        returning = Returning(address)
        pipe.send(SlowAccounting(0, 0, 0))
        _stay_behind(pipe, followers[STUCK:], returning)
        returning.close()
        expected = np.concatenate([_numbers(*run) for run in pipe.recv()])
        _read_all(followers, len(expected))
        missing = sum(len(expected) - one.received for one in followers)
        misplaced = sum(one.misplaced(expected) for one in followers)
        pipe.send(SlowAccounting(missing, misplaced, returning.returns))
    except (BenchError, OSError) as error:
        pipe.send(f"a slow subscriber: {error}")


def _numbers(published: int, cycle: int) -> npt.NDArray[np.uint64]:
    return np.arange(published, dtype=np.uint64) % np.uint64(cycle)


def _follower(address: Address, frame: Frame, number: int) -> Follower:
    sock = connect(address, _WIRE.subscriber_hello([0], f"slow-{number}"))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
    _WIRE.welcomed(receive(sock, ACK_SIZE))
    return Follower(sock, frame)


def _stay_behind(pipe: Connection, paced: list[Follower], returning: Returning) -> None:
    """Read a little, and return without reading, until the benchmark has something to say."""
    share = int(BYTES_PER_SECOND * _STEP_SECONDS)
    due = time.monotonic()
    while not pipe.poll(max(due - time.monotonic(), 0.0)):
        for one in paced:
            one.read(share)
        returning.come_again()
        due += _STEP_SECONDS


def _read_all(followers: list[Follower], published: int) -> None:
    ends = time.monotonic() + _FINISH_SECONDS
    behind = {one.sock: one for one in followers if one.received < published}
    while behind and time.monotonic() < ends:
        readable, _, _ = select.select(list(behind), [], [], 1.0)
        for sock in readable:
            if behind[sock].read(_READ_BYTES):
                ends = time.monotonic() + _FINISH_SECONDS
            if behind[sock].received >= published:
                del behind[sock]
