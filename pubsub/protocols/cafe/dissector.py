"""cafe for Wireshark: the presentation of the fields of ``codec.py`` (cafe §2, §3)."""

from __future__ import annotations

from collections.abc import Mapping

from pubsub.dissector.declaration import (
    Declaration,
    Frame,
    FrameSender,
    Hint,
    Packet,
    Packets,
    Show,
    Suffix,
    items,
    struct_items,
    upper_name,
)
from pubsub.protocols.cafe.client_id import RESUME
from pubsub.protocols.cafe.codec import (
    FRAMES,
    FROM_BROKER,
    HEADER,
    MAGIC,
    MAX_MESSAGE,
    MAX_PAYLOAD,
    Disconnect,
    ErrorCode,
    Ping,
    Pong,
)

_EITHER = {Disconnect, Ping, Pong}
_SUCCESS = {0: "SUCCESS"}
_HINTS = {
    "magic": Hint(Show.HEX),
    "opcode": Hint(Show.HEX, values={code: upper_name(each) for code, each in FRAMES.items()}),
    "channels": Hint(each="channel"),
    "client_id": Hint(Show.TEXT, suffix=Suffix(RESUME.decode(), "resumed_session", 16)),
    "session_id": Hint(Show.HEX),
    "timestamp": Hint(Show.MILLISECONDS),
    "payload": Hint(most=MAX_MESSAGE),
    "code": Hint(values=ErrorCode, refusal=True),
    "status": Hint(values=_SUCCESS | {code.value: code.name for code in ErrorCode}, refusal=True),
}


def _sender(frame: type) -> FrameSender:
    if frame in _EITHER:
        return FrameSender.EITHER
    return FrameSender.BROKER if frame in FROM_BROKER else FrameSender.CLIENT


def _packets(options: Mapping[str, str]) -> list[Packet]:
    frames = {
        code: Frame(upper_name(each), items(each, _HINTS), _sender(each))
        for code, each in FRAMES.items()
    }
    return [
        Packet(
            head=struct_items(HEADER, ("magic", "opcode", "length"), _HINTS),
            start=MAGIC.to_bytes(2, "little"),
            frames=frames,
            select="opcode",
            length="length",
            limit=MAX_PAYLOAD,
        )
    ]


DISSECTOR = Declaration("CAFE", Packets(_packets), udp=True)
