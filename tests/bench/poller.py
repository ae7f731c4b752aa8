"""Subscribers that poll: they send a request for messages after each reply."""

from __future__ import annotations

import re
import time
from collections.abc import Callable

import numpy as np

from tests.bench import BenchError
from tests.bench.batches import TEXT_KEY_BYTES
from tests.bench.subscriber import RECEIVE_BYTES, FrameCheck, Subscriber
from tests.bench.verify import runs

LIST = b'{"_class":"MessageListResponse","messages":['
_END = b"]}\n"
_BODY = b'"body":"'
_WHEN = b'"when":'
# Hexadecimal digits of a key.
_DIGITS = TEXT_KEY_BYTES
_NUMBER = re.compile(rb'"when":\d+')


class Poller(Subscriber):
    """Requests messages as JSON, one list a line.

    It sends a request only while messages are in flight, so that the benchmark does not measure
    empty replies.
    """

    def poll_with(self, make_request: Callable[[int], bytes]) -> None:
        """Set the function that makes the request for the messages after a number."""
        self._make_request = make_request
        self._after = 0
        self._waiting = False
        self._line: list[bytes] = []

    def poll(self) -> int:
        """See ``Subscriber``."""
        if not self._waiting:
            if not self._behind():
                return 0
            self._sock.sendall(self._make_request(self._after))
            self._waiting = True
        try:
            data = self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return 0
        now = time.perf_counter_ns()
        if not data:
            raise BenchError("the broker closed a subscriber's connection")
        self._line.append(data)
        if data.endswith(b"\n"):
            line = b"".join(self._line)
            self._line = []
            self._waiting = False
            return self._take_line(line, now)
        return len(data)

    def _behind(self) -> bool:
        return any(
            publisher.published > self.streams[number].position
            for number, publisher in self._publishers.items()
        )

    def _take_line(self, line: bytes, now: int) -> int:
        """Return the bytes of messages; an empty list is no progress."""
        if not line.startswith(LIST):
            raise BenchError(f"a subscriber received {line[:200]!r} instead of a list")
        first, *bodies = line.split(_BODY)
        if not bodies:
            return 0
        # The number of a message precedes its body.
        before = bodies[-2] if len(bodies) > 1 else first
        self._after = int(before[before.rindex(_WHEN) + len(_WHEN) :].rstrip(b","))
        if len(bodies) * self._size > len(line):
            raise BenchError(f"messages are shorter than they were sent: {line[:200]!r}")
        digits = b"".join([body[:_DIGITS] for body in bodies])
        keys = np.frombuffer(bytes.fromhex(digits.decode()), ">u8").astype("<u8")
        for publisher, start, count in runs(keys):
            stream = self.streams.get(publisher)
            if stream is None or start + count > stream.cycle:
                raise BenchError(f"message {start} of publisher {publisher} is not in this run")
            stream.arrived(start, count)
            self._sample(self._publishers[publisher], start, count, now)
        self.delivered += len(bodies)
        return len(line)


class CheckedPoller(Poller):
    """Compares every byte of a list but the numbers, and the keys, which ``Poller`` checks."""

    def _take_line(self, line: bytes, now: int) -> int:
        messages = plain_messages(line)
        if len(messages) % self._size:
            raise BenchError(f"messages have another size: {line[:200]!r}")
        if self._check is None:
            self._check = FrameCheck(self._frames, TEXT_KEY_BYTES)
        self._check.check(messages)
        return super()._take_line(line, now)


def plain_messages(line: bytes) -> bytes:
    """Return the messages of a list, each numbered 1 and followed by a comma. Raises BenchError."""
    if not (line.startswith(LIST) and line.endswith(_END)):
        raise BenchError(f"a subscriber received {line[:200]!r} instead of a list")
    messages = line[len(LIST) : -len(_END)]
    return _NUMBER.sub(b'"when":1', messages) + b"," if messages else b""
