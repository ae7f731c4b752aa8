"""Malformed frames, decoded as far as they go. Needs neither Spark nor Arrow.

The codecs refuse a frame as a whole; here the declarations of its fields are followed one by one,
up to what cannot be read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

from pubsub.protocols.cafe import codec as cafe
from pubsub.protocols.fast import codec as fast
from pubsub.protocols.nsd import codec as nsd
from pubsub.protocols.rheos import codec as rheos
from pubsub.protocols.spot import codec as spot
from pubsub.protocols.spot import zmtp
from pubsub.wire.fields import FieldError, layout

_SHOWN = 256
_LIMITS = zmtp.FrameLimits(frame=2**40, frames=64)
# What must not be copied from a frame into a table.
_SECRET = frozenset({"token", "key"})


@dataclass(slots=True)
class Dissection:
    """``kind`` names the frame if its header could be read, ``understood`` counts the bytes that
    were, from the start, and ``fault`` says what is wrong behind them, or is empty.
    """

    kind: str = ""
    fields: dict[str, Any] = field(default_factory=dict)
    understood: int = 0
    fault: str = ""


def dissect(protocol: str, frame: bytes) -> Dissection:
    """What can be read of ``frame``; bytes that are not UTF-8 are shown in hexadecimal."""
    reader = _READERS.get(protocol)
    if reader is None:
        return Dissection(fault=f"no protocol {protocol!r} is known")
    if not frame:
        return Dissection(fault="no bytes are shown")
    return reader(frame)


def _follow(found: Dissection, frame: type, data: bytes, stop: int) -> Dissection:
    """Read the fields of ``frame`` from where ``found`` is, up to ``stop``."""
    for name, kind in layout(frame):
        try:
            value, found.understood = kind.decode(data[:stop], found.understood)
        except FieldError as error:
            found.fault = f"{name}: {error}"
            return found
        found.fields[name] = _shown(name, value)
    if found.understood < stop:
        found.fault = f"{stop - found.understood} bytes too many"
    return found


def _whole(found: Dissection, data: bytes, end: int) -> Dissection:
    """``found``, of a frame that should have ``end`` bytes."""
    if end > len(data) and not found.fault:
        found.fault = f"{end - len(data)} bytes of the frame are missing"
    return found


def _shown(name: str, value: Any) -> Any:
    if not isinstance(value, bytes):
        return value
    if name in _SECRET:
        return f"({len(value)} bytes)"
    try:
        text = value[:_SHOWN].decode()
    except UnicodeDecodeError:
        text = f"0x{value[:_SHOWN].hex()}"
    return text + ("..." if len(value) > _SHOWN else "")


def _cafe(data: bytes) -> Dissection:
    if len(data) < cafe.HEADER.size:
        return Dissection(fault=f"a header has {cafe.HEADER.size} bytes, here are {len(data)}")
    magic, opcode, length = cafe.HEADER.unpack_from(data)
    if magic != cafe.MAGIC:
        return Dissection(fault=f"magic 0x{magic:04x} instead of 0x{cafe.MAGIC:04x}")
    found = Dissection(fields={"opcode": opcode, "length": length}, understood=cafe.HEADER.size)
    frame = cafe.FRAMES.get(opcode)
    if frame is None:
        found.fault = f"there is no opcode 0x{opcode:02x}"
        return found
    found.kind = frame.__name__
    if length > cafe.MAX_PAYLOAD:
        found.fault = f"a payload of {length} bytes; {cafe.MAX_PAYLOAD} are allowed"
        return found
    end = cafe.HEADER.size + length
    return _whole(_follow(found, frame, data, min(len(data), end)), data, end)


def _fast(data: bytes) -> Dissection:
    packet = fast.PACKETS.get(data[0])
    found = Dissection(fields={"type": data[0]}, understood=1)
    if packet is None:
        found.fault = f"there is no type 0x{data[0]:02x}"
        return found
    found.kind = packet.__name__
    return _follow(found, packet, data, len(data))


def _rheos(data: bytes) -> Dissection:
    if data[0] != rheos.MAGIC:
        return Dissection(fault=f"magic 0x{data[0]:02x} instead of 0x{rheos.MAGIC:02x}")
    # The layouts differ: the one whose opcode and topic make sense is taken, else the first.
    tried = [_rheos_as(chosen, data) for chosen in rheos.LAYOUTS.values()]
    return next((found for found in tried if not found.fault), tried[0])


def _rheos_as(chosen: rheos.Layout, data: bytes) -> Dissection:
    found = _follow(Dissection(understood=1), chosen.header, data, rheos.HEADER_SIZE)
    if found.fault:
        return found
    length, opcode = found.fields["length"], found.fields["opcode"]
    if opcode > max(rheos.Opcode):
        found.fault = f"there is no opcode {opcode}"
        return found
    found.kind = rheos.Opcode(opcode).name.capitalize()
    if length > rheos.MAX_PAYLOAD:
        found.fault = f"a payload of {length} bytes; {rheos.MAX_PAYLOAD} are allowed"
        return found
    end = rheos.HEADER_SIZE + length
    return _whole(_follow(found, chosen.topic, data, min(len(data), end)), data, end)


def _nsd(data: bytes) -> Dissection:
    line = data.rstrip(b"\r\n")
    text, _in_base64 = nsd.unwrap(line)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        at = getattr(error, "pos", 0)
        return Dissection(understood=at, fault=f"no JSON: {error}")
    if not isinstance(value, dict):
        return Dissection(understood=len(data), fault="JSON, but no object")
    shown = {name: _short(value[name]) for name in value}
    found = Dissection(str(value.get("_class", "")), shown, len(data))
    try:
        nsd.parse(text, line)
    except nsd.InvalidRequest:
        found.fault = "an object, but no request"
    return found


def _short(value: Any) -> Any:
    text = json.dumps(value)
    return value if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _spot(data: bytes) -> Dissection:
    try:
        unit = zmtp.decode(data, 0, _LIMITS)
    except zmtp.ZmtpError as error:
        return Dissection(fault=str(error))
    found = Dissection("message", {"frames": [_shown("", frame) for frame in unit.frames]})
    if isinstance(unit, zmtp.Partial):
        found.understood, found.fault = unit.length, f"{unit.need} bytes are needed"
        return found
    found.understood = unit.end
    if not unit.frames:
        found.kind = unit.commands[0].name.decode(errors="replace")
        return found
    try:
        request = spot.decode_request(unit.frames)
    except spot.SpotError:
        found.fault = "a message, but no command"
        return found
    found.kind = type(request).__name__
    named = {each.name: getattr(request, each.name) for each in fields(request)}
    found.fields = {
        name: _shown(name, value) for name, value in named.items() if isinstance(value, bytes)
    }
    return found


_READERS: dict[str, Callable[[bytes], Dissection]] = {
    "cafe": _cafe,
    "fast": _fast,
    "nsd": _nsd,
    "rheos": _rheos,
    "spot": _spot,
}
