"""spot with libzmq at the other end, as client and as server (§2)."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import zmq

from pubsub.protocols.spot.zmtp import (
    GREETING,
    Command,
    FrameLimits,
    Unit,
    decode,
    encode_command,
    encode_message,
    ping,
    ready,
)
from pubsub.protocols.spot.zmtp_handshake import Handshake
from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.cluster import Open, Socket, free_port, sockets, subscribe
from tests.waiting import until


@pytest.fixture
def connect() -> Iterator[Open]:
    """Yield a function that opens pyzmq sockets."""
    with sockets() as opener:
        yield opener


@pytest.fixture
def broker(start: Start) -> Broker:
    """Return a broker with spot."""
    return start(*listen("spot"))


def endpoint(broker: Broker) -> str:
    """Return its endpoint."""
    return f"tcp://{HOST}:{broker.port('spot')}"


@contextmanager
def proxy(broker: Broker) -> Iterator[str]:
    """Run a proxy with a ROUTER for clients and a DEALER for the broker; yield its address."""
    with zmq.Context() as context:
        front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
        port = front.bind_to_random_port(f"tcp://{HOST}")
        back.connect(endpoint(broker))

        def run() -> None:
            with suppress(zmq.ContextTerminated):
                zmq.proxy(front, back)
            front.close(0)
            back.close(0)

        thread = threading.Thread(target=run)
        thread.start()
        yield f"tcp://{HOST}:{port}"
        context.term()
        thread.join()


# libzmq connects to the broker


def test_dealer(broker: Broker, connect: Open) -> None:
    reader = subscribe(connect(zmq.DEALER, endpoint(broker)), b"game:p1")
    writer = connect(zmq.DEALER, endpoint(broker))
    writer.send(b"", b"\x01", b"game:p1", b"Hello")
    writer.send(b"\x01", b"origin", b"game:p1", b"x" * 70_000)
    assert reader.receive() == [b"", b"\x01", b"game:p1", b"Hello"]
    assert reader.receive() == [b"", b"\x01", b"game:p1", b"x" * 70_000]
    assert writer.query() == [b"game:p1"]


def test_req(broker: Broker, connect: Open) -> None:
    asker = connect(zmq.REQ, endpoint(broker))
    for _ in range(3):
        asker.send(b"\x04")
        assert asker.receive() == [b"\x05", bytes(4)]


def test_router(broker: Broker, connect: Open) -> None:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as bare:
        router = Socket(bare)
        router.zmq.setsockopt(zmq.CONNECT_ROUTING_ID, b"broker")
        router.zmq.setsockopt(zmq.IDENTITY, b"original")
        router.zmq.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.zmq.connect(endpoint(broker))
        # The original programs omit the delimiter.
        router.send(b"broker", b"\x02", b"ga*")
        router.send(b"broker", b"\x04")
        assert router.receive() == [b"broker", b"", b"\x05", bytes(4)]
        connect(zmq.PUB, endpoint(broker))
        router.send(b"broker", b"\x01", b"game", b"mine")
        assert router.receive() == [b"broker", b"", b"\x01", b"game", b"mine"]


def test_req_with_numbered_requests(broker: Broker, connect: Open) -> None:
    with zmq.Context() as context, context.socket(zmq.REQ) as bare:
        asker = Socket(bare)
        asker.zmq.setsockopt(zmq.REQ_CORRELATE, 1)
        asker.zmq.setsockopt(zmq.REQ_RELAXED, 1)
        asker.zmq.connect(endpoint(broker))
        for _ in range(3):
            asker.send(b"\x04")
            assert asker.receive() == [b"\x05", bytes(4)]


def test_clients_behind_a_proxy(broker: Broker, connect: Open) -> None:
    with proxy(broker) as address:
        ann, ben = connect(zmq.DEALER, address), connect(zmq.DEALER, address)
        asker = connect(zmq.REQ, address)
        subscribe(ann, b"a")
        subscribe(ben, b"b*")
        # The original programs omit the delimiter.
        ben.send(b"\x01", b"a", b"for ann")
        ann.send(b"", b"\x01", b"b1", b"for ben")
        assert ann.receive() == [b"", b"\x01", b"a", b"for ann"]
        assert ben.receive() == [b"", b"\x01", b"b1", b"for ben"]
        asker.send(b"\x04")
        assert asker.receive() == [b"\x05", b"\x02\0\0\0", b"a", b"b1"]
    broker.stop()
    assert broker.totals()["refused"] == 0


@pytest.mark.parametrize("kind", [zmq.SUB, zmq.XSUB])
def test_sub_and_xsub(broker: Broker, connect: Open, kind: int) -> None:
    reader = connect(kind, endpoint(broker))
    writer = connect(zmq.DEALER, endpoint(broker))

    def change(on: bool, prefix: bytes) -> None:
        if kind == zmq.XSUB:
            reader.send((b"\x01" if on else b"\x00") + prefix)
        else:
            reader.zmq.setsockopt(zmq.SUBSCRIBE if on else zmq.UNSUBSCRIBE, prefix)

    change(True, b"game:")

    def arrives(data: bytes) -> bool:
        writer.send(b"", b"\x01", b"game:1", data)
        return bool(reader.zmq.poll(50))

    until(lambda: arrives(b"yet?"), "the subscription")
    writer.send(b"", b"\x01", b"other", b"no")
    writer.send(b"", b"\x01", b"game:2", b"new")
    frames = reader.receive()
    while frames == [b"game:1", b"yet?"]:
        frames = reader.receive()
    assert frames == [b"game:2", b"new"]
    change(False, b"game:")
    until(lambda: not arrives(b"still?") or not reader.receive(), "the end of it")


@pytest.mark.parametrize("kind", [zmq.PUB, zmq.XPUB])
def test_pub_and_xpub(broker: Broker, connect: Open, kind: int) -> None:
    reader = subscribe(connect(zmq.DEALER, endpoint(broker)), b"t")
    writer = connect(kind, endpoint(broker))
    if kind == zmq.XPUB:
        assert writer.receive() == [b"\x01"]

    def arrives() -> bool:
        writer.send(b"t", b"x")
        return bool(reader.zmq.poll(50))

    until(arrives, "the subscription")
    assert reader.receive() == [b"", b"\x01", b"t", b"x"]


def test_heartbeats_keep_a_connection(broker: Broker, connect: Open) -> None:
    # A busy machine may delay a reply for longer than the first time.
    assert any(keeps_connection(broker, connect, milliseconds) for milliseconds in (1200, 10_000))


def keeps_connection(broker: Broker, connect: Open, milliseconds: int) -> bool:
    """Return whether a connection whose two ends wait so long for the other one is kept."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as bare:
        dealer = Socket(bare)
        monitor = dealer.zmq.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        dealer.zmq.setsockopt(zmq.HEARTBEAT_IVL, 100)
        dealer.zmq.setsockopt(zmq.HEARTBEAT_TIMEOUT, milliseconds)
        dealer.zmq.setsockopt(zmq.HEARTBEAT_TTL, milliseconds)
        dealer.zmq.connect(endpoint(broker))
        subscribe(dealer, b"t")
        is_kept = not monitor.poll(2 * milliseconds)
        if is_kept:
            connect(zmq.DEALER, endpoint(broker)).send(b"\x01", b"t", b"x")
            assert dealer.receive()[-1] == b"x"
        dealer.zmq.disable_monitor()
        return is_kept


def test_a_socket_of_another_type_is_refused(broker: Broker, connect: Open) -> None:
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.linger = 0
        monitor = push.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        push.connect(endpoint(broker))
        assert monitor.poll(int(TIMEOUT * 1000))
        push.disable_monitor()
    broker.wait_line("refused: 1 on spot: socket-type")


@pytest.mark.modes
def test_a_unix_socket(start: Start, connect: Open, tmp_path: Path) -> None:
    path = tmp_path / "spot"
    start(f"--listen=spot=unix:{path}")
    reader = subscribe(connect(zmq.DEALER, f"ipc://{path}"), b"t")
    reader.send(b"", b"\x01", b"t", b"x")
    assert reader.receive() == [b"", b"\x01", b"t", b"x"]


@pytest.mark.modes
def test_many_messages_in_order(broker: Broker, connect: Open) -> None:
    reader = connect(zmq.DEALER, endpoint(broker))
    reader.zmq.rcvhwm = 0
    subscribe(reader, b"t")
    writer = connect(zmq.DEALER, endpoint(broker))
    writer.zmq.sndhwm = 0
    count = 50_000
    for number in range(count):
        writer.send(b"", b"\x01", b"t", b"%d" % number)
    assert [int(reader.receive()[-1]) for _ in range(count)] == list(range(count))


# The broker connects to libzmq


@pytest.mark.parametrize("kind", [zmq.PUB, zmq.XPUB])
def test_a_bound_publisher_is_a_peer(start: Start, connect: Open, kind: int) -> None:
    with zmq.Context() as context:
        bound, port = context.socket(kind), free_port()
        bound.bind(f"tcp://{HOST}:{port}")
        broker = start(*listen("spot"), f"--peer=tcp://{HOST}:{port}", "--spot-heartbeat=1")
        broker.wait_line(f"tcp://{HOST}:{port} is connected")
        reader = subscribe(connect(zmq.DEALER, endpoint(broker)), b"news")

        def arrives() -> bool:
            bound.send_multipart([b"news", b"x"])
            return bool(reader.zmq.poll(50))

        until(arrives, "the subscription")
        assert reader.receive() == [b"", b"\x01", b"news", b"x"]
        bound.close(0)
        broker.wait_line(f"tcp://{HOST}:{port} is disconnected")
        again = context.socket(kind)
        until(lambda: not bind_fails(again, port), "the port")
        broker.wait_line(f"tcp://{HOST}:{port} is connected", 2)
        again.close(0)
    broker.stop()
    assert broker.totals()["refused"] == 0


def bind_fails(bare: zmq.Socket[bytes], port: int) -> bool:
    """Try to bind; return whether that fails."""
    try:
        bare.bind(f"tcp://{HOST}:{port}")
    except zmq.ZMQError:
        return True
    return False


# Our codec connects to libzmq


class Peer:
    """Our codec on a connection to a libzmq socket."""

    def __init__(self, port: int, kind: bytes) -> None:
        self._socket = socket.create_connection((HOST, port), TIMEOUT)
        self._data = b""
        self._socket.sendall(GREETING)
        self.handshake = Handshake()
        at, need = 0, 1
        while not self.handshake.done:
            if need > len(self._data) - at:
                self._more()
            greeted = self.handshake.minor is not None
            at, need = self.handshake.consume(self._data, at)
            if not greeted and self.handshake.minor is not None:
                self._socket.sendall(ready(kind))
        self._data = self._data[at:]

    def _more(self) -> None:
        data = self._socket.recv(65536)
        assert data, "the connection is closed"
        self._data += data

    def has_more(self) -> bool:
        """Return whether anything arrives within a moment."""
        return bool(select.select([self._socket], [], [], 0.05)[0])

    def send(self, *frames: bytes) -> None:
        self._socket.sendall(encode_message(frames))

    def command(self, name: bytes, data: bytes = b"") -> None:
        self._socket.sendall(encode_command(Command(name, data)))

    def raw(self, data: bytes) -> None:
        self._socket.sendall(data)

    def unit(self) -> Unit:
        """Return the next unit."""
        while True:
            unit = decode(self._data, 0, FrameLimits())
            if isinstance(unit, Unit):
                self._data = self._data[unit.end :]
                return unit
            self._more()

    def receive(self) -> list[bytes]:
        """Return the next message, without the commands before it."""
        while not (frames := self.unit().frames):
            pass
        return frames

    def close(self) -> None:
        self._socket.close()


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (zmq.DEALER, b"DEALER"),
        (zmq.DEALER, b"ROUTER"),
        (zmq.REQ, b"ROUTER"),
        (zmq.ROUTER, b"DEALER"),
        (zmq.ROUTER, b"ROUTER"),
        (zmq.SUB, b"XPUB"),
        (zmq.XSUB, b"XPUB"),
        (zmq.PUB, b"XSUB"),
        (zmq.XPUB, b"XSUB"),
    ],
)
def test_our_codec_connects_to(theirs: zmq.SocketType, ours: bytes) -> None:
    with zmq.Context() as context, context.socket(theirs) as bare:
        bound = Socket(bare)
        port = bound.zmq.bind_to_random_port(f"tcp://{HOST}")
        if theirs == zmq.SUB:
            bound.zmq.subscribe(b"t")
        peer = Peer(port, ours)
        assert peer.handshake.minor == 1
        assert peer.handshake.socket_type == theirs.name.encode()
        TALKS[theirs](bound, peer)
        # PONG returns the context of PING.
        peer.raw(ping(b"are you there", 60))
        while (unit := peer.unit()).commands != [Command(b"PONG", b"are you there")]:
            assert unit
        peer.close()


def _dealer(bound: Socket, peer: Peer) -> None:
    bound.send(b"", b"\x04")
    assert peer.receive() == [b"", b"\x04"]
    peer.send(b"", b"x" * 300)
    assert bound.receive() == [b"", b"x" * 300]


def _req(bound: Socket, peer: Peer) -> None:
    bound.send(b"\x04")
    assert peer.receive() == [b"", b"\x04"]
    peer.send(b"", b"\x05", bytes(4))
    assert bound.receive() == [b"\x05", bytes(4)]


def _router(bound: Socket, peer: Peer) -> None:
    peer.send(b"", b"\x04")
    identity, *request = bound.receive()
    assert request == [b"", b"\x04"]
    bound.send(identity, b"", b"\x05", bytes(4))
    assert peer.receive() == [b"", b"\x05", bytes(4)]


def _sub(bound: Socket, peer: Peer) -> None:
    if bound.zmq.type == zmq.XSUB:
        bound.send(b"\x01t")
    # libzmq notices a new peer when the socket is next used.
    bound.nothing(50)
    unit = peer.unit()
    assert unit.commands == [Command(b"SUBSCRIBE", b"t")] or unit.frames == [b"\x01t"]
    peer.send(b"topic", b"data")
    assert bound.receive() == [b"topic", b"data"]


def _pub(bound: Socket, peer: Peer) -> None:
    peer.command(b"SUBSCRIBE", b"t")
    if bound.zmq.type == zmq.XPUB:
        assert bound.receive() == [b"\x01t"]
        bound.send(b"topic", b"first")
    else:
        # A PUB socket does not report when it has a subscriber.
        def arrives() -> bool:
            bound.send(b"topic", b"first")
            return peer.has_more()

        until(arrives, "the subscription")
    assert peer.receive() == [b"topic", b"first"]
    bound.send(b"other", b"not subscribed")
    bound.send(b"t", b"last")
    while (frames := peer.receive()) != [b"t", b"last"]:
        assert frames == [b"topic", b"first"]


TALKS = {
    zmq.DEALER: _dealer,
    zmq.REQ: _req,
    zmq.ROUTER: _router,
    zmq.SUB: _sub,
    zmq.XSUB: _sub,
    zmq.PUB: _pub,
    zmq.XPUB: _pub,
}
