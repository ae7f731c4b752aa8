"""Publishers and subscribers of mixed traffic, over any wire. Every byte received is compared."""

from __future__ import annotations

import contextlib
import socket
from bisect import bisect_right
from collections.abc import Callable, Iterator

import numpy as np

from tests.bench import BenchError
from tests.bench.plan import KIB
from tests.bench.poller import plain_messages
from tests.bench.publisher import Acknowledgments
from tests.bench.rows import Messages, payload
from tests.bench.wires import Frame, Wire

# Small enough that it stays in the cache of the processor, with the expected bytes.
_RECEIVE = 256 * KIB


class Sender:
    """A publisher: sends its batch again and again, in ``parts`` parts."""

    def __init__(
        self, sock: socket.socket, wire: Wire, messages: Messages, number: int, parts: int = 1
    ) -> None:
        frames = [wire.publication(topic, size) for topic, size in messages]
        self.sent = 0
        """Parts, the last of them perhaps partially."""
        self.messages = len(messages) // parts
        answer = frames[0].answer
        self.acks = None if answer is None else Acknowledgments(sock, answer)
        wholes = list(_wholes(frames, number))
        self._parts = [
            memoryview(b"".join(wholes[start : start + self.messages]))
            for start in range(0, len(wholes), self.messages)
        ]
        self._left = self._parts[0][:0]
        self._socket = sock

    @property
    def acknowledged(self) -> float:
        """Parts that are acknowledged; without acknowledgments, those sent."""
        return self.sent if self.acks is None else self.acks.count / self.messages

    def pump(self, may_begin: bool) -> None:
        """Send the rest of a part, or begin another, and read acknowledgments."""
        if not self._left and may_begin:
            self._left = self._parts[self.sent % len(self._parts)]
            self.sent += 1
        with contextlib.suppress(BlockingIOError):
            if self._left:
                self._left = self._left[self._socket.send(self._left) :]
        if self.acks is not None:
            self.acks.poll()

    def check_answers(self) -> None:
        """Raise BenchError if the broker has sent something, such as an error."""
        if self.acks is not None:
            return
        with contextlib.suppress(BlockingIOError):
            data = self._socket.recv(64)
            raise BenchError(f"a publisher received {data.hex(' ') or 'end of stream'}")


class Receiver:
    """A subscriber: compares its input with the messages that the publisher sends to its topics."""

    def __init__(
        self,
        sock: socket.socket,
        wire: Wire,
        messages: Messages,
        topics: frozenset[int],
        publisher: int,
        parts: int = 1,
    ) -> None:
        self.publisher = publisher
        self.received = 0
        """Bytes."""
        places = [place for place, (topic, _) in enumerate(messages) if topic in topics]
        self.messages = len(places) / parts
        """Messages of a part, on average."""
        frames = [wire.delivery(*messages[place]) for place in places]
        numbers = [place * parts // len(messages) for place in places]
        sizes = np.bincount(numbers, [frame.size for frame in frames], parts)
        # The bytes of the parts up to each of them.
        self._ends = [int(end) for end in np.cumsum(sizes)]
        expected = b"".join(_wholes(frames, publisher, places))
        self.cycle = len(expected)
        repeats = 2 + _RECEIVE // self.cycle
        self._expected = np.frombuffer(expected * repeats, np.uint8)
        changing = any(frame.fixed < frame.offset for frame in frames)
        self._fixed = np.frombuffer(_fixed(frames) * repeats, np.uint8) if changing else None
        self._buffer = np.zeros(_RECEIVE, np.uint8)
        self._difference = np.zeros(_RECEIVE, np.uint8)
        self._socket = sock

    @property
    def parts(self) -> float:
        """The parts received."""
        cycles, rest = divmod(self.received, self.cycle)
        part = bisect_right(self._ends, rest)
        start = self._ends[part - 1] if part else 0
        whole = cycles * len(self._ends) + part
        return whole + (rest - start) / (self._ends[part] - start)

    def cycle_bytes(self) -> bytes:
        """Return the bytes that arrive for one batch, with the wire's own where brokers differ."""
        return self._expected[: self.cycle].tobytes()

    def poll(self, behind: bool = True) -> None:
        """Receive and compare; raises BenchError. ``behind`` is false if nothing can arrive."""
        try:
            count = self._socket.recv_into(self._buffer)  # type: ignore[arg-type]
        except BlockingIOError:
            return
        if not count:
            raise BenchError("the broker closed a subscriber's connection")
        self._compare(count)

    def _compare(self, count: int) -> None:
        """Compare the first ``count`` bytes of the buffer."""
        start = self.received % self.cycle
        part = slice(start, start + count)
        difference = self._difference[:count]
        np.bitwise_xor(self._buffer[:count], self._expected[part], out=difference)
        if self._fixed is not None:
            np.bitwise_and(difference, self._fixed[part], out=difference)
        if difference.any():
            place = self.received + int(np.flatnonzero(difference)[0])
            raise BenchError(f"a subscriber received something else at byte {place}")
        self.received += count


class ListReceiver(Receiver):
    """A subscriber that asks for lists of messages.

    The numbers of messages are replaced before the comparison, so ``received`` counts bytes with
    the shortest number.
    """

    def request_with(self, make_request: Callable[[int], bytes]) -> None:
        """Set the function that makes the request for the messages after a number."""
        self._make_request = make_request
        self._after = 0
        self._line: list[bytes] | None = None

    def poll(self, behind: bool = True) -> None:
        """See ``Receiver``. A request is sent only if messages are in flight."""
        if self._line is None:
            if not behind:
                return
            self._socket.sendall(self._make_request(self._after))
            self._line = []
        try:
            data = self._socket.recv(_RECEIVE)
        except BlockingIOError:
            return
        if not data:
            raise BenchError("the broker closed a subscriber's connection")
        self._line.append(data)
        if data.endswith(b"\n"):
            line = b"".join(self._line)
            self._line = None
            self._take(line)

    def _take(self, line: bytes) -> None:
        messages = plain_messages(line)
        for start in range(0, len(messages), _RECEIVE):
            piece = messages[start : start + _RECEIVE]
            self._buffer[: len(piece)] = np.frombuffer(piece, np.uint8)
            self._compare(len(piece))
        if messages:
            number = line[line.rindex(b'"when":') + len(b'"when":') :]
            self._after = int(number[: number.index(b",")])


def _wholes(
    frames: list[Frame], publisher: int, places: list[int] | None = None
) -> Iterator[bytes]:
    """Return complete frames; a message's place in the batch decides its payload."""
    for place, frame in zip(places or range(len(frames)), frames, strict=True):
        data = payload(publisher, place, frame.payload, frame.text)
        yield frame.before + data + frame.after


def _fixed(frames: list[Frame]) -> bytes:
    """Return ff for each byte that the broker may not change, and zero for the others."""
    return b"".join(
        b"\xff" * frame.fixed
        + bytes(frame.offset - frame.fixed)
        + b"\xff" * (frame.size - frame.offset)
        for frame in frames
    )
