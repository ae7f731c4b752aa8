"""nsd for Wireshark: how the requests of ``codec.py``, and its responses, are shown."""

from __future__ import annotations

from dataclasses import fields
from typing import get_args, get_type_hints

from pubsub.dissector.declaration import (
    Declaration,
    Extra,
    Hint,
    JsonObject,
    Lines,
    Member,
    Sender,
)
from pubsub.protocols.nsd.codec import MAX_LINE, MAX_NAME, Message, Request

_NAME = Hint(least=1, most=MAX_NAME)


def _member(name: str, kind: type) -> Member:
    if kind is Message:
        return Member(name, "object", of=Message.__name__)
    return Member(name, "integer") if kind is int else Member(name, hint=_NAME)


def _request(request: type) -> JsonObject:
    kinds = get_type_hints(request)
    members = [_member(field.name, kinds[field.name]) for field in fields(request)]
    return JsonObject(f"{request.__name__}Request", members, Sender.CLIENT)


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
    JsonObject("SuccessResponse", sender=Sender.BROKER),
    JsonObject("ErrorResponse", [Member("error")], Sender.BROKER, refusal=True),
    JsonObject("MessageListResponse", [Member("messages", "array", of="Message")], Sender.BROKER),
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
