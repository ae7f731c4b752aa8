"""The publishers of the load, and the replies of the broker to them."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Sequence

import numpy as np

from tests.bench import BenchError
from tests.bench.plan import KIB, RunPlan
from tests.bench.verify import Stream
from tests.bench.wires import Frame

ACK_BYTES = 64 * KIB
UNLIMITED = float("inf")


class Acknowledgments:
    """Reads and counts the acknowledgments of a publisher's messages."""

    def __init__(self, sock: socket.socket, frame: Frame) -> None:
        self.count = 0
        self._sock = sock
        self._frame = frame
        self._buffer = memoryview(bytearray(ACK_BYTES // frame.size * frame.size))
        self._rows = np.frombuffer(self._buffer, np.uint8).reshape(-1, frame.size)
        self._good = np.frombuffer(frame.before + frame.after, np.uint8)
        # The id of the message is between the fixed bytes and the last part.
        self._checked = [*range(frame.fixed), *range(frame.offset, frame.size)]
        self._partial = 0

    def poll(self) -> int:
        """Read the available input and return the number of bytes. Raises BenchError."""
        try:
            count = self._sock.recv_into(self._buffer[self._partial :])
        except BlockingIOError:
            return 0
        if not count:
            raise BenchError("the broker closed a publisher's connection")
        frames, self._partial = divmod(self._partial + count, self._frame.size)
        rows = self._rows[:frames]
        for column in self._checked:
            if (rows[:, column] != self._good[column]).any():
                bad = rows[rows[:, column] != self._good[column]][0]
                raise BenchError(f"a publisher received {bad.tobytes().hex(' ')}")
        self.count += frames
        rest = frames * self._frame.size
        self._buffer[: self._partial] = bytes(self._buffer[rest : rest + self._partial])
        return count


class Publisher:
    """Sends ready batches in a cycle while its window has room.

    A message occupies the window until every subscriber has it and, if the protocol has
    acknowledgments, it is acknowledged.
    """

    def __init__(
        self,
        sock: socket.socket,
        plan: RunPlan,
        batches: Sequence[memoryview],
        answer: Frame | None = None,
    ) -> None:
        self.published = 0
        """Messages passed to the kernel, the last batch perhaps partially."""
        self.acks = None if answer is None else Acknowledgments(sock, answer)
        self.allowance = UNLIMITED
        """Batches that the publisher may still send."""
        self.streams: list[Stream] = []
        """One for each subscriber; without subscribers there is no window."""
        self.expects_unsolicited = False
        """True if the broker may send data that is neither a reply nor an error."""
        self.sent_at = [0] * len(batches)
        """Start of the last send of each batch in the cycle, in perf_counter nanoseconds."""
        self.last_sent = 0
        """The latest value of `sent_at`."""
        self.per_batch = plan.per_batch
        self._sock = sock
        self._batches = batches
        self._slot = 0
        self._offset = 0
        self._window = plan.window * plan.per_batch
        self._acknowledged = 0

    def pump(self) -> int:
        """Send the rest of a batch, or a new batch, and return the number of bytes."""
        if not self._offset:
            if self.allowance < 1 or not self._has_room():
                return 0
            self.last_sent = self.sent_at[self._slot] = time.perf_counter_ns()
        batch = self._batches[self._slot]
        try:
            count = self._sock.send(batch[self._offset :] if self._offset else batch)
        except BlockingIOError:
            return 0
        if not self._offset:
            self.published += self.per_batch
            self.allowance -= 1
        self._offset += count
        if self._offset == len(batch):
            self._offset = 0
            self._slot = (self._slot + 1) % len(self._batches)
        return count

    def _has_room(self) -> bool:
        limit = self.published + self.per_batch - self._window
        if self._acknowledged < limit:
            self._acknowledged = self._slowest()
        return self._acknowledged >= limit

    def _slowest(self) -> int:
        positions = [stream.position for stream in self.streams]
        if self.acks is not None:
            positions.append(self.acks.count)
        return min(positions, default=self.published)

    def outstanding(self) -> int:
        """Return the lag of the slowest subscriber or of the acknowledgments, in messages."""
        return self.published - self._slowest()

    def check_answers(self) -> None:
        """Raise BenchError if the broker has sent unexpected data, such as an error."""
        if self.acks is not None:
            self.acks.poll()
            return
        if self.expects_unsolicited:
            return
        with contextlib.suppress(BlockingIOError):
            data = self._sock.recv(64)
            raise BenchError(f"a publisher received {data.hex(' ') or 'end of stream'}")
