"""PLAIN and CURVE of spot with libzmq at the other end (§2.6)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from zmq.utils.monitor import recv_monitor_message

from pubsub.broker.credentials.password_file import hash_password
from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.cluster import Socket

PUBSUB = str(Path(sys.executable).with_name("pubsub"))


class Keys:
    """Key files made by ``pubsub curve-key``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def make(self, name: str) -> Path:
        path = self.directory / name
        subprocess.run([PUBSUB, "curve-key", str(path)], check=True, capture_output=True)
        return path

    @staticmethod
    def public(path: Path) -> bytes:
        return Path(f"{path}.pub").read_bytes().strip()

    @staticmethod
    def secret(path: Path) -> bytes:
        return path.read_bytes().strip()


class Sockets:
    """Opens pyzmq sockets with credentials."""

    def __init__(self, context: zmq.Context[Any], keys: Keys) -> None:
        self.context = context
        self.keys = keys

    def open(self, kind: int, broker: Broker) -> Socket:
        socket = self.context.socket(kind)
        self.secure(socket)
        socket.connect(f"tcp://{HOST}:{broker.port('spot')}")
        return Socket(socket)

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        """Give no credentials."""

    def refused(self, broker: Broker, event: int) -> int:
        """Return the value of ``event`` of a socket that connects."""
        socket = self.context.socket(zmq.DEALER)
        socket.linger = 0
        self.secure(socket)
        monitor = socket.get_monitor_socket(event)
        socket.connect(f"tcp://{HOST}:{broker.port('spot')}")
        assert monitor.poll(int(TIMEOUT * 1000))
        value: int = recv_monitor_message(monitor)["value"]
        socket.disable_monitor()
        socket.close()
        return value


class Plain(Sockets):
    """PLAIN."""

    password = b"sesame"

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        socket.plain_username, socket.plain_password = b"bob", self.password


class Curve(Sockets):
    """CURVE."""

    server = client = "client"

    def secure(self, socket: zmq.Socket[bytes]) -> None:
        keys, directory = self.keys, self.keys.directory
        socket.curve_serverkey = keys.public(directory / "server")
        socket.curve_publickey = keys.public(directory / self.client)
        socket.curve_secretkey = keys.secret(directory / self.client)


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    """Return keys of a server and two clients."""
    keys = Keys(tmp_path)
    for name in ("server", "client", "stranger"):
        keys.make(name)
    return keys


@pytest.fixture
def context() -> Iterator[zmq.Context[Any]]:
    """Yield a context whose sockets are closed at the end."""
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def options(keys: Keys, mechanism: str) -> list[str]:
    """Return the options of a broker that knows bob and the key ``client``."""
    users = keys.directory / "users"
    users.write_text(f"bob:{hash_password(b'sesame')}\n")
    users.chmod(0o600)
    client = keys.public(keys.directory / "client").decode()
    return [
        *listen("spot", "cafe"),
        f"--password-file={users}",
        f"--spot-mechanism={mechanism}",
        f"--spot-curve-secret-file={keys.directory / 'server'}",
        f"--spot-curve-clients={client}=carol",
    ]


@pytest.mark.parametrize("kind", [Plain, Curve])
def test_messages_of_any_size(
    start: Start, keys: Keys, context: zmq.Context[Any], kind: type[Sockets]
) -> None:
    broker = start(*options(keys, "plain,curve"))
    sockets = kind(context, keys)
    reader, writer = sockets.open(zmq.DEALER, broker), sockets.open(zmq.DEALER, broker)
    plain_reader = sockets.open(zmq.SUB, broker)
    plain_reader.zmq.subscribe(b"big")
    reader.send(b"", b"\x02", b"big")
    reader.query()
    plain_writer = sockets.open(zmq.XPUB, broker)
    assert plain_writer.receive() == [b"\x01"]
    while not plain_reader.zmq.poll(50):
        writer.send(b"", b"\x01", b"big", b"begin")
    while reader.zmq.poll(200):
        reader.receive()
    while plain_reader.zmq.poll(200):
        plain_reader.receive()
    for size in (0, 1, 254, 255, 256, 70_000, 1024 * 1024):
        writer.send(b"", b"\x01", b"big", b"x" * size)
        assert reader.receive() == [b"", b"\x01", b"big", b"x" * size]
        assert plain_reader.receive() == [b"big", b"x" * size]
    plain_writer.send(b"big", b"from a PUB socket")
    assert plain_reader.receive() == [b"big", b"from a PUB socket"]
    broker.stop()


@pytest.mark.parametrize("kind", [Plain, Curve])
def test_many_messages_in_order(
    start: Start, keys: Keys, context: zmq.Context[Any], kind: type[Sockets]
) -> None:
    broker = start(*options(keys, "plain,curve"))
    sockets = kind(context, keys)
    reader, writer = sockets.open(zmq.DEALER, broker), sockets.open(zmq.DEALER, broker)
    reader.zmq.rcvhwm = writer.zmq.sndhwm = 0
    reader.send(b"", b"\x02", b"many")
    reader.query()
    for n in range(20_000):
        writer.send(b"", b"\x01", b"many", b"%d" % n)
    received = [reader.receive()[3] for _ in range(20_000)]
    assert received == [b"%d" % n for n in range(20_000)]
    broker.stop()


def test_wrong_credentials_are_refused_as_libzmq_refuses_them(
    start: Start, keys: Keys, context: zmq.Context[Any]
) -> None:
    broker = start(*options(keys, "plain,curve"))
    wrong, stranger = Plain(context, keys), Curve(context, keys)
    wrong.password, stranger.client = b"hunter2", "stranger"
    auth = zmq.EVENT_HANDSHAKE_FAILED_AUTH
    # libzmq expects another spelling of ERROR here than RFC 24 has, and so reports a fault.
    wrong.refused(broker, auth | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
    broker.wait_line("refused: 1 on spot: wrong-password")
    assert stranger.refused(broker, auth) == 400
    broker.wait_line("refused: 1 on spot: unknown-key")
    Sockets(context, keys).refused(broker, zmq.EVENT_DISCONNECTED | auth)
    broker.wait_line("refused: 1 on spot: mechanism")
    broker.stop()
    assert "hunter2" not in broker.output


def test_brokers_share_topics_over_curve(
    start: Start, keys: Keys, context: zmq.Context[Any]
) -> None:
    first = start(*options(keys, "curve"))
    carol = Curve(context, keys).open(zmq.DEALER, first)
    carol.send(b"", b"\x02", b"shared")
    carol.send(b"", b"\x01", b"shared", b"here")
    assert carol.receive()[3] == b"here"
    endpoint = f"tcp://{HOST}:{first.port('spot')}"
    second = start(
        *listen("spot"),
        f"--peer={endpoint}",
        f"--spot-curve-secret-file={keys.directory / 'client'}",
        f"--spot-peer-curve-keys={endpoint}={keys.public(keys.directory / 'server').decode()}",
        "--spot-sync=1",
    )
    second.wait_line(f"{endpoint} is connected$")
    there = Sockets(context, keys).open(zmq.DEALER, second)
    # Refused until the first broker has listed its topics.
    while not carol.zmq.poll(100):
        there.send(b"", b"\x01", b"shared", b"x" * 300_000)
    assert carol.receive() == [b"", b"\x01", b"shared", b"x" * 300_000]
    second.stop()
    first.stop()


def test_a_peer_with_another_key_is_not_connected(start: Start, keys: Keys) -> None:
    first = start(*options(keys, "curve"))
    endpoint = f"tcp://{HOST}:{first.port('spot')}"
    second = start(
        *listen("spot"),
        f"--peer={endpoint}",
        f"--spot-curve-secret-file={keys.directory / 'stranger'}",
        f"--spot-peer-curve-keys={endpoint}={keys.public(keys.directory / 'server').decode()}",
    )
    first.wait_line("refused: 1 on spot: unknown-key")
    assert "is connected" not in second.output
    second.stop()
    first.stop()
