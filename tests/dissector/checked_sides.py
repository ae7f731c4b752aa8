"""Checks of both sides of a conversation in the dissector."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence

from pubsub.protocols.nsd import codec as nsd
from tests.dissector.oracles import Fields
from tests.dissector.played import Segment
from tests.dissector.tshark import Unit
from tests.dissector.tshark_settings import FAULTS, values


def side(segments: Sequence[Segment], from_client: bool) -> bytes:
    """Return all bytes of one side."""
    return b"".join(data for sender, data in segments if sender == from_client)


def check_side(units: Sequence[Unit], wanted: Sequence[Fields], faulty: bool) -> None:
    """Compare the units of one side of a stream."""
    assert len(units) >= len(wanted) if faulty else len(units) == len(wanted)
    for unit, fields in zip(units, wanted, strict=False):
        assert values(unit, fields) == fields
    if faulty and len(units) > len(wanted):
        # A side that is refused may say so in a frame of its own.
        assert (FAULTS | {"refused"}) & set(units[len(wanted)].experts)


def check_request(unit: Unit, line: bytes) -> None:
    """Compare a request with the result of our decoder."""
    text, in_base64 = nsd.unwrap(line)
    try:
        request = nsd.parse(text, line)
    except nsd.InvalidLine:
        assert FAULTS & set(unit.experts), line[:100]
        return
    assert not FAULTS & set(unit.experts), line[:100]
    assert ("base64" in unit.fields) == in_base64
    assert unit.shown["class"][0] == f"{type(request).__name__}Request"
    # Members that are not required may be in the line and not be used.
    required = [
        each.name for each in dataclasses.fields(request) if each.default is dataclasses.MISSING
    ]
    for name in required:
        value = getattr(request, name)
        if isinstance(value, nsd.Message):
            assert unit.shown["from"] == [value.sender]
            assert_text(unit.shown["body"], value.body)
            assert len(unit.shown["further"]) >= len(value.extra) - ("data" in value.extra)
        else:
            assert_text(unit.shown[name], str(value))


def assert_text(shown: Sequence[str], value: str) -> None:
    """Compare text; Wireshark shows the part before a zero byte, and escapes controls."""
    if value.isprintable():
        assert list(shown) == [value]


def check_response(unit: Unit, line: bytes) -> None:
    """Compare a response with its JSON."""
    value = json.loads(nsd.unwrap(line)[0])
    assert unit.shown["class"][0] == value["_class"]
    messages = value.get("messages", [value] if "when" in value else [])
    assert unit.shown["when"] == [str(each["when"]) for each in messages]
    assert unit.shown["epoch"] == ([value["epoch"]] if "epoch" in value else [])
    assert ("refused" in unit.experts) == ("error" in value)
    if "error" in value:
        assert_text(unit.shown["error"], value["error"])
