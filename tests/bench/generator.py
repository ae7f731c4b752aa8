"""The load: publishers and subscribers on non-blocking sockets, polled in one loop.

Polling rather than waiting costs the broker nothing, whereas each blocked reader would have to be
woken up inside the broker's own send calls. A publisher keeps at most a window of batches on
their way to its slowest subscriber, so nothing is published that could not be taken.
"""

from __future__ import annotations

import contextlib
import socket
import time
from array import array
from collections.abc import Sequence

import numpy as np

from tests.bench import BenchError
from tests.bench.batches import KEY_BYTES, build_batches, view_keys
from tests.bench.plan import KIB, Plan
from tests.bench.verify import Stream, runs
from tests.bench.wires import Frame, Manners, Wire, manners

Address = tuple[str, int]

RECEIVE_BYTES = 256 * KIB
ACK_BYTES = 64 * KIB
HANDSHAKE_SECONDS = 10.0
STALL_SECONDS = 10.0
UNLIMITED = float("inf")
# Always there and free to choose. Some systems default to bbr, whose pacing on loopback sends a
# sixth of what reno does, so that the load would be measured instead of the broker.
CONGESTION_CONTROL = b"reno"


class Acknowledgments:
    """Reads and counts what the broker answers a publisher's messages with."""

    def __init__(self, sock: socket.socket, frame: Frame) -> None:
        self.count = 0
        self._sock = sock
        self._frame = frame
        self._buffer = memoryview(bytearray(ACK_BYTES // frame.size * frame.size))
        self._rows = np.frombuffer(self._buffer, np.uint8).reshape(-1, frame.size)
        self._good = np.frombuffer(frame.before + frame.after, np.uint8)
        # Between the leading bytes that are always the same and the last is the message's id.
        self._checked = [*range(frame.fixed), *range(frame.offset, frame.size)]
        self._partial = 0

    def poll(self) -> int:
        """Takes what has arrived; returns the bytes received. Raises BenchError."""
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
                raise BenchError(f"a publisher was sent {bad.tobytes().hex(' ')}")
        self.count += frames
        rest = frames * self._frame.size
        self._buffer[: self._partial] = bytes(self._buffer[rest : rest + self._partial])
        return count


class Publisher:
    """Sends ready batches, in a cycle, as long as its window has room.

    What is neither acknowledged, where the protocol acknowledges, nor with every subscriber takes
    up room in it.
    """

    def __init__(
        self,
        sock: socket.socket,
        plan: Plan,
        batches: Sequence[memoryview],
        answer: Frame | None = None,
    ) -> None:
        self.published = 0
        """Messages handed to the kernel, the last batch perhaps in part."""
        self.acks = None if answer is None else Acknowledgments(sock, answer)
        self.allowance = UNLIMITED
        """Batches it may still send."""
        self.streams: list[Stream] = []
        """One per subscriber; with none at all there is no window."""
        self.is_told = False
        """May the broker send things that are neither answers nor errors?"""
        self.sent_at = [0] * len(batches)
        """When each batch of the cycle was last begun, in perf_counter nanoseconds."""
        self.last_sent = 0
        """The latest of them."""
        self.per_batch = plan.per_batch
        self._sock = sock
        self._batches = batches
        self._slot = 0
        self._offset = 0
        self._window = plan.window * plan.per_batch
        self._acknowledged = 0

    def pump(self) -> int:
        """Sends the rest of a batch, or one new batch; returns the bytes sent."""
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
        """Messages the slowest subscriber, or the last acknowledgment, is behind."""
        return self.published - self._slowest()

    def check_answers(self) -> None:
        """Raises BenchError if the broker has sent this publisher anything, an error say."""
        if self.acks is not None:
            self.acks.poll()
            return
        if self.is_told:
            return
        with contextlib.suppress(BlockingIOError):
            data = self._sock.recv(64)
            raise BenchError(f"a publisher was sent {data.hex(' ') or 'end of stream'}")


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


class Load:
    """All publishers and subscribers of one run."""

    def __init__(
        self, address: Address, wire: Wire, plan: Plan, publish_address: Address | None = None
    ) -> None:
        self.plan = plan
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []
        self.samples: array[int] = array("q")
        """Latencies in nanoseconds."""
        self._sockets: list[socket.socket] = []
        self._last_progress = 0.0
        try:
            self._connect(address, publish_address or address, wire)
            self._await_late(manners(wire))
        except BaseException:
            self.close()
            raise

    def _connect(self, address: Address, publish_address: Address, wire: Wire) -> None:
        topology = self.plan.topology
        # Subscribers' sockets come first: what is published before they are there is not theirs.
        readers = []
        for number in range(topology.subscribers):
            hello = wire.subscriber_hello(number % topology.topics, f"bench-sub-{number}")
            readers.append(self._open(address, wire, hello))
        for number in range(topology.publishers):
            topic = number % topology.topics
            hello = wire.publisher_hello(topic, f"bench-pub-{number}")
            sock = self._open(publish_address, wire, hello)
            frame = wire.publication(topic, self.plan.payload)
            batches = build_batches(frame, number, self.plan)
            publisher = Publisher(sock, self.plan, batches, frame.answer)
            publisher.is_told = manners(wire).talkative
            self.publishers.append(publisher)
        frames = [wire.delivery(topic, self.plan.payload) for topic in range(topology.topics)]
        buffer = receive_buffer(max(frame.size for frame in frames))
        for number, sock in enumerate(readers):
            topic = number % topology.topics
            self._subscribe(sock, frames[topic], buffer, topic)

    def _subscribe(self, sock: socket.socket, frame: Frame, buffer: bytearray, topic: int) -> None:
        streams: dict[int, Stream] = {}
        publishers: dict[int, Publisher] = {}
        for number in range(topic, len(self.publishers), self.plan.topology.topics):
            streams[number] = Stream(self.plan.per_batch * self.plan.cycle)
            publishers[number] = self.publishers[number]
            publishers[number].streams.append(streams[number])
        self.subscribers.append(Subscriber(sock, frame, buffer, streams, publishers, self.samples))

    def _open(self, address: Address, wire: Wire, hello: bytes) -> socket.socket:
        sock = connect(address, hello, manners(wire).greeting)
        self._sockets.append(sock)
        await_welcome(sock, wire)
        sock.setblocking(False)
        return sock

    def _await_late(self, expected: Manners) -> None:
        """Have it out of the way, before there are messages that it would come between."""
        for sock in self._sockets if expected.late else ():
            sock.settimeout(HANDSHAKE_SECONDS)
            got = sock.recv(len(expected.late), socket.MSG_WAITALL)
            if got != expected.late:
                raise BenchError(f"the broker sent {got!r} instead of {expected.late!r}")
            sock.sendall(expected.answer)
            sock.setblocking(False)

    def close(self) -> None:
        """Closes every connection."""
        for sock in self._sockets:
            sock.close()

    def sweep(self) -> None:
        """Lets each publisher send and each subscriber receive once.

        Raises BenchError if nothing has moved for STALL_SECONDS.
        """
        moved = 0
        try:
            for publisher in self.publishers:
                moved += publisher.pump()
                if publisher.acks is not None:
                    moved += publisher.acks.poll()
            for subscriber in self.subscribers:
                moved += subscriber.poll()
        except ConnectionError as error:
            raise BenchError(f"the broker dropped a connection: {error}") from error
        now = time.monotonic()
        if moved or not self._last_progress:
            self._last_progress = now
        elif now - self._last_progress > STALL_SECONDS and self.outstanding():
            self._stalled()

    def _stalled(self) -> None:
        for publisher in self.publishers:
            publisher.check_answers()
        raise BenchError(
            f"no progress for {STALL_SECONDS:.0f} s: of {self.published} messages published "
            f"{self.outstanding()} have not reached their slowest subscriber"
            + ("" if self.publishers[0].acks is None else " or are not acknowledged")
        )

    def run(self, seconds: float) -> None:
        """Publishes as fast as the windows allow."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.sweep()

    def drain(self) -> None:
        """Stops publishing and receives all that is on its way. Raises BenchError."""
        for publisher in self.publishers:
            publisher.allowance = 0
        while self.outstanding():
            self.sweep()
        for publisher in self.publishers:
            publisher.check_answers()

    def outstanding(self) -> int:
        """Messages that have not reached their slowest subscriber."""
        return sum(publisher.outstanding() for publisher in self.publishers)

    @property
    def published(self) -> int:
        return sum(publisher.published for publisher in self.publishers)

    @property
    def acknowledged(self) -> int:
        return sum(publisher.acks.count for publisher in self.publishers if publisher.acks)

    @property
    def delivered(self) -> int:
        return sum(subscriber.delivered for subscriber in self.subscribers)

    @property
    def streams(self) -> list[Stream]:
        """Of all subscribers."""
        return [stream for reader in self.subscribers for stream in reader.streams.values()]


def receive_buffer(frame_size: int) -> bytearray:
    """For a subscriber of frames up to that size: holds a partial frame, and one more at least."""
    return bytearray(RECEIVE_BYTES + 2 * frame_size)


def connect(address: Address, hello: bytes, greeting: int = 0) -> socket.socket:
    """Opens a blocking connection and sends `hello`. Raises BenchError.

    The first `greeting` bytes of it are answered by as many before the rest is sent.
    """
    try:
        sock = socket.create_connection(address, HANDSHAKE_SECONDS)
        tune(sock)
        if greeting:
            sock.sendall(hello[:greeting])
            sock.recv(greeting, socket.MSG_PEEK | socket.MSG_WAITALL)
        sock.sendall(hello[greeting:])
    except OSError as error:
        raise BenchError(f"cannot connect: {error}") from error
    return sock


def tune(sock: socket.socket) -> None:
    """Makes the kernel send what it is given at once."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)


def await_welcome(sock: socket.socket, wire: Wire) -> None:
    """Waits for the broker's answer to the hello. Raises BenchError."""
    answer = b""
    try:
        while not wire.welcomed(answer):
            data = sock.recv(4096)
            if not data:
                raise BenchError("the broker closed a connection during its handshake")
            answer += data
    except OSError as error:
        raise BenchError(f"{wire.name} handshake failed: {error}") from error
