"""The subscribers of the load: they check and time the deliveries."""

from __future__ import annotations

import socket
import time
from array import array
from collections.abc import Mapping
from itertools import takewhile

import numpy as np

from tests.bench import BenchError
from tests.bench.batches import KEY_BYTES, publisher_of, view_keys
from tests.bench.plan import KIB
from tests.bench.publisher import Publisher
from tests.bench.verify import Stream, runs
from tests.bench.wires import Frame

RECEIVE_BYTES = 256 * KIB


class Subscriber:
    """Receives messages, checks their sequence and samples their latency.

    `frames` has the frame of a message of each publisher; they are equally long.
    All subscribers share one `buffer` from `receive_buffer`, so that it stays in the processor's
    cache; it holds no data between two calls of `poll`. `streams` and `publishers` are keyed by
    publisher number. `samples` collects the nanoseconds from the start of a batch's send to the
    arrival of its first message.
    """

    def __init__(
        self,
        sock: socket.socket,
        frames: Mapping[int, Frame],
        buffer: bytearray,
        streams: dict[int, Stream],
        publishers: dict[int, Publisher],
        samples: array[int],
    ) -> None:
        self.delivered = 0
        self.streams = streams
        self._sock = sock
        self._frames = frames
        self._check: FrameCheck | None = None
        frame = next(iter(frames.values()))
        columns = zip(*[one.head for one in frames.values()], strict=False)
        alike = takewhile(lambda column: len(set(column)) == 1, columns)
        self._head = bytes([column[0] for column in alike])
        self._size = frame.size
        self._publishers = publishers
        self._samples = samples
        self._view = memoryview(buffer)
        self._keys = view_keys(buffer, frame)
        # Of a partial frame at the end of a read: its length so far, and only the bytes that are
        # checked, however large the frame is.
        self._partial = 0
        self._kept = b""
        self._looked_at = frame.offset + KEY_BYTES

    def poll(self) -> int:
        """Read the available input and return the number of bytes.

        Raises BenchError at the end of the stream and for unexpected frames.
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
                raise BenchError(f"message {first} of publisher {publisher} is not in this run")
            if not stream.arrived(first, count):
                self._check_frames(frames)
            self._sample(self._publishers[publisher], first, count, now)
        self.delivered += frames

    def _check_frames(self, frames: int) -> None:
        """Raise BenchError if a frame is not a message; it also misaligns the frames after it."""
        for start in range(0, frames * self._size, self._size):
            if self._view[start : start + len(self._head)] != self._head:
                found = self._view[start : start + self._looked_at].hex(" ")
                raise BenchError(f"a subscriber received {found} instead of a message")

    def _sample(self, publisher: Publisher, first: int, count: int, now: int) -> None:
        per_batch = publisher.per_batch
        for batch in range(-(-first // per_batch), -(-(first + count) // per_batch)):
            self._samples.append(now - publisher.sent_at[batch])


class FrameCheck:
    """Compares complete frames with that of their publisher, of those of all in ``frames``.

    The keys, of ``key_bytes`` bytes, and bytes that brokers may change are not compared.
    """

    def __init__(self, frames: Mapping[int, Frame], key_bytes: int) -> None:
        self._frame = frame = next(iter(frames.values()))
        self._key = slice(frame.offset, frame.offset + key_bytes)
        whole = {
            number: one.before + b"x" * one.payload + one.after for number, one in frames.items()
        }
        texts = list(dict.fromkeys(whole.values()))
        self._due = np.array([np.frombuffer(text, np.uint8) for text in texts])
        self._places = {number: texts.index(text) for number, text in whole.items()}
        self._checked = np.ones(frame.size, bool)
        self._checked[frame.fixed : frame.offset + key_bytes] = False

    def check(self, data: memoryview | bytes) -> None:
        """Raise BenchError if frames differ."""
        rows = np.frombuffer(data, np.uint8).reshape(-1, self._frame.size)
        due = self._due
        if len(due) > 1:
            numbers = [publisher_of(key.tobytes()) for key in rows[:, self._key]]
            if not self._places.keys() >= set(numbers):
                raise BenchError("a subscriber received messages of other publishers")
            due = due[[self._places[number] for number in numbers]]
        different = (rows != due) & self._checked
        if different.any():
            row, column = (int(found[0]) for found in different.nonzero())
            raise BenchError(f"a subscriber received something else at byte {column} of a message: "
                             f"{rows[row].tobytes()!r}")  # fmt: skip


class CheckedSubscriber(Subscriber):
    """Compares every byte of a frame except for the key, which ``Subscriber`` checks."""

    def _take(self, frames: int, now: int) -> None:
        if self._check is None:
            self._check = FrameCheck(self._frames, KEY_BYTES)
        self._check.check(self._view[: frames * self._size])
        super()._take(frames, now)


def receive_buffer(frame_size: int) -> bytearray:
    """Return a buffer for a partial frame of up to that size and at least one more frame."""
    return bytearray(RECEIVE_BYTES + 2 * frame_size)
