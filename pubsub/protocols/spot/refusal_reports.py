"""Reports of refused commands, to clients that request them (spot §5.3). Sans-IO."""

from __future__ import annotations

import struct
from typing import NamedTuple

from pubsub.protocols.spot.zmtp import Command, ZmtpError, encode_command

REFUSALS = b"X-Refusals"
"""The property of READY by which a client requests REFUSED, and a broker announces it."""
REFUSED = b"REFUSED"
_HEAD = struct.Struct(">IB")


class RefusalReport(NamedTuple):
    """``commands`` commands of a client that were refused; ``topic`` is empty if there is none."""

    commands: int
    reason: str
    topic: bytes

    def encode(self) -> bytes:
        """Return the command."""
        reason = self.reason.encode()
        head = _HEAD.pack(self.commands, len(reason))
        return encode_command(Command(REFUSED, head + reason + self.topic))


def decode_report(data: bytes) -> RefusalReport:
    """Return the refusal in the data of a command; raises ZmtpError."""
    if len(data) < _HEAD.size:
        raise ZmtpError("malformed-command")
    count, length = _HEAD.unpack_from(data)
    end = _HEAD.size + length
    if len(data) < end:
        raise ZmtpError("malformed-command")
    return RefusalReport(count, data[_HEAD.size : end].decode(errors="replace"), data[end:])
