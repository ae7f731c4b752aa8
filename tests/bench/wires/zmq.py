"""The wire of ZeroMQ's PUB and SUB sockets, for libzmq's proxy."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench import BenchError
from tests.bench.wires.frame import Frame
from tests.bench.wires.spot import COMMAND, GREETING, MORE, READY_START, last_head
from tests.bench.wires.traits import BrokerTraits

MAX_PAYLOAD = 1 << 20
# libzmq closes a connection that sends the whole hello at once. Publishers receive subscriptions.
TRAITS = BrokerTraits(greeting=len(GREETING), unsolicited=True)


def ready(kind: bytes) -> bytes:
    """Return the READY command of a socket of that kind."""
    body = b"\x05READY\x0bSocket-Type" + len(kind).to_bytes(4, "big") + kind
    return bytes([COMMAND, len(body)]) + body


class ZmqWire:
    """A topic is ``bench/<number>``, in a frame before that of the payload.

    A subscription is a prefix, so all numbers have three digits.
    """

    name = "zmq"
    max_payload = MAX_PAYLOAD
    topics = 1000

    def publisher_hello(self, topics: Sequence[int], client: str) -> bytes:
        return GREETING + ready(b"PUB")

    def subscriber_hello(self, topics: Sequence[int], client: str) -> bytes:
        names = [b"\x01" + _topic(topic) for topic in topics]
        subscribe = [last_head(len(name)) + name for name in names]
        return GREETING + ready(b"SUB") + b"".join(subscribe)

    def welcomed(self, answer: bytes, topics: int = 1) -> bool:
        # The first ten bytes are for peers of earlier versions.
        if answer[10:12] not in (b"", b"\3", b"\3\1"):
            raise BenchError(f"the proxy greeted with {answer[:32].hex(' ')}")
        if len(answer) < READY_START or len(answer) < READY_START + answer[READY_START - 1]:
            return False
        # A publisher receives the subscriptions. Before that, it would publish to no subscriber.
        end = READY_START + answer[READY_START - 1]
        return b"XPUB" in answer[READY_START:end] or len(answer) > end

    def publication(self, topic: int, payload: int) -> Frame:
        name = _topic(topic)
        before = bytes([MORE, len(name)]) + name + last_head(payload)
        return Frame(before, payload, fixed=len(before))

    def delivery(self, topic: int, payload: int) -> Frame:
        return self.publication(topic, payload)


def _topic(number: int) -> bytes:
    return b"bench/%03d" % number
