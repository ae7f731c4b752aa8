"""spot for Wireshark: ZMTP's commands, and the frames of the messages in ``commands.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from pubsub.broker.routing.batch import MAX_SENDER
from pubsub.dissector.declaration import (
    Declaration,
    Extra,
    Hint,
    Item,
    Items,
    Repeated,
    Script,
    Show,
)
from pubsub.protocols.spot import broker_commands, commands
from pubsub.protocols.spot.outgoing_connection import FRAME_LIMITS
from pubsub.protocols.spot.zmtp import (
    COMMAND,
    GREETING,
    LONG,
    MORE,
    NULL,
    SERVER_TYPES,
    SIGNATURE,
    FrameLimits,
)
from pubsub.wire.fields import U8, U32, U32_BE, CountedBytes, Remainder, Unsigned

_U16_BE = Unsigned(2, big=True)
_U64_BE = Unsigned(8, big=True)
_TOPIC = Hint(Show.TEXT, least=1, most=255, utf8=True)
_TEXTS = {
    "topic": _TOPIC,
    "topics": _TOPIC,
    "origin": Hint(Show.TEXT, most=MAX_SENDER),
    "epoch": Hint(Show.TEXT),
}


def _frame(name: str) -> tuple[Item, ...]:
    return (Item(name, Remainder(), _TEXTS.get(name, Hint())),)


def _numbers(*names: str) -> tuple[Item, ...]:
    return tuple(Item(name, _U64_BE) for name in names)


def _message(command: type, *frames: Items, **further: Any) -> dict[str, Any]:
    """Return one form of a message: its frames after the command, and those that are repeated.

    Raises ValueError for a field that the class of the codec does not have.
    """
    known = {field.name for field in fields(command)} | {"count"}
    repeated: Items = further.get("repeated", ())
    named = {item.name for frame in (*frames, repeated) for item in frame}
    if not named <= known:
        raise ValueError(f"{command.__name__} has no {', '.join(sorted(named - known))}")
    return {"frames": frames, **further}


_MESSAGES: dict[bytes, tuple[str, list[dict[str, Any]]]] = {
    commands.PUBLISH: (
        "PUBLISH",
        [
            _message(commands.Publish, _frame("topic"), _frame("data")),
            _message(commands.Publish, _frame("origin"), _frame("topic"), _frame("data")),
        ],
    ),
    commands.SUBSCRIBE: ("SUBSCRIBE", [_message(commands.Subscribe, _frame("topic"))]),
    commands.UNSUBSCRIBE: ("UNSUBSCRIBE", [_message(commands.Unsubscribe, _frame("topic"))]),
    commands.QUERY: ("QUERY", [_message(commands.Query)]),
    commands.QUERY_RESP: (
        "QUERY_RESP",
        [
            _message(
                commands.QueryResponse,
                (Item("count", U32),),
                repeated=_frame("topics"),
                counted_by={"frame": 1},
            )
        ],
    ),
    broker_commands.CONFIRM: ("CONFIRM", [_message(broker_commands.Confirm, _numbers("number"))]),
    broker_commands.CONFIRMED: (
        "CONFIRMED",
        [_message(broker_commands.Confirmation, _numbers("since", "number", "accepted"))],
    ),
    broker_commands.READ: (
        "READ",
        [_message(broker_commands.Read, _frame("topic"), _frame("epoch"), _numbers("offset"))],
    ),
    broker_commands.PAGE: (
        "PAGE",
        [
            _message(
                broker_commands.HistoryPage,
                _frame("topic"),
                _frame("epoch"),
                _numbers("since", "next", "end"),
                (Repeated("offsets", _numbers("offset")),),
                repeated=_frame("payloads"),
                counted_by={"frame": 4, "size": 8},
            )
        ],
    ),
}
_PROPERTY = (
    Item("property.name", CountedBytes(U8), Hint(Show.TEXT, least=1)),
    Item("property.value", CountedBytes(U32_BE), Hint(Show.TEXT)),
)
# The commands of RFC 37 that spot uses, with their data.
_COMMANDS: dict[str, Items] = {
    "READY": (Repeated("property", _PROPERTY),),
    "ERROR": (Item("reason", CountedBytes(U8), Hint(Show.TEXT)),),
    "PING": (Item("ttl", _U16_BE), Item("context", Remainder(), Hint(most=16))),
    "PONG": (Item("context", Remainder(), Hint(most=16)),),
    "SUBSCRIBE": (Item("prefix", Remainder(), Hint(Show.TEXT, most=255)),),
    "CANCEL": (Item("prefix", Remainder(), Hint(Show.TEXT, most=255)),),
}
_VERSION: Items = (Item("version.major", U8), Item("version.minor", U8))
_FLAGS = {MORE: "more", LONG: "long", COMMAND: "command"}


@dataclass(frozen=True, slots=True)
class Zmtp:
    """ZMTP, with the messages of spot; ``zmtp.lua`` is its runtime."""

    variants: Sequence[str] = ()
    kind: str = "zmtp"

    def frames(self, options: Mapping[str, str]) -> Mapping[str, Any]:
        """See Framing."""
        messages = {
            command[0]: {"name": name, "forms": forms}
            for command, (name, forms) in _MESSAGES.items()
        }
        return {
            "signature": SIGNATURE,
            "greeting_size": len(GREETING),
            "mechanism": NULL,
            "version": _VERSION,
            "flags": (Item("flags", U8, Hint(flags=_FLAGS)),),
            "socket_types": {name.decode(): own.decode() for name, own in SERVER_TYPES.items()},
            "commands": _COMMANDS,
            "messages": messages,
            "max_frames": FrameLimits().frames,
            "max_reply": FRAME_LIMITS.frame,
            "subscription": _COMMANDS["SUBSCRIBE"],
            "publication": [_frame("topic"), _frame("data")],
        }


DISSECTOR = Declaration(
    "SPOT",
    Zmtp(),
    settings=("max-message",),
    scripts=(Script(__package__, "zmtp.lua"),),
    extra=(
        Extra("greeting.signature", "bytes"),
        Extra("greeting.mechanism", "string"),
        Extra("frame", "none"),
        Extra("frame.size", "uint64"),
        Extra("frame.body", "bytes"),
        Extra("command.name", "string"),
        Extra("socket_type", "string"),
        Extra("identity", "string"),
        Extra("routing_id", "bytes"),
        Extra("message", "uint8", {number[0]: name for number, (name, _) in _MESSAGES.items()}),
    ),
)
