"""Malformed spot messages (spot §6.1), decoded as far as possible."""

from __future__ import annotations

from dataclasses import fields

from pubsub.protocols.spot.commands import SpotError, decode_request
from pubsub.protocols.spot.zmtp import FrameLimits, Partial, ZmtpError, decode
from pubsub.wire.dissection import Dissection, shown

# The user and the password of PLAIN follow this.
# Without its length before it: a command that comes too late is shown from its name on.
REDACTED = (rb"HELLO",)
# The beginning of a message may announce a frame of any size.
_LIMITS = FrameLimits(frame=2**40, frames=64)


def dissect(frame: bytes) -> Dissection:
    """See ``IWireProtocol``."""
    try:
        unit = decode(frame, 0, _LIMITS)
    except ZmtpError as error:
        return Dissection(fault=str(error))
    found = Dissection("message", {"frames": [shown("", each) for each in unit.frames]})
    if isinstance(unit, Partial):
        found.understood, found.fault = unit.length, f"{unit.need} bytes are needed"
        return found
    found.understood = unit.end
    if not unit.frames:
        found.kind = unit.commands[0].name.decode(errors="replace")
        return found
    try:
        request = decode_request(unit.frames)
    except SpotError:
        found.fault = "a message, but not a command"
        return found
    found.kind = type(request).__name__
    named = {each.name: getattr(request, each.name) for each in fields(request)}
    found.fields = {
        name: shown(name, value) for name, value in named.items() if isinstance(value, bytes)
    }
    return found
