"""The publish/subscribe wire of Redis, for other brokers."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench import BenchError
from tests.bench.wires.frame import Frame

END = b"\r\n"
MAX_PAYLOAD = 1 << 20


class RespWire:
    """A channel is ``bench/<number>``. Replies to publishers are switched off."""

    name = "resp"
    max_payload = MAX_PAYLOAD
    topics = 1000

    def publisher_hello(self, topics: Sequence[int], client: str) -> bytes:
        return command(b"PING") + command(b"CLIENT", b"REPLY", b"OFF")

    def subscriber_hello(self, topics: Sequence[int], client: str) -> bytes:
        return command(b"SUBSCRIBE", *[_channel(topic) for topic in topics])

    def welcomed(self, answer: bytes, topics: int = 1) -> bool:
        if answer.startswith(b"-"):
            raise BenchError(f"the broker answered a Redis command with {answer!r}")
        subscribed = answer.startswith(b"*3\r\n$9\r\nsubscribe\r\n") and answer.endswith(
            b"\r\n:%d\r\n" % topics
        )
        return answer == b"+PONG\r\n" or subscribed

    def publication(self, topic: int, payload: int) -> Frame:
        before = command(b"PUBLISH", _channel(topic), bytes(payload))[: -payload - len(END)]
        return Frame(before, payload, END, fixed=len(before))

    def delivery(self, topic: int, payload: int) -> Frame:
        before = command(b"message", _channel(topic), bytes(payload))[: -payload - len(END)]
        return Frame(before, payload, END, fixed=len(before))


def command(*words: bytes) -> bytes:
    """Return a command, or any array of strings, in RESP."""
    parts = [b"*%d\r\n" % len(words)]
    parts += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
    return b"".join(parts)


def _channel(number: int) -> bytes:
    return b"bench/%d" % number
