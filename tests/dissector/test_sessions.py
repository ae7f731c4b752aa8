"""Real sessions: clients of a running broker, recorded, against our decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import zmq

from pubsub.protocols.spot import broker_commands
from tests.dissector import oracles
from tests.dissector.captures import Capture, address
from tests.dissector.checked_sides import check_request, check_response, check_side, side
from tests.dissector.oracles import Fields
from tests.dissector.played import Segment
from tests.dissector.recorder import Recorder
from tests.dissector.tshark import Unit, dissect
from tests.dissector.tshark_settings import FAULTS
from tests.integration import fast_client
from tests.integration.broker import HOST, TIMEOUT, Start, listen
from tests.integration.clients import Cafe, Client, Nsd, handshake_pub, handshake_sub, message
from tests.integration.clients import publish as cafe_publish
from tests.integration.cluster import QUICK
from tests.waiting import until

COUNT = 50


def shown(protocol: str, streams: Sequence[Sequence[Segment]]) -> list[list[Unit]]:
    """Return the fields that tshark shows of each connection."""
    capture = Capture()
    port = {"cafe": 7070, "nsd": 7071, "rheos": 7072, "spot": 7073, "fast": 7074}[protocol]
    clients = [capture.stream(port, segments) for segments in streams]
    found = dissect(capture, protocol)
    return [found[address(client)] for client in clients]


def sides(units: Sequence[Unit]) -> tuple[list[Unit], list[Unit]]:
    """Return the units of the client, and those of the broker."""
    return [one for one in units if one.from_client], [one for one in units if not one.from_client]


def decoded(protocol: str, data: bytes, from_client: bool) -> Iterator[Fields]:
    """Return the frames that our decoders find in the bytes of one side."""
    match protocol:
        case "cafe":
            return oracles.cafe_frames(data)
        case "fast":
            return oracles.fast_packets(data)
        case "rheos":
            return oracles.rheos_packets(data, {}, from_client)
    return oracles.spot_stream(data, 2**26)


def check_binary(
    protocol: str, streams: Sequence[Sequence[Segment]], counts: Sequence[int]
) -> None:
    """Compare recorded streams, which have at least this number of frames of the broker."""
    for segments, units, least in zip(streams, shown(protocol, streams), counts, strict=True):
        for from_client, own in zip((True, False), sides(units), strict=True):
            data = side(segments, from_client)
            check_side(own, list(decoded(protocol, data, from_client)), False)
            assert not any(FAULTS & set(unit.experts) for unit in own)
        assert len(sides(units)[1]) >= least


def test_cafe(start: Start) -> None:
    broker = start(*listen("cafe"))
    recorder = Recorder(broker.port("cafe"))
    with recorder, Cafe(recorder.port) as reader, Cafe(recorder.port) as writer:
        reader.shake(handshake_sub(b"\x01\x02", b"bob"))
        writer.shake(handshake_pub(1, b"alice"))
        writer.send(*(cafe_publish(1, b"%d" % n * n) for n in range(COUNT)))
        assert len(reader.receive_texts(COUNT)) == COUNT
        writer.send(cafe_publish(1, bytes(300_000)))
        assert len(reader.receive_texts(1)[0]) == 300_000
    check_binary("cafe", recorder.streams, [COUNT + 2, 1])


def test_nsd(start: Start) -> None:
    broker = start(*listen("nsd"))
    with Recorder(broker.port("nsd")) as recorder:
        for in_base64 in (False, True):
            with Nsd(recorder.port, in_base64) as client:
                client.do("Open", "ada")
                client.do("Publish", "ada", message=message("good mörning", extra=[1]))
                assert client.refused("Subscribe", "ada", channel="nobody")
                assert client.get("ada")
    for segments, units in zip(recorder.streams, shown("nsd", recorder.streams), strict=True):
        for from_client, own in zip((True, False), sides(units), strict=True):
            lines = side(segments, from_client).split(b"\n")[:-1]
            assert len(lines) == len(own) == 4
            for unit, line in zip(own, lines, strict=True):
                (check_request if from_client else check_response)(unit, line)


def test_rheos(start: Start) -> None:
    def request(opcode: int, client: int, data: bytes = b"") -> bytes:
        body = b"\x04\x00news" + len(data).to_bytes(2, "little") + data
        head = b"\xfa" + len(body).to_bytes(4, "little") + bytes([client]) * 16
        return head + bytes([opcode]) + body

    broker = start(*listen("rheos"))
    recorder = Recorder(broker.port("rheos"))
    with recorder, Client(recorder.port) as reader, Client(recorder.port) as writer:
        reader.send(request(0, 1), request(1, 1))
        assert len(reader._take(36)) == 36
        writer.send(*(request(2, 2, b"x" * n) for n in range(COUNT)))
        assert len(writer._take(18 * COUNT)) == 18 * COUNT
        assert reader._take(COUNT * 21 + sum(range(COUNT)))
    check_binary("rheos", recorder.streams, [COUNT + 2, COUNT])


def test_fast(start: Start, tmp_path: Path) -> None:
    secret = fast_client.make_secret(tmp_path / "secret")
    token = fast_client.make_token(secret)
    broker = start(*listen("fast"), f"--secret-file={secret}")
    with Recorder(broker.port("fast")) as recorder, fast_client.Fast(recorder.port) as client:
        client.send(fast_client.create(token), fast_client.subscribe(token))
        client.send(fast_client.publish(token, *(b"%d" % n for n in range(COUNT))))
        assert len(client.texts(COUNT)) == COUNT
        client.send(fast_client.rotate(token, b"k2"))
        assert [packet.kind for packet in client.sync(token)] == [fast_client.KEY_UPDATE]
    check_binary("fast", recorder.streams, [COUNT + 2])


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.SUB])
def test_spot_with_libzmq(start: Start, kind: int) -> None:
    broker = start(*listen("spot"))
    recorder = Recorder(broker.port("spot"))
    with (
        recorder,
        zmq.Context() as context,
        context.socket(kind) as reader,
        context.socket(zmq.DEALER) as writer,
    ):
        _talk(reader, writer, f"tcp://{HOST}:{recorder.port}")
    counts = [3 for _ in recorder.streams]
    check_binary("spot", recorder.streams, counts)


def _talk(reader: zmq.Socket[bytes], writer: zmq.Socket[bytes], endpoint: str) -> None:
    """Subscribe with one socket, and publish and query with the other."""
    for each in (reader, writer):
        each.setsockopt(zmq.RCVTIMEO, int(1000 * TIMEOUT))
        each.setsockopt(zmq.LINGER, 0)
        each.connect(endpoint)
    if reader.type == zmq.SUB:
        reader.setsockopt(zmq.SUBSCRIBE, b"game")
    else:
        reader.send_multipart([b"", b"\x02", b"game:*"])
    # Nothing shows that the subscription has begun, but a message.
    while not reader.poll(100):
        writer.send_multipart([b"", b"\x01", b"game:p1", b"x" * 300])
    assert reader.recv_multipart()[-1] == b"x" * 300
    writer.send_multipart([b"", b"\x04"])
    assert writer.recv_multipart()[1] == b"\x05"


def test_brokers_among_themselves(start: Start) -> None:
    host = start(*listen("spot", "nsd", "rheos"), *QUICK)
    with Nsd.to(host) as owner:
        owner.do("Open", "ada")
    with Recorder(host.port("spot")) as recorder:
        peer = start(*listen("spot", "nsd"), *QUICK, f"--peer=tcp://{HOST}:{recorder.port}")
        with Nsd.to(peer) as reader, Nsd.to(host) as owner:
            until(lambda: "NO SUCH" not in _subscribe(reader), "the topic is known")
            owner.do("Publish", "ada", message=message("hello"))
            until(lambda: len(reader.get("bob")) == 1, "the message is copied")
        peer.stop()
    check_binary("spot", recorder.streams, [3 for _ in recorder.streams])
    names = {
        name
        for units in shown("spot", recorder.streams)
        for unit in units
        for name in unit.shown["message"]
    }
    assert {"4", "5", "8", "9"} <= names


def _subscribe(client: Nsd) -> str:
    return str(client.ask("Subscribe", "bob", channel="ada"))


def test_commands_of_brokers() -> None:
    commands: list[broker_commands.BrokerCommand] = [
        broker_commands.Confirm(7),
        broker_commands.Confirmation(1, 2**63, 3),
        broker_commands.Read(b"news", b"e1", 9),
        broker_commands.HistoryPage(b"news", b"e1", 1, 2, 3),
        broker_commands.HistoryPage(b"news", b"", 1, 2, 3, [4, 5], [b"a", b""]),
    ]
    data = b"".join(broker_commands.encode_broker_command(command) for command in commands)
    (units,) = shown("spot", [[(False, data)]])
    check_side(units, list(oracles.spot_messages(data)), False)
    assert not any(unit.experts for unit in units)
