"""Messages that share a frame of the WebSocket (docs/websocket.md). Sans-IO."""

from __future__ import annotations

import base64
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from pubsub.kernel import Columns
from pubsub.wire.client_events import Messages, MixedMessages
from pubsub.wire.client_wire import Headers

MALFORMED = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError)
"""The errors of objects with other members than those of the protocol."""


@dataclass(slots=True)
class RowRun:
    """Messages of one topic that arrived one after another, all of them stored or none."""

    topic: str = ""
    stored: bool = True
    payloads: list[bytes] = field(default_factory=list)
    timestamps: list[int] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    senders: list[bytes] = field(default_factory=list)
    headers: list[Headers] = field(default_factory=list)

    def messages(self) -> Messages:
        """Return the messages."""
        return Messages(
            self.topic,
            Columns.of(self.payloads),
            timestamps=self.timestamps,
            offsets=self.offsets if self.stored else None,
            senders=self.senders,
            headers=self.headers,
        )


def messages_of_batch(batch: Any, payload: bytes) -> Messages | MixedMessages:
    """Return the messages of a frame: the member ``batch`` of its object, and its payload.

    Raises the errors of MALFORMED.
    """
    sizes, indexes = array("I", batch["sizes"]), b""
    topics: tuple[str, ...] = (str(batch["topic"]),)
    if "topics" in batch:
        topics = tuple(map(str, batch["topics"]))
        indexes = array("I", batch["indexes"]).tobytes()
    columns = Columns.unpack(payload, sizes.tobytes(), indexes)
    count, offsets = columns.count, _offsets(batch, columns.count)
    headers: list[Headers] = [
        {str(one["key"]): value_of(one) for one in listed}
        for listed in batch.get("headers", [()] * count)
    ]
    if not count or len(headers) != count or (offsets is not None and len(offsets) != count):
        raise ValueError
    timestamps = [int(batch["timestamp"])] * count
    senders = [base64.b64decode(batch["key"])] * count
    if len(topics) == 1 and not indexes:
        return Messages(
            topics[0], columns,
            timestamps=timestamps, offsets=offsets, senders=senders, headers=headers,
        )  # fmt: skip
    if max(columns.indexes()) >= len(topics):
        raise ValueError
    mixed = MixedMessages(topics, columns, timestamps, offsets, senders, headers)
    # Those of other topics may have been left out.
    return mixed if len(topics) > 1 else next(mixed.runs())


def _offsets(batch: Any, count: int) -> Sequence[int] | None:
    """Return the offset of each message; None if they are not stored."""
    if "offsets" in batch:
        return list(map(int, batch["offsets"]))
    if batch["offset"] is None:
        return None
    first = int(batch["offset"])
    return range(first, first + count)


def value_of(row: Any) -> bytes:
    """Return the value of a message or header, which is text or base64."""
    if "value_base64" in row:
        return base64.b64decode(row["value_base64"])
    value: str = row["value"]
    return value.encode()
