"""Encodings of every kind: frames that depend on the time or the sender, rows, and runs."""

from __future__ import annotations

from dataclasses import dataclass

from pubsub.broker.routing.batch import Batch
from pubsub.broker.routing.encoders import RowEncoding
from pubsub.http_api.websocket.websocket_frames import FrameEncoding
from pubsub.interfaces import Encoding
from pubsub.protocols.cafe.channels import MessageEncoding
from pubsub.protocols.rheos.response_encoding import ResponseEncoding
from tests.unit.fakes import Lines


@dataclass(frozen=True)
class Named(RowEncoding):
    """The topic, the sender and the payload of each message."""

    def rows(self, batch: Batch, names: list[bytes | None]) -> tuple[bytes, int]:
        parts = [
            name + b" " + part.sender + b" %d " % part.timestamp + payload + b"\n"
            for part in batch.parts()
            for index, payload in zip(part.columns.indexes(), part.payloads(), strict=True)
            if (name := names[index]) is not None
        ]
        return b"".join(parts), len(parts)


def encoding_of(kind: str, topic: int) -> Encoding:
    """Return an encoding of ``kind``, which is not the same for each topic."""
    match kind:
        case "times":
            return MessageEncoding(topic)
        case "senders":
            return ResponseEncoding(b"%d" % topic, 2)
        case "small":
            return Lines(b"%d" % topic, limit=1)
        case "rows":
            return Named()
        case "frames":
            return FrameEncoding(headers=True, binary=topic == 0, run=7)
    return Lines(b"%d" % topic)
