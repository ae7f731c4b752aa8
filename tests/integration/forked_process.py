"""Brokers that are forked from a process with all imports, as a start costs ten times as much.

Each process of pytest has one such process, from its first broker on.
"""

from __future__ import annotations

import atexit
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

import pubsub.protocols

_SCRIPT = Path(__file__).with_name("fork_server.py")
# These import most of what a broker does, and no reactor; a fork imports the rest.
_MODULES = [
    "twisted.scripts._twistd_unix", "twisted.internet.epollreactor", "unittest",
    "pubsub.server.tap", "pubsub.http_api.server",
    *(
        f"pubsub.protocols.{package.name}.server"
        for package in pkgutil.iter_modules(pubsub.protocols.__path__)
        if package.ispkg
    ),
]  # fmt: skip
# pytest changes it for each test, and a broker does not read it.
_UNREAD = "PYTEST_CURRENT_TEST"
_LARGEST = 64


class ForkedProcess:
    """A broker that was forked: the part of ``subprocess.Popen`` that tests of brokers use."""

    def __init__(self, pid: int, news: socket.socket) -> None:
        self.pid = pid
        self.stdout: IO[bytes] | None = None
        self.returncode: int | None = None
        self._news = news

    def poll(self) -> int | None:
        """Return the exit code, or None before its end."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float) -> int:
        """Wait for its end and return the exit code. Raises TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._news], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("twistd", timeout)
            with self._news:
                self.returncode = int(self._news.recv(_LARGEST))
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill it."""
        self.send_signal(signal.SIGKILL)


class _ForkServer:
    def __init__(self, twistd: str, environment: Mapping[str, str]) -> None:
        self.environment = environment
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        file = theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), str(file), twistd, *_MODULES],
                env=environment,
                stdin=subprocess.DEVNULL,
                pass_fds=[file],
            )
        atexit.register(self._close)

    def _close(self) -> None:
        self._requests.close()
        self._process.wait()

    def fork(
        self, command: Sequence[str], directory: Path, output: int, errors: int
    ) -> ForkedProcess:
        news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        request = json.dumps([str(directory), *command]).encode()
        with theirs:
            socket.send_fds(self._requests, [request], [output, errors, theirs.fileno()])
        return ForkedProcess(int(news.recv(_LARGEST)), news)


_servers: list[_ForkServer] = []


def _server(twistd: str, environment: Mapping[str, str]) -> _ForkServer | None:
    environment = {name: value for name, value in environment.items() if name != _UNREAD}
    if not hasattr(os, "pidfd_open"):
        return None
    if not _servers:
        _servers.append(_ForkServer(twistd, environment))
    return _servers[0] if _servers[0].environment == environment else None


def fork(
    command: Sequence[str], directory: Path, environment: Mapping[str, str]
) -> ForkedProcess | None:
    """Return a process that runs ``twistd`` with these arguments; ``stdout`` has its errors too.

    None if it cannot be forked: its environment differs from that of the first one, which the
    interpreter or an import may have read, or the system is not Linux.
    """
    server = _server(command[0], environment)
    if server is None:
        return None
    read, write = os.pipe()
    try:
        process = server.fork(command, directory, write, write)
    finally:
        os.close(write)
    process.stdout = os.fdopen(read, "rb")
    return process


def run_fork(
    command: Sequence[str], directory: Path, environment: Mapping[str, str], timeout: float
) -> subprocess.CompletedProcess[str] | None:
    """Run ``twistd`` to its end, as ``subprocess.run`` does; return None as ``fork`` does."""
    server = _server(command[0], environment)
    if server is None:
        return None
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        process = server.fork(command, directory, output.fileno(), errors.fileno())
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        output.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(command, code, output.read(), errors.read())
