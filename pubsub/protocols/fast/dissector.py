"""fast for Wireshark: the presentation of the fields of ``codec.py``. Tokens are not verified."""

from __future__ import annotations

from collections.abc import Mapping

from pubsub.broker.credentials.queue_key_limit import MAX_KEY
from pubsub.dissector.declaration import (
    Declaration,
    Extra,
    Frame,
    FrameSender,
    Hint,
    Item,
    Packet,
    Packets,
    Script,
    Show,
    items,
    upper_name,
)
from pubsub.protocols.fast.codec import (
    DURABLE,
    EXCLUSIVE,
    FROM_CLIENT,
    PACKETS,
    Create,
    Error,
    ErrorCode,
    Publish,
    RotateKey,
)
from pubsub.wire.fields import U8

_TYPES = {number: upper_name(packet) for number, packet in PACKETS.items()}
_HINTS = {
    "type": Hint(Show.HEX, values=_TYPES),
    "token": Hint("token"),
    "topic_id": Hint(Show.HEX),
    "flags": Hint(flags={DURABLE: "durable", EXCLUSIVE: "exclusive"}),
    "key": Hint(Show.TEXT),
    "offending": Hint(Show.HEX, values={0: "the connection", **_TYPES}),
    "code": Hint(values=ErrorCode, strict=True, refusal=True),
}
_OWN_HINTS = {
    Create: {"name": Hint(Show.TEXT, least=1, most=255, utf8=True)},
    Publish: {"payload": Hint(limit="max-payload")},
    RotateKey: {"key": Hint(Show.TEXT, least=1, most=MAX_KEY, utf8=True)},
}
_CLAIMS = ("queue_key", "permissions", "sub", "exp", "nbf")


def _frame(number: int) -> Frame:
    packet = PACKETS[number]
    sender = FrameSender.CLIENT if number in FROM_CLIENT else FrameSender.BROKER
    hints = _HINTS | _OWN_HINTS.get(packet, {})
    return Frame(upper_name(packet), items(packet, hints), sender)


def _packets(options: Mapping[str, str]) -> list[Packet]:
    known = [
        number for number in PACKETS if options["errors"] == "on" or PACKETS[number] is not Error
    ]
    head = (Item("type", U8, _HINTS["type"]),)
    return [Packet(head, {number: _frame(number) for number in known}, select="type")]


DISSECTOR = Declaration(
    "FAST",
    Packets(_packets, ("errors",)),
    settings=("max-payload",),
    scripts=(Script(__package__, "token.lua"),),
    extra=(
        Extra("token.header", "string"),
        Extra("token.alg", "string"),
        Extra("token.kid", "string"),
        Extra("token.claims", "string"),
        *(Extra(f"token.{name}", "string") for name in _CLAIMS),
        Extra("token.exp.time", "absolute_time"),
        Extra("token.nbf.time", "absolute_time"),
        Extra("token.signature", "bytes"),
    ),
)
