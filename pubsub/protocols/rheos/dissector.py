"""rheos for Wireshark: the presentation of the fields of ``codec.py``, by layout (rheos §7)."""

from __future__ import annotations

from collections.abc import Mapping

from pubsub.dissector.declaration import (
    Declaration,
    Frame,
    FrameSender,
    Hint,
    Item,
    Packet,
    Packets,
    Show,
    items,
)
from pubsub.protocols.rheos.codec import (
    ACK_MAGIC,
    FAILED,
    LAYOUTS,
    MAGIC,
    MAX_PAYLOAD,
    RESPONSE_SIZE,
    SUCCESS,
    Ack,
    Opcode,
    ResponseHeader,
)
from pubsub.wire.fields import U8, Remainder

_CODES = {SUCCESS: "SUCCESS", FAILED: "FAILED"}
_HINTS = {
    "client_id": Hint(Show.UUID, nonzero=True),
    "sender_id": Hint(Show.UUID),
    "message_id": Hint(Show.UUID),
    "opcode": Hint(values=Opcode),
    "name": Hint(Show.TEXT, least=1, most=255, utf8=True),
    "code": Hint(values=_CODES, strict=True, refusal=True),
}
_PAYLOAD = Item("payload", Remainder())


def _first(name: str) -> Item:
    return Item(name, U8, Hint(Show.HEX))


def _packets(options: Mapping[str, str]) -> list[Packet]:
    layout = LAYOUTS[options["layout"]]
    checksum = options["checksum"] == "crc32"
    topic = items(layout.topic, _HINTS)
    message = topic if options["envelope"] == "topic" else (_PAYLOAD,)
    request = Packet(
        head=(_first("magic"), *items(layout.header, _HINTS)),
        start=bytes((MAGIC,)),
        frames={code.value: Frame(code.name, topic, FrameSender.CLIENT) for code in Opcode},
        select="opcode",
        length="length",
        limit=MAX_PAYLOAD,
        crc32=checksum,
    )
    ack = Packet(
        head=(_first("magic"),),
        start=bytes((ACK_MAGIC,)),
        frames={0: Frame("ACK", items(Ack, _HINTS), FrameSender.BROKER)},
        crc32=checksum,
    )
    response = Packet(
        head=(_first("magic"), *items(ResponseHeader, _HINTS)),
        start=bytes((RESPONSE_SIZE,)),
        frames={0: Frame("RESPONSE", message, FrameSender.BROKER)},
        length="length",
        limit=MAX_PAYLOAD,
    )
    return [request, ack, response]


DISSECTOR = Declaration("RHEOS", Packets(_packets, ("layout", "checksum", "envelope")))
