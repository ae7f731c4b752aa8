"""Runs of PUBLISH and MESSAGE, parsed and encoded without a step for each message.

Everything that PUBLISH has before the payload (the token, the topic, the length) is its head and is
looked up as a whole, so a client that continues with one token and one size costs no parsing. This
module knows neither Twisted nor the broker.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from pubsub.broker.message_run import MIXED, MessageRun
from pubsub.protocols.fast.codec import PUBLISH, PUBLISH_OVERHEAD
from pubsub.wire.frame_runs import cut_run, join_run

_MESSAGE = 0x04
_MESSAGE_HEAD = Struct(">BII")
_TAIL = Struct(">II")
# Heads that are cached; the cache is then cleared.
_CACHED_HEADS = 16_384


@dataclass(slots=True)
class TokenRun:
    """Consecutive messages with one token to one topic; ``end`` is the position after them."""

    token: bytes
    topic_id: int
    run: MessageRun
    end: int


class Scanner:
    """Finds runs of PUBLISH in the input of one listener's clients."""

    def __init__(self, max_payload: int) -> None:
        self._max_payload = max_payload
        # Head to token, topic id and payload length. The token is the same object each time, so
        # its hash is computed once.
        self._heads: dict[bytes, tuple[bytes, int, int]] = {}

    def scan(self, data: bytes, at: int) -> tuple[int, list[TokenRun]]:
        """Return the runs of PUBLISH from ``at`` on, and the position after them.

        That is the end of ``data``, an incomplete packet, or a packet that is not a PUBLISH of a
        permitted size, which the codec handles.
        """
        rows: list[TokenRun] = []
        row: TokenRun | None = None
        end = len(data)
        while end - at >= PUBLISH_OVERHEAD and data[at] == PUBLISH:
            start = at + PUBLISH_OVERHEAD + data[at + 1]
            head = data[at:start]
            token, topic_id, size = self._heads.get(head) or self._parse_head(head, start - at)
            stop = start + size
            if stop > end or size > self._max_payload:
                break
            if row is None or row.token != token or row.topic_id != topic_id:
                row = TokenRun(token, topic_id, MessageRun([], size), at)
                rows.append(row)
            run = row.run
            if run.size != size:
                run.size = MIXED
            if data.startswith(head, stop):
                found = cut_run(data, at, head, size)
                run.extend(found)
                at += len(found) * (stop - at)
            else:
                run.payloads.append(data[start:stop])
                at = stop
            row.end = at
        return at, rows

    def first(self, data: bytes) -> tuple[TokenRun, int] | None:
        """Return an empty run for the PUBLISH at the start of ``data``, and its payload's position.

        None if it is another packet, or one that is too large.
        """
        if data[:1] != bytes((PUBLISH,)) or len(data) < PUBLISH_OVERHEAD + data[1]:
            return None
        start = PUBLISH_OVERHEAD + data[1]
        head = data[:start]
        token, topic_id, size = self._heads.get(head) or self._parse_head(head, start)
        return (
            None
            if size > self._max_payload
            else (TokenRun(token, topic_id, MessageRun([], size), 0), start)
        )

    def _parse_head(self, head: bytes, length: int) -> tuple[bytes, int, int]:
        """Parse a head; cache it if it is complete and its size is permitted."""
        if len(head) < length:
            return b"", 0, self._max_payload + 1
        token = head[2:-8]
        topic_id, size = _TAIL.unpack_from(head, length - 8)
        if size > self._max_payload:
            return token, topic_id, size
        if len(self._heads) >= _CACHED_HEADS:
            self._heads.clear()
        parsed = self._heads[head] = (token, topic_id, size)
        return parsed


def encode_messages(topic_id: int, payloads: list[bytes], size: int) -> bytes:
    """Return MESSAGE packets for ``payloads`` of ``size`` bytes each, or MIXED."""
    return join_run(lambda length: _MESSAGE_HEAD.pack(_MESSAGE, topic_id, length), payloads, size)
