"""The spot wire: ZMTP 3.1 of DEALER sockets, with the frames of PUBLISH around each payload."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench import BenchError
from tests.bench.wires.frame import Frame

GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x01" + b"NULL".ljust(20, b"\0") + bytes(32)
COMMAND = 0x04
MORE = 0x01
LONG = 0x02
MAX_PAYLOAD = 1 << 20
# The broker replies with its greeting, and READY with at least its socket type.
READY_START = len(GREETING) + 2


def ready(identity: str) -> bytes:
    """Return the READY command of a DEALER socket."""
    properties = {b"Socket-Type": b"DEALER", b"Identity": identity.encode()}
    body = b"\x05READY"
    for name, value in properties.items():
        body += bytes([len(name)]) + name + len(value).to_bytes(4, "big") + value
    return bytes([COMMAND, len(body)]) + body


def last_head(size: int) -> bytes:
    """Return the bytes before the last frame of a message."""
    return bytes([0, size]) if size < 256 else bytes([LONG]) + size.to_bytes(8, "big")


def stem(command: int, *names: bytes) -> bytes:
    """Return the delimiter, the command and, as frames with more to follow, the names."""
    frames = [bytes([MORE, len(name)]) + name for name in names]
    return bytes([MORE, 0, MORE, 1, command]) + b"".join(frames)


def spot_publication(topic: int, payload: int, *origin: bytes) -> Frame:
    """Return the frame of one message, perhaps with an origin."""
    before = stem(1, *origin, _topic(topic)) + last_head(payload)
    return Frame(before, payload, fixed=len(before))


class SpotWire:
    """A topic is ``bench/<number>``."""

    name = "spot"
    max_payload = MAX_PAYLOAD
    topics = 1000

    def publisher_hello(self, topics: Sequence[int], client: str) -> bytes:
        return GREETING + ready(client)

    def subscriber_hello(self, topics: Sequence[int], client: str) -> bytes:
        names = [_topic(topic) for topic in topics]
        subscribe = [bytes([MORE, 0, MORE, 1, 2]) + last_head(len(name)) + name for name in names]
        return GREETING + ready(client) + b"".join(subscribe)

    def welcomed(self, answer: bytes, topics: int = 1) -> bool:
        if answer[: len(GREETING)] != GREETING[: len(answer)]:
            raise BenchError(f"the broker greeted a spot socket with {answer[:32].hex(' ')}")
        if len(answer) < READY_START or len(answer) < READY_START + answer[READY_START - 1]:
            return False
        if answer[READY_START:].startswith(b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER"):
            return True
        raise BenchError(f"the broker is not ready: {answer[READY_START:].hex(' ')}")

    def publication(self, topic: int, payload: int) -> Frame:
        return spot_publication(topic, payload)

    def delivery(self, topic: int, payload: int) -> Frame:
        return self.publication(topic, payload)


def _topic(number: int) -> bytes:
    return b"bench/%d" % number
