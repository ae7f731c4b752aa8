"""The units, and a broker under a service manager: its protocol, inherited sockets, upgrades."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.integration.broker import HOST, TWISTD, Start, listen
from tests.integration.clients import (
    DISCONNECT,
    MESSAGE,
    PING,
    PONG,
    Cafe,
    frame,
    handshake_pub,
    handshake_sub,
    publish,
)
from tests.integration.cluster import free_port
from tests.integration.fast_client import make_secret
from tests.integration.streams import PROXY_HEADER
from tests.integration.unit_files import problems_of

UNITS = Path(__file__).parents[2] / "docs/deploy/systemd"
# Makes a socket a descriptor of its child from 3 on, as the service manager does.
ACTIVATE = """
import os, sys
names, *given = sys.argv[1:sys.argv.index("--")]
command = sys.argv[sys.argv.index("--") + 1:]
copies = [os.dup(int(one)) for one in given]
high = [os.dup2(one, 100 + place) for place, one in enumerate(copies)]
for place, one in enumerate(high):
    os.dup2(one, 3 + place, inheritable=True)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(high)), LISTEN_FDNAMES=names)
os.execv(command[0], command)
"""

SKIPPED = 77
# What MemoryDenyWriteExecute= does, with a call of the kernel in place of a filter of calls.
REFUSE_EXECUTABLE_MEMORY = f"""
import ctypes, os, sys
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
if ctypes.CDLL(None).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0):
    sys.exit({SKIPPED})
os.execv(sys.argv[1], sys.argv[1:])
"""


def activated(names: str, *sockets: socket.socket) -> tuple[list[str], list[int]]:
    """Return the command before that of a broker, and the descriptors to pass."""
    numbers = [one.fileno() for one in sockets]
    return [sys.executable, "-c", ACTIVATE, names, *map(str, numbers), "--"], numbers


@pytest.fixture
def units(tmp_path: Path) -> Path:
    """Return a directory with the units, for a program that exists."""
    if shutil.which("systemd-analyze") is None:
        assert "CI" not in os.environ, "install the package systemd"
        pytest.skip("systemd-analyze is not installed")
    for unit in UNITS.glob("pubsub*.*"):
        text = unit.read_text().replace("/opt/pubsub/bin/twistd", TWISTD)
        (tmp_path / unit.name).write_text(text)
    return tmp_path


def analyze(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], cwd=directory, capture_output=True, text=True, check=False
    )


def test_the_units_are_valid(units: Path) -> None:
    names = [one.name for one in units.iterdir() if one.suffix != ".toml"]
    assert len(names) == 8
    assert problems_of(units, names) == []


def test_starts_that_fail_have_growing_pauses() -> None:
    """There is no limit of them, at which clients would be refused at the sockets."""
    lines = (UNITS / "pubsub.service").read_text().splitlines()
    assert {one for one in lines if one.startswith(("Restart", "StartLimit"))} == {
        "Restart=on-failure", "RestartSec=1", "RestartSteps=5", "RestartMaxDelaySec=10",
        "StartLimitIntervalSec=0",
    }  # fmt: skip


def test_the_service_is_hardened(units: Path) -> None:
    service = str(units / "pubsub.service")
    done = analyze(units, "security", "--offline=true", "--threshold=20", "--no-pager", service)
    assert done.returncode == 0, done.stdout


def test_the_service_can_do_what_tls_needs(tmp_path: Path) -> None:
    """TLS needs memory that MemoryDenyWriteExecute= refuses, and has a line of its own for that."""
    lines = (UNITS / "pubsub.service").read_text().splitlines()
    assert [one for one in lines if one.startswith("MemoryDeny")] == ["MemoryDenyWriteExecute=no"]
    pem = tmp_path / "broker.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(str(pem))
    command = [sys.executable, "-c", REFUSE_EXECUTABLE_MEMORY, sys.executable, TWISTD, "-n"]
    command += ["--pidfile=", "pubsub", "--store=memory", *listen("cafe"), f"--tls-cert={pem}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == SKIPPED:
        pytest.skip("this kernel has no PR_SET_MDWE")
    (line,) = done.stderr.splitlines()
    assert line.startswith("pubsub: cafe: TLS: the system refuses memory that is writable and exec")


class Manager:
    """The socket on which a service manager is notified."""

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.path)
        self._socket.settimeout(60)

    def wait(self, name: str) -> dict[str, str]:
        """Return the next datagram that has this variable."""
        while True:
            text = self._socket.recv(4096).decode()
            found = dict(line.split("=", 1) for line in text.splitlines())
            if name in found:
                return found

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    made = Manager(tmp_path)
    yield made
    made.close()


def test_the_life_of_a_service(start: Start, tmp_path: Path, manager: Manager) -> None:
    path = tmp_path / "pubsub.toml"
    path.write_text("max-topics = 500\n")
    environment = {"NOTIFY_SOCKET": manager.path, "WATCHDOG_USEC": "200000"}
    broker = start(*listen("cafe"), "--config", str(path), env=environment)
    assert manager.wait("READY")["STATUS"] == "serving 1 listener"
    assert manager.wait("WATCHDOG") == manager.wait("WATCHDOG") == {"WATCHDOG": "1"}
    for content in ("max-topics = 600\n", "max-topics = wrong\n"):
        path.write_text(content)
        broker.signal(signal.SIGHUP)
        reloading = manager.wait("RELOADING")
        assert int(reloading["MONOTONIC_USEC"]) > 0
        manager.wait("READY")
    broker.signal()
    assert manager.wait("STOPPING")["STATUS"] == "draining the clients"
    broker.wait()


def test_a_broker_that_cannot_start_is_not_ready(tmp_path: Path, manager: Manager) -> None:
    with socket.create_server((HOST, 0)) as taken:
        done = subprocess.run(
            [TWISTD, "-n", "--pidfile=", "pubsub", "--store=memory",
             f"--listen=cafe=tcp:{taken.getsockname()[1]}:interface={HOST}"],
            env={**os.environ, "NOTIFY_SOCKET": manager.path},
            capture_output=True, check=False,
        )  # fmt: skip
    assert done.returncode == 1
    manager._socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        manager._socket.recv(4096)


def test_the_sockets_of_the_units(start: Start, tmp_path: Path) -> None:
    """The configuration beside the units, with sockets of these names and a credential."""
    make_secret(tmp_path / "pubsub.key")
    names = ["cafe", "nsd", "rheos", "spot", "fast", "http"]
    streams = [socket.create_server((HOST, 0)) for _ in names]
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(streams[0].getsockname())
    before, descriptors = activated(":".join(["cafe", *names]), udp, *streams)
    broker = start(
        "--config", str(UNITS / "pubsub.toml"),
        env={"CREDENTIALS_DIRECTORY": str(tmp_path)}, before=before, pass_fds=descriptors,
    )  # fmt: skip
    for name, one in zip(names, streams, strict=True):
        assert broker.port(name) == one.getsockname()[1]
    port = udp.getsockname()[1]
    assert broker.port("cafe", "udp") == port
    for one in (*streams, udp):
        one.close()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.settimeout(30)
        client.connect((HOST, port))
        client.send(handshake_pub())
        client.recv(100)
        client.send(frame(PING))
        assert client.recv(100) == frame(PONG)


def test_a_socket_behind_a_proxy(start: Start) -> None:
    with socket.create_server((HOST, 0)) as listening:
        before, descriptors = activated("nsd", listening)
        options = ("--allow-anonymous", "--listen=nsd=haproxy:systemd:name=nsd")
        start(*options, before=before, pass_fds=descriptors)
        address = listening.getsockname()
    with socket.create_connection(address, 30) as client:
        client.sendall(PROXY_HEADER + b'{"_class":"OpenRequest","identity":"ada"}\n')
        assert client.recv(100) == b'{"_class":"SuccessResponse"}\n'


def test_systemd_socket_activate(tmp_path: Path) -> None:
    if shutil.which("systemd-socket-activate") is None:
        assert "CI" not in os.environ, "install the package systemd"
        pytest.skip("systemd-socket-activate is not installed")
    port = free_port()
    command = [
        "systemd-socket-activate", f"--listen={HOST}:{port}", "--fdname=cafe",
        TWISTD, "-n", "--pidfile=", "pubsub", "--store=memory", "--listen=cafe=systemd:name=cafe",
    ]  # fmt: skip
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        with _connected(port) as client:
            client.shake(handshake_pub())
            client.sync()
    finally:
        process.terminate()
        process.wait(60)
    assert "Traceback" not in (tmp_path / "log").read_text()


def _connected(port: int) -> Cafe:
    """Return a client, once the port is open; the first connection starts the broker."""
    pause = threading.Event()
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                break
        pause.wait(0.02)
    return Cafe(port)


def test_an_upgrade_refuses_no_client_and_loses_no_message(start: Start, tmp_path: Path) -> None:
    """A parent keeps the socket while one broker stops and the next one starts."""
    with socket.create_server((HOST, 0), backlog=100) as server:
        port = server.getsockname()[1]
        before, descriptors = activated("cafe", server)
        options = ("--listen=cafe=systemd:name=cafe", f"--store=log:{tmp_path / 'history'}",
                   "--durability=*=sync")  # fmt: skip
        old = start(*options, before=before, pass_fds=descriptors)
        subscriber, publisher = Cafe(port), Cafe(port)
        subscriber.shake(handshake_sub())
        publisher.shake(handshake_pub())
        publisher.send(*[publish(1, b"%d" % number) for number in range(1000)])
        publisher.sync()
        old.signal()
        taken = [one.payload[9:] for one in subscriber.receive_rest() if one.opcode == MESSAGE]
        assert taken == [b"%d" % number for number in range(1000)]
        assert publisher.receive_rest()[-1].opcode == DISCONNECT
        for client in (subscriber, publisher):
            client.close()
        # No broker runs: these connect all the same, and wait.
        waiting = [Cafe(port) for _ in range(50)]
        for client in waiting:
            client.send(handshake_pub())
        old.wait()
        new = start(*options, before=before, pass_fds=descriptors)
        for client in waiting:
            client.receive()
            client.send(publish(1, b"after"))
            client.sync()
            client.close()
        new.wait_line(r"history: .*offsets 0 to 1000,")
