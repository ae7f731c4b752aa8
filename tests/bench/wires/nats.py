"""The NATS core wire, for other brokers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tests.bench import BenchError
from tests.bench.wires.frame import Frame
from tests.bench.wires.traits import BrokerTraits

END = b"\r\n"
CONNECT = b'CONNECT {"verbose":false,"pedantic":false}\r\n'
TRAITS = BrokerTraits(late_frame=b"PING\r\n", late_reply=b"PONG\r\n")
MAX_PAYLOAD = 1 << 20
_WELCOME = re.compile(rb"INFO \{[^\r]*\r\nPONG\r\n")


class NatsWire:
    """A subject is ``bench.<number>``, and the number is also that of its subscription."""

    name = "nats"
    max_payload = MAX_PAYLOAD
    topics = 1000

    def publisher_hello(self, topics: Sequence[int], client: str) -> bytes:
        return CONNECT + b"PING\r\n"

    def subscriber_hello(self, topics: Sequence[int], client: str) -> bytes:
        subscribe = b"".join(b"SUB %b %d\r\n" % (_subject(topic), topic) for topic in topics)
        return CONNECT + subscribe + b"PING\r\n"

    def welcomed(self, answer: bytes, topics: int = 1) -> bool:
        if b"-ERR" in answer:
            raise BenchError(f"the broker answered a NATS CONNECT with {answer[-80:]!r}")
        return _WELCOME.fullmatch(answer) is not None

    def publication(self, topic: int, payload: int) -> Frame:
        before = b"PUB %b %d\r\n" % (_subject(topic), payload)
        return Frame(before, payload, END, fixed=len(before))

    def delivery(self, topic: int, payload: int) -> Frame:
        before = b"MSG %b %d %d\r\n" % (_subject(topic), topic, payload)
        return Frame(before, payload, END, fixed=len(before))


def _subject(number: int) -> bytes:
    return b"bench.%d" % number
