"""Every frame of the vectors: the fields that tshark shows are those that our decoders return."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

import pytest

from tests.dissector import oracles
from tests.dissector.captures import MAX_SEGMENT, Capture, address, cut_everywhere
from tests.dissector.oracles import Fields
from tests.dissector.tshark import Unit, dissect
from tests.dissector.tshark_settings import FAULTS, PORTS, preferences, values
from tests.vectors import load_vectors

Entry = Mapping[str, Any]
# Valid frames may hold these: a code of refusal, and an invalid token.
HARMLESS = {"refused", "token"}
LONG = 80


def cases() -> list[tuple[str, dict[str, str]]]:
    """Return each binary protocol with each of the options that its vectors have."""
    found: list[tuple[str, dict[str, str]]] = []
    for protocol in ("cafe", "fast", "rheos", "spot"):
        for options in ({}, *(entry.get("options", {}) for entry in entries(protocol, "frames"))):
            if (protocol, options) not in found:
                found.append((protocol, options))
    return found


def entries(protocol: str, section: str, options: Mapping[str, str] | None = None) -> list[Entry]:
    """Return the entries of a protocol's vectors, those with these options if any are given."""
    found = load_vectors(f"{protocol}-frames").get(section, [])
    return [each for each in found if options is None or each.get("options", {}) == options]


def expected(protocol: str, entry: Entry, options: Mapping[str, str]) -> list[Fields]:
    """Return the fields that our decoder finds in a frame."""
    data = bytes.fromhex(entry["hex"])
    decoders: dict[str, Iterator[Fields]] = {
        "cafe": oracles.cafe_frames(data),
        "fast": oracles.fast_packets(data),
        "rheos": oracles.rheos_packets(data, options, entry.get("from") != "broker"),
        "spot": oracles.spot_messages(data),
    }
    return list(decoders[protocol])


def check(unit: Unit, fields: Fields) -> None:
    """Raise AssertionError unless the unit has these fields, and nothing is wrong with it."""
    assert values(unit, fields) == fields
    assert set(unit.experts) <= HARMLESS


def units_of(
    protocol: str, options: Mapping[str, str], streams: Sequence[tuple[bool, Sequence[bytes]]]
) -> list[list[Unit]]:
    """Return the units of each of the streams, which are the segments of one side."""
    capture = Capture()
    clients = [
        capture.stream(PORTS[protocol], [(from_client, one) for one in segments])
        for from_client, segments in streams
    ]
    found = dissect(capture, protocol, preferences(protocol, options))
    return [found.get(address(client), []) for client in clients]


@pytest.mark.parametrize(("protocol", "options"), cases())
class TestFrames:
    """Valid frames"""

    def test_fields_are_those_of_the_decoder(self, protocol: str, options: dict[str, str]) -> None:
        listed = entries(protocol, "frames", options) + entries(protocol, "taken", options)
        streams = [(e.get("from") != "broker", [bytes.fromhex(e["hex"])]) for e in listed]
        for entry, units in zip(listed, units_of(protocol, options, streams), strict=True):
            wanted = expected(protocol, entry, options)
            assert len(wanted) == 1
            assert len(units) == 1, entry["name"]
            check_valid(protocol, entry, units[0], wanted[0])

    def test_cut_at_every_place(self, protocol: str, options: dict[str, str]) -> None:
        listed = [e for e in entries(protocol, "frames", options) if len(e["hex"]) < 3 * LONG]
        cut = [
            (entry, segments)
            for entry in listed
            for segments in cut_everywhere(bytes.fromhex(entry["hex"]))
        ]
        streams = [(entry.get("from") != "broker", segments) for entry, segments in cut]
        for (entry, _), units in zip(cut, units_of(protocol, options, streams), strict=True):
            assert len(units) == 1, entry["name"]
            check_valid(protocol, entry, units[0], expected(protocol, entry, options)[0])

    def test_many_in_a_segment(self, protocol: str, options: dict[str, str]) -> None:
        streams: list[tuple[bool, Sequence[bytes]]] = []
        wanted = []
        sides = groupby(
            sorted(entries(protocol, "frames", options), key=lambda e: e.get("from", "")),
            key=lambda e: e.get("from", ""),
        )
        for side, group in sides:
            listed = [entry for entry in group if len(entry["hex"]) < MAX_SEGMENT // 8]
            data = b"".join(bytes.fromhex(entry["hex"]) for entry in listed)
            fields = [expected(protocol, entry, options)[0] for entry in listed]
            pieces = [data[at : at + 37] for at in range(0, len(data), 37)]
            for segments in ([data], pieces):
                streams.append((side != "broker", segments))
                wanted.append(fields)
        for units, fields in zip(units_of(protocol, options, streams), wanted, strict=True):
            assert len(units) == len(fields)
            for unit, each in zip(units, fields, strict=True):
                assert values(unit, each) == each


def check_valid(protocol: str, entry: Entry, unit: Unit, fields: Fields) -> None:
    """Check a frame that is well-formed, though fast's may have values that are refused."""
    if protocol == "fast" and {"create-nothing-in-it", "rotate-key-empty"} & {entry["name"]}:
        assert "malformed" in unit.experts
        assert values(unit, fields) == fields
    else:
        check(unit, fields)


@pytest.mark.parametrize(("protocol", "options"), cases())
class TestFaults:
    """Malformed and incomplete frames"""

    def test_each_has_an_expert_item(self, protocol: str, options: dict[str, str]) -> None:
        listed = [
            entry
            for section in ("refused", "eproto", "malformed")
            for entry in entries(protocol, section, options)
        ]
        streams = [(True, [bytes.fromhex(entry["hex"])]) for entry in listed]
        for entry, units in zip(listed, units_of(protocol, options, streams), strict=True):
            assert units, entry["name"]
            assert FAULTS & set(units[0].experts), entry["name"]

    def test_the_end_is_waited_for(self, protocol: str, options: dict[str, str]) -> None:
        listed = entries(protocol, "incomplete", options)
        streams = [(True, [bytes.fromhex(entry["hex"])]) for entry in listed]
        assert not any(units_of(protocol, options, streams))

    def test_a_truncated_frame_has_an_expert_item(
        self, protocol: str, options: dict[str, str]
    ) -> None:
        listed = entries(protocol, "incomplete", options) or [
            {**entry, "hex": bytes.fromhex(entry["hex"])[:-1].hex()}
            for entry in entries(protocol, "frames", options)
        ]
        capture = Capture()
        clients = [
            capture.stream(
                PORTS[protocol], [(entry.get("from") != "broker", bytes.fromhex(entry["hex"]))]
            )
            for entry in listed
        ]
        chosen = {**preferences(protocol, options), "tcp.desegment_tcp_streams": "FALSE"}
        found = dissect(capture, protocol, chosen)
        for entry, client in zip(listed, clients, strict=True):
            units = found[address(client)]
            assert len(units) == 1, entry["name"]
            assert units[0].experts[0] == "truncated", entry["name"]
            assert not FAULTS & set(units[0].experts), entry["name"]


# The kinds of faults, by the names of vectors.
KINDS = {
    "cafe": {
        "wrong-magic": "magic",
        "big-endian-magic": "magic",
        "length-largest": "length",
        "unknown-opcode-0x7f": "opcode",
        "message-from-client": "sender",
        "handshake-pub-channel-only": "malformed",
    },
    "fast": {"type-zero": "opcode", "type-message": "sender", "much-too-large": "length"},
    "rheos": {"magic-alone-original": "magic", "length-largest-original": "length"},
    "spot": {
        "reserved-flag": "malformed",
        "huge": "length",
        "nine-frames": "length",
        "command-ff": "opcode",
    },
}


@pytest.mark.parametrize("protocol", KINDS)
def test_expert_items_have_their_kinds(protocol: str) -> None:
    everything = load_vectors(f"{protocol}-frames")
    named = {
        entry["name"]: entry
        for section in ("refused", "eproto", "malformed")
        for entry in everything.get(section, [])
    }
    listed = {name: named[name] for name in KINDS[protocol]}
    options = next(iter(listed.values())).get("options", {})
    streams = [(True, [bytes.fromhex(entry["hex"])]) for entry in listed.values()]
    for name, units in zip(listed, units_of(protocol, options, streams), strict=True):
        assert (set(units[0].experts) - HARMLESS).pop() == KINDS[protocol][name], name


class TestDatagrams:
    """cafe over UDP"""

    def test_each_frame_in_a_datagram(self) -> None:
        listed = entries("cafe", "frames")
        capture = Capture()
        clients = [
            capture.datagrams(
                PORTS["cafe"], [(entry["from"] == "client", bytes.fromhex(entry["hex"]))]
            )
            for entry in listed
        ]
        found = dissect(capture, "cafe")
        for entry, client in zip(listed, clients, strict=True):
            units = found[address(client)]
            assert len(units) == 1
            check(units[0], expected("cafe", entry, {})[0])

    def test_frames_after_one_another_and_a_truncated_one(self) -> None:
        publish = bytes.fromhex("fe ca 10 03 00 00 00 01 68 69")
        capture = Capture()
        whole = capture.datagrams(PORTS["cafe"], [(True, 3 * publish), (True, b"")])
        cut = capture.datagrams(PORTS["cafe"], [(True, publish + publish[:-1]), (True, publish)])
        found = dissect(capture, "cafe")
        assert [unit.experts for unit in found[address(whole)]] == [[], [], []]
        assert [unit.experts for unit in found[address(cut)]] == [[], ["truncated"], []]


def test_packets_that_are_not_captured_in_full() -> None:
    data = bytes.fromhex("fe ca 10 03 00 00 00 01 68 69 fe ca 10 40 00 00 00 02") + bytes(63)
    capture = Capture(snapshot=80)
    client = capture.stream(PORTS["cafe"], [(True, data)])
    units = dissect(capture, "cafe")[address(client)]
    assert [unit.experts for unit in units] == [[], ["cut"]]
    assert [unit.shown["channel"] for unit in units] == [["1"], ["2"]]
