"""Malformed frames, decoded by the protocol that each came by. Needs neither Spark nor Arrow."""

from __future__ import annotations

from collections.abc import Mapping

from pubsub.plugin import installed_protocols
from pubsub.wire.dissection import Dissection, Dissector


def dissectors() -> dict[str, Dissector]:
    """Return how each installed protocol decodes its malformed frames, by its name.

    Protocols that do not say how are left out. The functions can be pickled by reference, so that
    Spark's workers do not look for plugins.
    """
    found = {name: protocol.dissect for name, protocol in installed_protocols().items()}
    return {name: dissect for name, dissect in found.items() if dissect is not None}


def dissect(known: Mapping[str, Dissector], protocol: str, frame: bytes) -> Dissection:
    """Decode ``frame`` with the protocol's entry in ``known``; bytes may be in hexadecimal."""
    dissector = known.get(protocol)
    if dissector is None:
        return Dissection(fault=f"no protocol {protocol!r} is known")
    if not frame:
        return Dissection(fault="no bytes are shown")
    return dissector(frame)
