"""The conversations of the vectors: tshark and our decoders agree in both directions."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping

import pytest

from pubsub.plugin import installed_protocols
from pubsub.protocols.cafe.codec import CafeError
from pubsub.protocols.fast.codec import FastError
from pubsub.protocols.nsd import codec as nsd
from pubsub.protocols.rheos.codec import RheosError
from pubsub.protocols.spot.commands import SpotError
from pubsub.protocols.spot.zmtp import ZmtpError
from tests.dissector import oracles
from tests.dissector.captures import Capture, address
from tests.dissector.checked_sides import (
    check_request,
    check_response,
    check_side,
    side,
)
from tests.dissector.oracles import Fields
from tests.dissector.played import Segment, play
from tests.dissector.tshark import dissect
from tests.dissector.tshark_settings import PORTS, preferences

PROTOCOLS = installed_protocols()
# Longer ones are about limits, and would make tshark's output large.
MOST_BYTES = 200_000
_Options = tuple[tuple[str, str], ...]


def relevant(protocol: str, options: Mapping[str, str]) -> _Options:
    """Return the options that the dissector has as preferences, with the values of these."""
    declaration = PROTOCOLS[protocol].dissector
    assert declaration is not None
    named = {*declaration.framing.variants, *declaration.settings}
    known = {setting.name: setting for setting in PROTOCOLS[protocol].settings}
    found = {
        name.replace("-", "_"): str(value)
        if "|" in known[name].kind.syntax
        else str(known[name].read(value))
        for name, value in options.items()
        if name in named
    }
    return tuple(sorted(found.items()))


def groups(protocol: str) -> dict[_Options, list[list[Segment]]]:
    """Return the streams by the preferences that they need."""
    found: dict[_Options, list[list[Segment]]] = {}
    for options, segments in play(protocol):
        if sum(len(data) for _, data in segments) <= MOST_BYTES:
            found.setdefault(relevant(protocol, options), []).append(segments)
    return found


def decoder(protocol: str, options: _Options) -> Callable[[bytes, bool], Iterator[Fields]]:
    """Return a function of a side's bytes, and whether it is the client's."""
    if protocol == "rheos":
        return lambda data, client: oracles.rheos_packets(data, dict(options), client)
    if protocol == "fast":
        largest = int(dict(options).get("max_payload", 2**20))
        return lambda data, client: oracles.fast_packets(data, largest if client else None)
    if protocol == "spot":
        largest = int(dict(options).get("max_message", 2**20))
        return lambda data, client: oracles.spot_stream(data, largest if client else 2**26)
    return lambda data, _client: oracles.cafe_frames(data)


def until_fault(decoded: Iterator[Fields]) -> tuple[list[Fields], bool]:
    """Return the decoded frames, and whether a fault ends them."""
    found: list[Fields] = []
    try:
        for fields in decoded:
            found.append(fields)
    except (CafeError, FastError, RheosError, SpotError, ZmtpError, ValueError):
        return found, True
    return found, False


@pytest.mark.parametrize("protocol", ["cafe", "fast", "rheos", "spot"])
def test_both_sides_are_decoded(protocol: str) -> None:
    compared = 0
    for options, streams in groups(protocol).items():
        capture = Capture()
        clients = [capture.stream(PORTS[protocol], segments) for segments in streams]
        found = dissect(capture, protocol, preferences(protocol, dict(options)))
        decode = decoder(protocol, options)
        for segments, client in zip(streams, clients, strict=True):
            for from_client in (True, False):
                units = [unit for unit in found[address(client)] if unit.from_client == from_client]
                decoded = decode(side(segments, from_client), from_client)
                wanted, faulty = until_fault(decoded)
                check_side(units, wanted, faulty)
                compared += len(wanted)
    assert compared > 200


class TestLines:
    """nsd"""

    def test_requests_and_responses(self) -> None:
        streams = [segments for all_ in groups("nsd").values() for segments in all_]
        capture = Capture()
        clients = [capture.stream(PORTS["nsd"], segments) for segments in streams]
        found = dissect(capture, "nsd")
        for segments, client in zip(streams, clients, strict=True):
            for from_client in (True, False):
                units = [unit for unit in found[address(client)] if unit.from_client == from_client]
                lines = side(segments, from_client).split(b"\n")[:-1]
                assert len(units) == len(lines)
                for unit, line in zip(units, lines, strict=True):
                    check = check_request if from_client else check_response
                    check(unit, line.removesuffix(b"\r"))

    def test_cut_at_every_place(self) -> None:
        line = b'{"_class":"SubscribeRequest","identity":"a","channel":"\xc3\xa9"}\r\n'
        data = line + base64.b64encode(line) + b"\n" + line
        capture = Capture()
        clients = [
            capture.stream(PORTS["nsd"], [(True, data[:at]), (True, data[at:])])
            for at in range(1, len(data))
        ]
        found = dissect(capture, "nsd")
        for client in clients:
            units = found[address(client)]
            assert [unit.shown["channel"] for unit in units] == [["é"]] * 3
            assert not any(unit.experts for unit in units)

    def test_lines_over_the_limit(self) -> None:
        limit = nsd.MAX_LINE
        capture = Capture()
        over = capture.stream(PORTS["nsd"], [(True, b"x" * (limit + 1))])
        within = capture.stream(PORTS["nsd"], [(True, b"[" + b" " * (limit - 2) + b"]\n")])
        found = dissect(capture, "nsd")
        assert found[address(over)][0].experts == ["length"]
        assert found[address(within)][0].experts == ["opcode"]

    def test_json_that_is_none(self) -> None:
        lines = [
            b'{"_class":"OpenRequest","identity":"\\ud800"}',
            b'{"_class":"OpenRequest","identity":"a"} x',
            b'{"_class":"OpenRequest","identity":"a",}',
            b'{"_class":"OpenRequest","identity":"a","n":01}',
            b'{"_class":"OpenRequest","identity":"a","n":NaN}',
            b'{"_class":"OpenRequest","identity":"\x01"}',
            b'{"_class":"OpenRequest","identity":"\xff"}',
            b'{"_class":"OpenRequest","identity":"\\x"}',
            b"[" * 100_000,
            b"\x00",
        ]
        capture = Capture()
        client = capture.stream(PORTS["nsd"], [(True, line + b"\n") for line in lines])
        units = dissect(capture, "nsd")[address(client)]
        assert [unit.experts for unit in units] == [["malformed"]] * len(lines)
