"""Ctrl-C, and the option --timeout, while the HTTP API does not answer a command."""

from __future__ import annotations

import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.integration.broker import HOST
from tests.integration.command import PUBSUB, settings

# The command gives a reply up after 30 s, and reads the history once more then.
SECONDS = 20.0
_BOUNDS = b'{"first":0,"next":5000,"epoch":"1-0"}'
_MESSAGE = b'{"offset":0,"timestamp":1,"topic":"x","key":"","value":"a","headers":[]}\n'


def _reply(length: int, body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % length + body


@contextmanager
def silent_api(silent_for: str) -> Iterator[tuple[str, Event]]:
    """Yield the URL of an API that does not answer requests of a path to their end, and an event
    that is set once there is one.
    """
    asked = Event()
    connections: list[socket.socket] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            connections.append(connection)
            path = connection.recv(65536).split()[1].decode()
            if path.startswith(silent_for):
                if silent_for == "/v1/history":
                    connection.sendall(_reply(100_000, _MESSAGE))
                asked.set()
            else:
                connection.sendall(_reply(len(_BOUNDS), _BOUNDS))

    with socket.create_server((HOST, 0)) as listener:
        thread = Thread(target=serve)
        thread.start()
        try:
            yield f"http://{HOST}:{listener.getsockname()[1]}", asked
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in connections:
                connection.close()


COMMANDS = {
    "sub": ("/v1/bounds", ["sub", "x", "--from", "earliest"]),
    "replay": ("/v1/history", ["replay", "x", "--into", "y"]),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_ctrl_c_ends_the_command(name: str, tmp_path: Path) -> None:
    path, arguments = COMMANDS[name]
    with silent_api(path) as (url, asked):
        command = subprocess.Popen([PUBSUB, *arguments], env=settings(url, tmp_path))
        try:
            assert asked.wait(SECONDS)
            command.send_signal(signal.SIGINT)
            assert command.wait(SECONDS) == 130
        finally:
            command.kill()
            command.wait()


@contextmanager
def default_action(number: int) -> Iterator[None]:
    """Let processes that are started meanwhile have the default action of a signal."""
    before = signal.signal(number, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_replay_that_is_ended_leaves_no_file(number: int, tmp_path: Path) -> None:
    file = tmp_path / "messages"
    with silent_api("/v1/history") as (url, asked):
        arguments = ["replay", "x", "--output", str(file)]
        with default_action(number):
            # A test run of nohup ignores SIGHUP, and so would the command.
            command = subprocess.Popen([PUBSUB, *arguments], env=settings(url, tmp_path))
        try:
            assert asked.wait(SECONDS)
            assert file.exists()
            command.send_signal(number)
            assert command.wait(SECONDS) == 128 + number
        finally:
            command.kill()
            command.wait()
    assert not file.exists()


def test_the_search_for_the_start_is_part_of_the_time(tmp_path: Path) -> None:
    with silent_api("/v1/bounds") as (url, _):
        arguments = ["sub", "x", "--from", "earliest", "--timeout", "0.5"]
        done = subprocess.run(
            [PUBSUB, *arguments], env=settings(url, tmp_path), timeout=SECONDS, check=False,
            stderr=subprocess.PIPE,
        )  # fmt: skip
    assert done.returncode == 124
    # Otherwise it would look like a topic without messages.
    line = f"pubsub: {url}: the broker has not accepted the subscription in 0.5 s; check the URL"
    assert done.stderr.decode().startswith(line)
    assert done.stderr.count(b"\n") == 1
