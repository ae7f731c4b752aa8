"""A nats-server for tests: a process on a free loopback port, with JetStream."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.integration.broker import HOST, TIMEOUT
from tests.integration.cluster import free_port

SERVER = str(Path(sys.executable).with_name("nats-server"))


class NatsServer:
    """A server that can be killed, paused and started again at the same port."""

    def __init__(
        self, directory: Path, *options: str, jetstream: bool = True, user: str = ""
    ) -> None:
        self._directory = directory
        self._options = [*options]
        self.jetstream = jetstream
        """Whether the next start is with JetStream."""
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None
        self._monitor = 0
        # An ephemeral port might be that of another connection when the server is started again.
        self.port = free_port()
        self.start()

    @property
    def url(self) -> str:
        """The URL for brokers."""
        return f"nats://{self._user}{HOST}:{self.port}"

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        ports = self._directory / "ports"
        ports.mkdir(exist_ok=True)
        for old in ports.iterdir():
            old.unlink()
        store = str(self._directory / "jetstream")
        with open(self._directory / "nats.log", "ab") as output:
            self._process = subprocess.Popen(
                [SERVER, "-a", HOST, "-p", str(self.port), "--ports_file_dir", str(ports),
                 *self._options, *(self.jetstream * ["-js", "-sd", store])],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        deadline = time.monotonic() + TIMEOUT
        while not self._is_up(ports):
            assert self._process.poll() is None, (self._directory / "nats.log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _is_up(self, ports: Path) -> bool:
        for path in ports.glob("*.ports"):
            with contextlib.suppress(ValueError, KeyError, OSError):
                found: dict[str, Any] = json.loads(path.read_text())
                if "monitoring" in found:
                    self._monitor = int(found["monitoring"][0].rpartition(":")[2])
                with socket.create_connection((HOST, self.port)) as sock:
                    return sock.recv(4) == b"INFO"
        return False

    def is_healthy(self) -> bool:
        """Return whether it is ready, with JetStream; needs the option -m."""
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://{HOST}:{self._monitor}/healthz").close()
            return True
        return False

    def subscriptions(self, prefix: str) -> list[int]:
        """Return how many subjects with ``prefix`` each client has; needs the option -m."""
        url = f"http://{HOST}:{self._monitor}/connz?subs=1"
        with urllib.request.urlopen(url) as answer:
            clients = json.loads(answer.read())["connections"]
        return [
            sum(subject.startswith(prefix) for subject in client.get("subscriptions_list", ()))
            for client in clients
        ]

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        self.signal(signal.SIGKILL)
        self._process.wait(TIMEOUT)


@contextlib.contextmanager
def nats_server(directory: Path, *options: str, **settings: Any) -> Iterator[NatsServer]:
    """Run a server until the end of the context."""
    server = NatsServer(directory, *options, **settings)
    try:
        yield server
    finally:
        server.kill()
