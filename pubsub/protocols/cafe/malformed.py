"""Malformed cafe frames, decoded as far as possible, and the fields that events do not show."""

from __future__ import annotations

import re

from pubsub.protocols.cafe.client_id import RESUME
from pubsub.protocols.cafe.codec import FRAMES, HEADER, MAGIC, MAX_PAYLOAD
from pubsub.wire.dissection import Dissection, check_length, decode_fields

# The session id that a client resumes with (cafe §4.6) follows this in its client id. A password is
# before it: a handshake with a colon is not shown, even if only its header is wrong.
REDACTED = (re.escape(RESUME), rb"[\xfe\xca]{2}[\x01\x02](?=[\s\S]*:)")


def dissect(frame: bytes) -> Dissection:
    """See ``IWireProtocol``."""
    if len(frame) < HEADER.size:
        return Dissection(fault=f"{len(frame)} bytes; a header has {HEADER.size}")
    magic, opcode, length = HEADER.unpack_from(frame)
    if magic != MAGIC:
        return Dissection(fault=f"magic 0x{magic:04x} instead of 0x{MAGIC:04x}")
    found = Dissection(fields={"opcode": opcode, "length": length}, understood=HEADER.size)
    kind = FRAMES.get(opcode)
    if kind is None:
        found.fault = f"unknown opcode 0x{opcode:02x}"
        return found
    found.kind = kind.__name__
    if length > MAX_PAYLOAD:
        found.fault = f"a payload of {length} bytes; the limit is {MAX_PAYLOAD}"
        return found
    end = HEADER.size + length
    return check_length(decode_fields(found, kind, frame, min(len(frame), end)), frame, end)
