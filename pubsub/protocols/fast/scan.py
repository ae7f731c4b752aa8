"""fast's path of a message: runs of PUBLISH in, runs of MESSAGE out, without a step a message.

All that PUBLISH puts before the message (the token, the topic, the length) is its head, looked up
whole: a client that goes on with one token and one size costs no parsing. Nothing here knows
Twisted or the broker.
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
# Heads that are remembered; then it starts anew.
_KNOWN = 16_384


@dataclass(slots=True)
class Row:
    """Messages in a row with one token to one topic; ``end`` is where they end in the input."""

    token: bytes
    topic_id: int
    run: MessageRun
    end: int


class Scanner:
    """Finds the runs of PUBLISH in what clients of one listener send."""

    def __init__(self, max_payload: int) -> None:
        self._max_payload = max_payload
        # Head to token, topic id and payload length. The token is the same object each time,
        # so that its hash is computed once.
        self._heads: dict[bytes, tuple[bytes, int, int]] = {}

    def scan(self, data: bytes, at: int) -> tuple[int, list[Row]]:
        """Where the PUBLISH from ``at`` on end, and their rows.

        They end at the end of ``data``, at a packet that is not all there, or at one that is not
        a PUBLISH of a size that is allowed: that is for the codec.
        """
        rows: list[Row] = []
        row: Row | None = None
        end = len(data)
        while end - at >= PUBLISH_OVERHEAD and data[at] == PUBLISH:
            start = at + PUBLISH_OVERHEAD + data[at + 1]
            head = data[at:start]
            token, topic_id, size = self._heads.get(head) or self._learn(head, start - at)
            stop = start + size
            if stop > end or size > self._max_payload:
                break
            if row is None or row.token != token or row.topic_id != topic_id:
                row = Row(token, topic_id, MessageRun([], size), at)
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

    def first(self, data: bytes) -> tuple[Row, int] | None:
        """The row of the PUBLISH that ``data`` begins with, and where its payload does.

        The payload is to be added. None if it is another packet, or one that is not allowed.
        """
        if data[:1] != bytes((PUBLISH,)) or len(data) < PUBLISH_OVERHEAD + data[1]:
            return None
        start = PUBLISH_OVERHEAD + data[1]
        head = data[:start]
        token, topic_id, size = self._heads.get(head) or self._learn(head, start)
        return (
            None
            if size > self._max_payload
            else (Row(token, topic_id, MessageRun([], size), 0), start)
        )

    def _learn(self, head: bytes, length: int) -> tuple[bytes, int, int]:
        """What a head says; remembered if it is all there."""
        if len(head) < length:
            return b"", 0, self._max_payload + 1
        token = head[2:-8]
        topic_id, size = _TAIL.unpack_from(head, length - 8)
        if size > self._max_payload:
            return token, topic_id, size
        if len(self._heads) >= _KNOWN:
            self._heads.clear()
        learnt = self._heads[head] = (token, topic_id, size)
        return learnt


def encode_messages(topic_id: int, payloads: list[bytes], size: int) -> bytes:
    """MESSAGE packets for ``payloads``, each of ``size`` bytes or MIXED."""
    return join_run(lambda length: _MESSAGE_HEAD.pack(_MESSAGE, topic_id, length), payloads, size)
