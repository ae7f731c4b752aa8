"""nsd for Wireshark: the presentation of the requests of ``codec.py``, and of responses."""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from typing import Any, get_args, get_type_hints

from pubsub.dissector.declaration import (
    Declaration,
    Extra,
    FrameSender,
    Hint,
    JsonObject,
    Lines,
    Member,
)
from pubsub.protocols.nsd.codec import MAX_LINE, MAX_NAME, Message, Request

_NAME = Hint(least=1, most=MAX_NAME)


_TYPES = {str: "string", int: "integer", bool: "boolean"}


def _member(field: Field[Any], kind: type) -> Member:
    if kind is Message:
        return Member(field.name, "object", of=Message.__name__)
    # The broker ignores a further field that is not as it should be.
    required = field.default is MISSING
    hint = _NAME if required and kind is str else Hint()
    return Member(field.name, _TYPES[kind], required=required, hint=hint)


def _request(request: type) -> JsonObject:
    kinds = get_type_hints(request)
    members = [_member(field, kinds[field.name]) for field in fields(request)]
    return JsonObject(f"{request.__name__}Request", members, FrameSender.CLIENT)


_MESSAGE = JsonObject(
    Message.__name__,
    [
        Member("from"),
        Member("when", "integer"),
        Member("body"),
        Member("data", "base64", required=False),
    ],
    further=True,
)
_RESPONSES = [
    # The members of a response to a Subscribe that asks for the position (nsd §3.3).
    JsonObject(
        "SuccessResponse",
        [
            Member("when", "integer", required=False),
            Member("epoch", required=False),
            Member("continues", "boolean", required=False),
        ],
        FrameSender.BROKER,
    ),
    JsonObject("ErrorResponse", [Member("error")], FrameSender.BROKER, refusal=True),
    JsonObject(
        "MessageListResponse", [Member("messages", "array", of="Message")], FrameSender.BROKER
    ),
]
_OBJECTS = [*(_request(each) for each in get_args(Request)), *_RESPONSES, _MESSAGE]

DISSECTOR = Declaration(
    "NSD",
    Lines(_OBJECTS, MAX_LINE),
    extra=(
        Extra("line", "string"),
        Extra("base64", "bool"),
        Extra("class", "string"),
        Extra("further", "string"),
    ),
)
