"""Malformed fast packets (fast §2.2), decoded as far as possible, without tokens and keys."""

from __future__ import annotations

from pubsub.protocols.fast.codec import PACKETS
from pubsub.wire.dissection import Dissection, decode_fields


def dissect(frame: bytes) -> Dissection:
    """See ``IWireProtocol``."""
    packet = PACKETS.get(frame[0])
    found = Dissection(fields={"type": frame[0]}, understood=1)
    if packet is None:
        found.fault = f"there is no type 0x{frame[0]:02x}"
        return found
    found.kind = packet.__name__
    return decode_fields(found, packet, frame, len(frame))
