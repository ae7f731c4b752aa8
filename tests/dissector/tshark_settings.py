"""Preferences of the dissector and the faults that it reports."""

from __future__ import annotations

from collections.abc import Mapping

from pubsub.plugin import installed_protocols
from tests.dissector.oracles import Fields
from tests.dissector.tshark import Unit

PORTS = {name: protocol.port for name, protocol in installed_protocols().items()}
# A frame with these is faulty to a client's listener.
FAULTS = {"magic", "opcode", "length", "malformed", "checksum", "sender"}


def preferences(protocol: str, options: Mapping[str, str]) -> dict[str, str]:
    """Return the preferences of the dissector for the options of a listener."""
    return {f"pubsub.{protocol}.{name}": value for name, value in options.items()}


def values(unit: Unit, fields: Fields) -> Fields:
    """Return the values of the unit for these names; a list may be empty."""
    return {name: unit.fields.get(name, []) for name in fields}
