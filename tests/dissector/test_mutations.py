"""Bytes of any kind: no error in the dissector, and the same in each of Wireshark's passes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

import pytest

from pubsub.plugin import installed_protocols
from tests.dissector.captures import Capture
from tests.dissector.played import play
from tests.dissector.tshark import columns, tshark

PORTS = {name: protocol.port for name, protocol in installed_protocols().items()}
COUNT = 1500
LONGEST = 2000
SEED = 7
# In the second pass only, Wireshark 4.4 adds this to the information about a segment of TCP.
_OF_TCP = re.compile(r" \[TCP PDU reassembled in \d+\]$")


def mutated(protocol: str, random: Random) -> Iterator[tuple[bool, bytes]]:
    """Yield segments of the conversations with some of their bytes changed, lost or doubled."""
    segments = [
        segment for _, stream in play(protocol) for segment in stream if len(segment[1]) < LONGEST
    ]
    for _ in range(COUNT):
        from_client, original = random.choice(segments)
        data = bytearray(original)
        for _ in range(random.randrange(1, 4)):
            at = random.randrange(len(data) + 1)
            match random.randrange(4):
                case 0:
                    data[at : at + 1] = random.randbytes(1)
                case 1:
                    del data[at : at + random.randrange(1, 9)]
                case 2:
                    data[at:at] = data[at : at + random.randrange(1, 9)]
                case 3:
                    data[at : at + 4] = random.choice([bytes(4), b"\xff\xff\xff\xff", b"\x7f"])
        yield random.random() < 0.9 if from_client else False, bytes(data)


@pytest.mark.parametrize("protocol", sorted(PORTS))
@pytest.mark.parametrize("together", ["TRUE", "FALSE"])
def test_mutated_frames_are_shown_without_an_error(protocol: str, together: str) -> None:
    random = Random(SEED)
    capture = Capture()
    stream: list[tuple[bool, bytes]] = []
    for number, segment in enumerate(mutated(protocol, random)):
        capture.stream(PORTS[protocol], [segment])
        stream.append(segment)
        if number % 10 == 9:
            # The faults of a frame continue in the next ones.
            capture.stream(PORTS[protocol], stream)
            stream = []
        if protocol == "cafe":
            capture.datagrams(PORTS[protocol], [segment])
    arguments = ["-V", "-O", f"pubsub.{protocol}", f"-otcp.desegment_tcp_streams:{together}"]
    shown = tshark(bytes(capture), arguments).decode(errors="replace")
    assert shown.count(f"\npubsub {protocol}") > COUNT // 2


@pytest.mark.parametrize("protocol", sorted(PORTS))
def test_both_passes_show_the_same(protocol: str) -> None:
    capture = Capture()
    for _, segments in play(protocol):
        if sum(len(data) for _, data in segments) < LONGEST:
            capture.stream(PORTS[protocol], segments)
    once, twice = (
        [
            [_OF_TCP.sub("", info), message]
            for info, message in columns(capture, passes, ["_ws.col.Info", "_ws.expert.message"])
        ]
        for passes in ((), ("-2",))
    )
    assert once == twice
