"""Malformed rheos requests (rheos §2, §6.2), decoded as far as possible."""

from __future__ import annotations

from pubsub.protocols.rheos.codec import HEADER_SIZE, LAYOUTS, MAGIC, MAX_PAYLOAD, Layout, Opcode
from pubsub.wire.dissection import Dissection, check_length, decode_fields


def dissect(frame: bytes) -> Dissection:
    """See ``IWireProtocol``."""
    if frame[0] != MAGIC:
        return Dissection(fault=f"magic 0x{frame[0]:02x} instead of 0x{MAGIC:02x}")
    # An event does not name the listener's layout: the first that fits is chosen, else the first.
    tried = [_dissect_as(layout, frame) for layout in LAYOUTS.values()]
    return next((found for found in tried if not found.fault), tried[0])


def _dissect_as(layout: Layout, frame: bytes) -> Dissection:
    found = decode_fields(Dissection(understood=1), layout.header, frame, HEADER_SIZE)
    if found.fault:
        return found
    length, opcode = found.fields["length"], found.fields["opcode"]
    if opcode > max(Opcode):
        found.fault = f"there is no opcode {opcode}"
        return found
    found.kind = Opcode(opcode).name.capitalize()
    if length > MAX_PAYLOAD:
        found.fault = f"a payload of {length} bytes; {MAX_PAYLOAD} are allowed"
        return found
    end = HEADER_SIZE + length
    return check_length(decode_fields(found, layout.topic, frame, min(len(frame), end)), frame, end)
