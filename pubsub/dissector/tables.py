"""Declarations as tables for the runtime, and the display filters that they make."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from pubsub.dissector.declaration import (
    Declaration,
    Extra,
    Frame,
    Hint,
    Item,
    JsonObject,
    Member,
    Packet,
    Repeated,
    Show,
)
from pubsub.dissector.lua import LuaValue
from pubsub.wire.fields import CountedBytes, FieldKind, Fixed, Remainder, Unsigned


@dataclass(frozen=True, slots=True)
class WireField:
    """A display filter: ``pubsub.<protocol>.<name>``; ``type`` is a function of ``ProtoField``."""

    name: str
    type: str
    base: str = ""
    values: Mapping[int, str] | None = None
    mask: int = 0

    @property
    def title(self) -> str:
        """The name in the packet's details."""
        words = re.split(r"[._]", self.name)
        return " ".join(words).capitalize()

    def table(self) -> dict[str, LuaValue]:
        """Return the table of the field."""
        found: dict[str, LuaValue] = {"name": self.name, "type": self.type, "title": self.title}
        if self.base:
            found["base"] = self.base
        if self.values:
            found["values"] = self.values
        if self.mask:
            found["mask"] = self.mask
        return found


def names_of(values: Mapping[int, str] | type[IntEnum]) -> dict[int, str]:
    """Return the names of an enumeration's values."""
    if isinstance(values, Mapping):
        return dict(values)
    return {each.value: each.name for each in values}


def convert(value: Any) -> LuaValue:
    """Return the values of a framing, with the classes of the declarations as tables."""
    match value:
        case Packet():
            return _packet(value)
        case Frame(name, items, sender):
            listed = [convert(each) for each in items]
            return {"name": name, "items": listed, "sender": str(sender)}
        case Item(name, kind, hint):
            return {"name": name, **_kind(kind), **_show(kind, hint)}
        case Repeated(name, items):
            return {"name": name, "kind": "repeated", "items": [convert(each) for each in items]}
        case JsonObject():
            return _json_object(value)
        case Member():
            return _member(value)
        case str() | bytes() | int() | None:
            return value
        case Mapping():
            return {key: convert(value[key]) for key in value}
    return [convert(each) for each in value]


def _kind(kind: FieldKind) -> dict[str, LuaValue]:
    match kind:
        case Unsigned(size, big):
            return {"kind": "uint", "size": size, "big": big and size > 1}
        case Fixed(size):
            return {"kind": "fixed", "size": size}
        case CountedBytes(count):
            return {"kind": "counted", "size": count.size, "big": count.big and count.size > 1}
        case Remainder():
            return {"kind": "rest"}
    raise ValueError(f"{kind.description}: a dissector cannot decode it")


def _show(kind: FieldKind, hint: Hint) -> dict[str, LuaValue]:
    default = "" if isinstance(kind, Unsigned) else Show.BYTES
    found: dict[str, LuaValue] = {"show": str(hint.show or default)}
    for name in ("strict", "least", "most", "limit", "utf8", "nonzero", "refusal", "each"):
        value: LuaValue = getattr(hint, name)
        if value:
            found[name] = value
    if hint.values is not None:
        found["values"] = names_of(hint.values)
    if hint.flags is not None:
        found["flags"] = [{"bit": bit, "name": name} for bit, name in hint.flags.items()]
    if hint.suffix is not None:
        pattern = re.sub(r"(\W)", r"%\1", hint.suffix.marker)
        found["suffix"] = {
            "pattern": pattern,
            "name": hint.suffix.name,
            "digits": hint.suffix.digits,
        }
    return {name: value for name, value in found.items() if value != ""}


def _packet(packet: Packet) -> dict[str, LuaValue]:
    places: dict[str, dict[str, LuaValue]] = {}
    at = 0
    for item in packet.head:
        size = getattr(item.kind, "size", 0)
        if not isinstance(item.kind, (Unsigned, Fixed)):
            raise ValueError(f"{item.name}: the head of a packet has fields of fixed sizes only")
        places[item.name] = {"at": at, **_kind(item.kind)}
        at += size
    found: dict[str, LuaValue] = {
        "start": packet.start,
        "head": [convert(each) for each in packet.head],
        "head_size": at,
        "frames": {number: convert(frame) for number, frame in packet.frames.items()},
        "crc32": packet.crc32,
    }
    if packet.select:
        found["select"] = places[packet.select]
    if packet.length:
        found |= {"length": places[packet.length], "limit": packet.limit}
    return found


def _json_object(value: JsonObject) -> dict[str, LuaValue]:
    return {
        "name": value.name,
        "members": [_member(each) for each in value.members],
        "sender": str(value.sender),
        "further": value.further,
        "refusal": value.refusal,
    }


def _member(member: Member) -> dict[str, LuaValue]:
    # A member is one field in all objects; that of a class of its own is its element.
    field = WireField(member.name, "")
    found: dict[str, LuaValue] = {
        "name": member.name,
        "field": member.name,
        "title": field.title,
        "type": member.type,
        "required": member.required,
    }
    if member.of:
        found |= {"of": member.of, "each": member.of.lower()}
    for name in ("least", "most"):
        value: LuaValue = getattr(member.hint, name)
        if value:
            found[name] = value
    return found


def wire_fields(value: Any) -> Iterator[WireField]:
    """Yield the fields in the result of ``Framing.frames``; some may come more than once."""
    match value:
        case Packet():
            if value.crc32:
                yield WireField("checksum", "uint32", "HEX")
            yield from wire_fields(value.head)
            yield from wire_fields(value.frames)
        case Frame(_, items):
            yield from wire_fields(items)
        case Repeated(name, items):
            yield WireField(name, "none")
            yield from wire_fields(items)
        case Item():
            yield from _item_fields(value)
        case JsonObject():
            yield from wire_fields(value.members)
        case Member():
            yield from _member_fields(value)
        case Extra(name, kind, values):
            yield WireField(name, kind, values=values)
        case Mapping():
            yield from wire_fields(list(value.values()))
        case Sequence() if not isinstance(value, (str, bytes)):
            for each in value:
                yield from wire_fields(each)


def _item_fields(item: Item) -> Iterator[WireField]:
    hint = item.hint
    match item.kind:
        case Unsigned(size):
            values = None if hint.values is None else names_of(hint.values)
            base = "HEX" if hint.show == Show.HEX or hint.flags else ""
            yield WireField(item.name, f"uint{8 * size}", base, values)
            for bit, name in (hint.flags or {}).items():
                yield WireField(f"{item.name}.{name}", "bool", mask=bit)
            if hint.show == Show.MILLISECONDS:
                yield WireField(f"{item.name}.time", "absolute_time")
            return
        case CountedBytes(count):
            yield WireField(f"{item.name}.length", f"uint{8 * count.size}")
    types = {"": "bytes", Show.BYTES: "bytes", Show.UUID: "guid"}
    yield WireField(item.name, types.get(hint.show, "string"))
    if hint.each:
        yield WireField(hint.each, "uint8")
    if hint.suffix is not None:
        yield WireField(hint.suffix.name, "string")


def _member_fields(member: Member) -> Iterator[WireField]:
    types = {"integer": "int64", "boolean": "bool"}
    yield WireField(member.name, types.get(member.type, "string"))
    if member.type == "base64":
        yield WireField(f"{member.name}.decoded", "bytes")
    if member.of:
        yield WireField(member.of.lower(), "string")


def merged(fields: Iterator[WireField]) -> list[WireField]:
    """Return each field once; of the unsigned integers of one name, the widest.

    Raises ValueError for two fields of one name that Wireshark cannot show as one.
    """
    found: dict[str, WireField] = {}
    for each in fields:
        known = found.setdefault(each.name, each)
        if known == each:
            continue
        both = {known.type, each.type}
        if not all(kind.startswith("uint") for kind in both) or known.mask or each.mask:
            raise ValueError(f"{each.name}: {known.type} in one frame, {each.type} in another")
        wider = max(known, each, key=lambda one: int(one.type.removeprefix("uint")))
        values = known.values or each.values
        found[each.name] = WireField(each.name, wider.type, known.base or each.base, values)
    return list(found.values())


def declared_fields(declaration: Declaration, variants: Sequence[Any]) -> list[WireField]:
    """Return every field of a protocol, in the order of the wire."""
    framed = (field for each in variants for field in wire_fields(each))
    extra = wire_fields(list(declaration.extra))
    return merged(field for fields in (framed, extra) for field in fields)
