"""The receiving half of the load: what arrives is checked and timed."""

from __future__ import annotations

import socket
import time
from array import array

from tests.bench import BenchError
from tests.bench.batches import KEY_BYTES, view_keys
from tests.bench.plan import KIB
from tests.bench.publisher import Publisher
from tests.bench.verify import Stream, runs
from tests.bench.wires import Frame

RECEIVE_BYTES = 256 * KIB


class Subscriber:
    """Receives, checks every message's place in its publisher's sequence, and samples latency.

    `buffer` is one that `receive_buffer` made: nothing stays in it between two calls of `poll`, so
    all subscribers use the same, which then stays in the processor's cache. `streams` and
    `publishers` are keyed by publisher number; `samples` collects nanoseconds from the start of a
    batch's send to the arrival of its first message.
    """

    def __init__(
        self,
        sock: socket.socket,
        frame: Frame,
        buffer: bytearray,
        streams: dict[int, Stream],
        publishers: dict[int, Publisher],
        samples: array[int],
    ) -> None:
        self.delivered = 0
        self.streams = streams
        self._sock = sock
        self._head = frame.head
        self._size = frame.size
        self._publishers = publishers
        self._samples = samples
        self._view = memoryview(buffer)
        self._keys = view_keys(buffer, frame)
        # Of a frame cut off by the end of a read: its length so far, and of its bytes only those
        # that are looked at, however large it is.
        self._partial = 0
        self._kept = b""
        self._looked_at = frame.offset + KEY_BYTES

    def poll(self) -> int:
        """Takes what has arrived; returns the bytes received.

        Raises BenchError at end of stream and for frames other than the expected.
        """
        try:
            count = self._sock.recv_into(self._view[self._partial :])
        except BlockingIOError:
            return 0
        now = time.perf_counter_ns()
        if not count:
            raise BenchError("the broker closed a subscriber's connection")
        self._view[: len(self._kept)] = self._kept
        frames, self._partial = divmod(self._partial + count, self._size)
        if frames:
            self._take(frames, now)
        rest = frames * self._size
        self._kept = bytes(self._view[rest : rest + min(self._partial, self._looked_at)])
        return count

    def _take(self, frames: int, now: int) -> None:
        if self._view[: len(self._head)] != self._head:
            self._check_frames(frames)
        for publisher, first, count in runs(self._keys[:frames]):
            stream = self.streams.get(publisher)
            if stream is None or first + count > stream.cycle:
                self._check_frames(frames)
                raise BenchError(f"a message is number {first} of publisher {publisher}: not ours")
            if not stream.arrived(first, count):
                self._check_frames(frames)
            self._sample(self._publishers[publisher], first, count, now)
        self.delivered += frames

    def _check_frames(self, frames: int) -> None:
        """Raises BenchError if one is no message, which also puts those after it out of step."""
        for start in range(0, frames * self._size, self._size):
            if self._view[start : start + len(self._head)] != self._head:
                found = self._view[start : start + self._looked_at].hex(" ")
                raise BenchError(f"instead of a message a subscriber was sent {found}")

    def _sample(self, publisher: Publisher, first: int, count: int, now: int) -> None:
        per_batch = publisher.per_batch
        for batch in range(-(-first // per_batch), -(-(first + count) // per_batch)):
            self._samples.append(now - publisher.sent_at[batch])


def receive_buffer(frame_size: int) -> bytearray:
    """For a subscriber of frames up to that size: holds a partial frame, and one more at least."""
    return bytearray(RECEIVE_BYTES + 2 * frame_size)
