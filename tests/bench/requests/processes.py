"""The site of the benchmark: a broker process with real sockets."""

from __future__ import annotations

import json
import re
import select
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.bench import BenchError
from tests.bench.broker import HOST, Broker
from tests.bench.requests.site import WIRES, Held
from tests.unit.tokens import KEY

# It installs a reactor when it is imported.
_LAUNCHER = Path(__file__).with_name("held_reactor.py")
_READ = 1024 * 1024
# The broker is idle if it had fewer ticks than this, its answers to this process included.
_QUIET_SECONDS, _QUIET_TICKS = 0.03, 4
_SETTLE_SECONDS = 120.0
_OPTIONS = (
    "--cafe-channels=0-254",
    "--nsd-max-subscriptions=20000",
    "--max-topics=1000000",
    "--max-memory=4G",
    "--secret-file=secret",
    "--store=log:history",
)


class SocketPeer:
    """A connection; everything that arrives is read by ``ProcessSite.settle`` and ``send``."""

    def __init__(self, site: ProcessSite, address: tuple[str, int]) -> None:
        self._site = site
        self.sock = socket.create_connection(address)
        self.sock.setblocking(False)
        self._writable = select.poll()
        self._writable.register(self.sock, select.POLLOUT)
        self.received = bytearray()

    def send(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            if self._writable.poll(5):
                left = left[self.sock.send(left[:65536]) :]
            self._site.drain()

    def wait(self) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        while not self.received:
            if time.monotonic() > deadline:
                raise BenchError("the broker does not answer")
            if not self._site.drain():
                time.sleep(0.0005)

    def take(self) -> bytes:
        data = bytes(self.received)
        self.received.clear()
        return data

    def lose(self) -> None:
        self._site.forget(self)
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


class ProcessSite:
    """A broker on ``ports``, whose reactor is measured through the socket at ``control``."""

    def __init__(self, ports: dict[str, int], control: Path) -> None:
        self._ports = ports
        self._control = _connect(control)
        self._lines = self._control.makefile("r")
        self._peers: dict[int, SocketPeer] = {}
        self._poll = select.epoll()

    def connect(self, wire: str) -> SocketPeer:
        peer = SocketPeer(self, (HOST, self._ports[wire]))
        self._peers[peer.sock.fileno()] = peer
        self._poll.register(peer.sock.fileno(), select.EPOLLIN)
        return peer

    def forget(self, peer: SocketPeer) -> None:
        """Read no more from ``peer``."""
        if self._peers.pop(peer.sock.fileno(), None) is not None:
            self._poll.unregister(peer.sock.fileno())

    def drain(self) -> bool:
        """Read the available input; False if there is none."""
        found = self._poll.poll(0)
        for fd, _ in found:
            peer = self._peers[fd]
            data = peer.sock.recv(_READ)
            peer.received += data
            if not data:
                self.forget(peer)
        return bool(found)

    def settle(self) -> None:
        deadline = time.monotonic() + _SETTLE_SECONDS
        before = self._ask("ticks")["ticks"]
        while time.monotonic() < deadline:
            quiet, ends = True, time.monotonic() + _QUIET_SECONDS
            while time.monotonic() < ends:
                if self.drain():
                    quiet = False
                else:
                    time.sleep(0.001)
            now = self._ask("ticks")["ticks"]
            if quiet and now - before < _QUIET_TICKS:
                return
            before = now
        raise BenchError(f"the broker was busy for {_SETTLE_SECONDS:.0f} s")

    def longest(self, action: Callable[[], object]) -> Held:
        self._ask("reset")
        action()
        self.settle()
        found = self._ask("longest")
        return Held(found["held"], found["processor"], found["collector"])

    def _ask(self, line: str) -> dict[str, float]:
        self._control.sendall(line.encode() + b"\n")
        answer: dict[str, float] = json.loads(self._lines.readline() or "{}")
        if not answer:
            raise BenchError("the broker has exited")
        return answer


@contextmanager
def measured_broker(options: list[str], core: int) -> Iterator[tuple[ProcessSite, Broker]]:
    """Start a broker with all protocols and the HTTP API on ``core``."""
    listen = [f"--listen={w}=tcp:0:interface={HOST}" for w in WIRES if w != "http"]
    admin = f"--admin-port=tcp:0:interface={HOST}"
    with tempfile.TemporaryDirectory(prefix="bench-requests-") as directory:
        control = Path(directory, "control")
        command = [sys.executable, str(_LAUNCHER), str(control)]
        twistd = ["-n", "--pidfile=", "pubsub", *listen, admin, *_OPTIONS, *options]
        ready = re.compile(_listening("http"))
        with Broker([*command, *twistd], ready, core, {"secret": KEY}) as broker:
            log = broker.output()
            ports = {
                wire: int(match[1])
                for wire in WIRES
                if (match := re.search(_listening(wire), log)) is not None
            }
            yield ProcessSite(ports, control), broker


def _connect(path: Path) -> socket.socket:
    """Return a connection to the socket at ``path``, which is there soon."""
    control = socket.socket(socket.AF_UNIX)
    deadline = time.monotonic() + _SETTLE_SECONDS
    while control.connect_ex(str(path)):
        if time.monotonic() > deadline:
            raise BenchError("the broker's reactor does not run")
        time.sleep(0.01)
    return control


def _listening(wire: str) -> str:
    return rf"{wire} on tcp {re.escape(HOST)}:(\d+)"
