"""cafe over UDP: frames in datagrams; the address of a peer is its connection (cafe §7)."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

import pytest

from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.clients import (
    DISCONNECT,
    ERROR,
    HANDSHAKE_ACK,
    MESSAGE,
    PING,
    PONG,
    PUBLISH,
    Cafe,
    Frame,
    Nsd,
    frame,
    handshake_pub,
    handshake_sub,
    message,
    publish,
    split,
    text,
)

LONGEST = 65_507 - 7 - 9


class Datagrams:
    """A UDP client of one broker."""

    def __init__(self, broker: Broker) -> None:
        self.sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.sock.settimeout(TIMEOUT)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * 1024 * 1024)
        self.sock.connect((HOST, broker.port("cafe", "udp")))
        self.session = 0

    def send(self, *frames: bytes) -> None:
        """Send one datagram."""
        self.sock.send(b"".join(frames))

    def receive(self) -> list[Frame]:
        """Return the frames of the next datagram."""
        return split(self.sock.recv(65_536))

    def shake(self, handshake: bytes) -> None:
        """Send a handshake and read its acknowledgment, which has its own datagram."""
        self.send(handshake)
        ((opcode, payload),) = self.receive()
        assert (opcode, payload[0]) == (HANDSHAKE_ACK, 0)
        (self.session,) = struct.unpack("<xQ", payload)

    def sync(self) -> list[Frame]:
        """Send PING and return the frames before its PONG."""
        self.send(frame(PING))
        frames: list[Frame] = []
        while not frames or frames[-1].opcode != PONG:
            frames += self.receive()
        return frames[:-1]


@pytest.fixture
def broker(start: Start) -> Broker:
    return start(*listen("cafe", "nsd"), "--udp")


@pytest.fixture
def peer(broker: Broker) -> Iterator[Datagrams]:
    made = Datagrams(broker)
    yield made
    made.sock.close()


@pytest.fixture
def other(broker: Broker) -> Iterator[Datagrams]:
    made = Datagrams(broker)
    yield made
    made.sock.close()


@pytest.mark.modes
def test_messages_pass_between_udp_tcp_and_nsd(
    broker: Broker, peer: Datagrams, other: Datagrams
) -> None:
    peer.shake(handshake_sub(b"\x01\x02", b"udp-reader"))
    other.shake(handshake_pub(1, b"udp-writer"))
    with Cafe.subscriber(broker) as stream, Cafe.publisher(broker) as publisher:
        other.send(publish(1, b"from udp"))
        assert [text(f) for f in peer.receive()] == [b"from udp"]
        assert stream.receive_texts(1) == [b"from udp"]
        publisher.send(publish(1, b"from tcp"))
        assert [text(f) for f in peer.receive()] == [b"from tcp"]
        assert stream.receive_texts(1) == [b"from tcp"]
    with Nsd.to(broker) as nsd:
        nsd.do("Subscribe", "reader", channel="cafe/1")
        seen = [(m["from"], m["body"]) for m in nsd.get("reader")]
        assert seen == [("udp-writer", "from udp"), ("", "from tcp")]
        nsd.do("Open", "cafe/2")
        nsd.do("Publish", "cafe/2", message=message("from nsd"))
    assert [text(f) for f in peer.receive()] == [b"from nsd"]


def test_each_message_has_its_own_datagram(peer: Datagrams, other: Datagrams) -> None:
    peer.shake(handshake_sub())
    other.send(handshake_pub(), *[publish(1, b"%02d" % n) for n in range(40)])
    assert [opcode for opcode, _ in other.receive()] == [HANDSHAKE_ACK]
    received = [peer.receive() for _ in range(40)]
    assert [[text(f) for f in frames] for frames in received] == [[b"%02d" % n] for n in range(40)]


def test_frames_share_datagrams_if_they_may(start: Start) -> None:
    broker = start(*listen("cafe"), "--udp", "--udp-packing")
    peer, other = Datagrams(broker), Datagrams(broker)
    peer.shake(handshake_sub())
    other.send(handshake_pub(), *[publish(1, b"%02d" % n + bytes(98)) for n in range(40)])
    ((opcode, _payload),) = other.receive()
    assert opcode == HANDSHAKE_ACK
    texts: list[bytes] = []
    sizes: list[int] = []
    while len(texts) < 40:
        data = peer.sock.recv(65_536)
        sizes.append(len(data))
        texts += [text(f)[:2] for f in split(data)]
    assert texts == [b"%02d" % n for n in range(40)]
    # Packed, but not beyond a size that common paths transport unfragmented.
    assert max(sizes) <= 1400
    assert len(sizes) < 10
    peer.sock.close()
    other.sock.close()


def test_the_longest_message_a_datagram_can_carry(
    broker: Broker, peer: Datagrams, other: Datagrams
) -> None:
    peer.shake(handshake_sub(b"\x01", b"small"))
    other.shake(handshake_pub())
    with Cafe.subscriber(broker) as stream, Cafe.publisher(broker) as publisher:
        publisher.send(publish(1, bytes(LONGEST)), publish(1, bytes(LONGEST + 1)), publish(1, b"x"))
        assert [len(each) for each in stream.receive_texts(3)] == [LONGEST, LONGEST + 1, 1]
    received = peer.receive()
    received += peer.receive()
    assert [len(text(f)) for f in received] == [LONGEST, 1]
    broker.wait_line(r"dropped: 1 for client 'small@[\d.:]+' on topic 'cafe/1': too-large")


STRANGERS = [
    (frame(PING), 0x01),
    (frame(DISCONNECT), 0x01),
    (publish(1, b"x") + handshake_pub(), 0x01),
    (b"\xca\xfe" + handshake_pub()[2:], 0x05),
    (b"GET / HTTP/1.1\r\n\r\n", 0x07),
    (b"\xfe\xca\x10\x01\x00\x20\x00", 0x03),
    (handshake_pub()[:-1], 0x07),
    (b"\xfe", 0x07),
]


@pytest.mark.parametrize(("datagram", "code"), STRANGERS, ids=lambda v: str(v)[:30])
def test_an_unknown_peer_must_begin_with_a_handshake(
    peer: Datagrams, datagram: bytes, code: int
) -> None:
    peer.send(datagram)
    assert peer.receive() == [(ERROR, bytes([code]))]
    # No session began, so the same address can still send a handshake.
    peer.shake(handshake_pub())
    assert peer.sync() == []


def test_an_empty_datagram_is_ignored(peer: Datagrams) -> None:
    peer.send(b"")
    peer.shake(handshake_pub())
    peer.send(b"")
    assert peer.sync() == []


def test_a_truncated_datagram_ends_the_session_after_its_complete_frames(
    peer: Datagrams, other: Datagrams
) -> None:
    other.shake(handshake_sub())
    peer.shake(handshake_pub())
    peer.send(publish(1, b"whole"), publish(1, b"cut")[:-1])
    assert peer.receive() == [(ERROR, b"\x07")]
    assert [text(f) for f in other.receive()] == [b"whole"]
    peer.send(publish(1, b"nobody"))
    assert peer.receive() == [(ERROR, b"\x01")]
    assert other.sync() == []


def test_errors_that_keep_the_session(peer: Datagrams) -> None:
    peer.shake(handshake_sub())
    peer.send(publish(1, b"x"), frame(0x77))
    assert peer.receive() + peer.receive() == [(ERROR, b"\x08"), (ERROR, b"\x06")]
    assert peer.sync() == []


def test_an_error_that_closes_ends_the_session(peer: Datagrams) -> None:
    peer.shake(handshake_pub())
    peer.send(frame(PUBLISH), publish(1, b"ignored"))
    assert peer.receive() == [(ERROR, b"\x07")]
    peer.send(frame(PING))
    assert peer.receive() == [(ERROR, b"\x01")]


def test_disconnect_ends_the_session(peer: Datagrams, other: Datagrams) -> None:
    peer.shake(handshake_sub())
    peer.send(frame(DISCONNECT))
    other.shake(handshake_pub())
    other.send(publish(1, b"for nobody"))
    assert other.sync() == []
    peer.send(frame(PING))
    assert peer.receive() == [(ERROR, b"\x01")]


def test_a_session_moves_to_another_address(
    broker: Broker, peer: Datagrams, other: Datagrams
) -> None:
    peer.shake(handshake_sub(b"\x01", b"mover"))
    other.shake(handshake_sub(b"", b"mover;resume=%016x" % peer.session))
    assert other.session == peer.session
    with Cafe.publisher(broker) as publisher:
        publisher.send(publish(1, b"to the new place"))
    assert [text(f) for f in other.receive()] == [b"to the new place"]
    peer.send(frame(PING))
    assert peer.receive() == [(ERROR, b"\x01")]


@pytest.mark.modes
def test_a_session_moves_from_udp_to_tcp(broker: Broker, peer: Datagrams) -> None:
    """Messages too large for a datagram are delivered on the stream."""
    peer.shake(handshake_sub(b"\x01", b"mover"))
    with Cafe(broker.port("cafe")) as stream, Cafe.publisher(broker) as publisher:
        stream.shake(handshake_sub(b"", b"mover;resume=%016x" % peer.session))
        publisher.send(publish(1, bytes(LONGEST + 1)))
        assert stream.receive_texts(1) == [bytes(LONGEST + 1)]


@pytest.mark.modes
def test_a_stopping_broker_says_goodbye(broker: Broker, peer: Datagrams, other: Datagrams) -> None:
    peer.shake(handshake_sub())
    other.shake(handshake_pub())
    other.send(publish(1, b"the last"), frame(PING))
    assert [f.opcode for f in other.receive()] == [PONG]
    broker.signal()
    frames: list[Frame] = []
    while not frames or frames[-1].opcode != DISCONNECT:
        frames += peer.receive()
    assert [f.opcode for f in frames] == [MESSAGE, DISCONNECT]
    assert other.receive() == [(DISCONNECT, b"")]
