"""Passwords on every wire that has them, with real processes: as a user meets them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from pubsub.client import ConnectFailed, Message
from pubsub.client.blocking import connect
from tests.integration.broker import HOST, Broker, Start, listen

PUBSUB = str(Path(sys.executable).with_name("pubsub"))
WIRES = ("cafe", "nsd", "spot")


def passwd(path: Path, user: str, password: str) -> None:
    """Set a password with the command."""
    arguments = [PUBSUB, "passwd", str(path), user]
    subprocess.run(arguments, input=password, text=True, check=True, capture_output=True)


def serve(start: Start, users: Path) -> Broker:
    """Start a broker that requires passwords everywhere."""
    return start(
        *listen(*WIRES),
        f"--password-file={users}",
        "--cafe-client-id-password=required",
        "--nsd-identity-password=required",
        "--spot-mechanism=plain",
        "--events",
        "--log-level=debug",
    )


def url(broker: Broker, wire: str, login: str = "bob:sesame@") -> str:
    return f"{wire}://{login}{HOST}:{broker.port(wire)}"


@pytest.mark.parametrize("wire", WIRES)
def test_clients_log_in_and_wrong_passwords_are_refused(
    start: Start, tmp_path: Path, wire: str
) -> None:
    users = tmp_path / "users"
    passwd(users, "bob", "sesame")
    broker = serve(start, users)
    with (
        connect(url(broker, wire)) as client,
        client.subscribe("cafe/7") as messages,
    ):
        client.publish("cafe/7", b"hello", confirm=True)
        message = messages.next(seconds=20)
        assert isinstance(message, Message)
        assert message.payload == b"hello"
    for login in ("bob:hunter2@", "eve:hunter2@"):
        with pytest.raises(ConnectFailed) as failed, connect(url(broker, wire, login)) as client:
            client.publish("cafe/7", b"x", confirm=True)
        assert "hunter2" not in str(failed.value)
    broker.wait_line(f"refused: 1 on {wire}: wrong-password")
    broker.stop()
    assert "hunter2" not in broker.output
    assert "sesame" not in broker.output


def test_a_password_that_was_changed_counts_after_sighup(start: Start, tmp_path: Path) -> None:
    users = tmp_path / "users"
    passwd(users, "bob", "sesame")
    broker = serve(start, users)
    passwd(users, "ann", "other")
    broker.signal(signal.SIGHUP)
    broker.wait_line("reloaded")
    with connect(url(broker, "cafe")) as client, connect(url(broker, "nsd", "ann:other@")) as ann:
        client.publish("cafe/7", b"before", confirm=True)
        ann.publish("cafe/7", b"before", confirm=True)
        passwd(users, "bob", "changed")
        broker.signal(signal.SIGHUP)
        broker.wait_line("bob@.* disconnected: the password of its user was changed or removed")
        ann.publish("cafe/7", b"still", confirm=True)
    with (
        pytest.raises(ConnectFailed),
        connect(url(broker, "cafe")) as client,
    ):
        client.publish("cafe/7", b"x", confirm=True)
    with connect(url(broker, "cafe", "bob:changed@")) as client:
        client.publish("cafe/7", b"after", confirm=True)
    broker.stop()


def test_the_command_logs_in(start: Start, tmp_path: Path) -> None:
    users = tmp_path / "users"
    passwd(users, "bob", "sesame")
    broker = serve(start, users)
    password = tmp_path / "password"
    password.write_text("sesame\n")
    command = [PUBSUB, "pub", "cafe/7", "hello", "--confirm", "--url", url(broker, "cafe", "bob@")]
    arguments = [*command, f"--password-file={password}"]
    subprocess.run(arguments, check=True, capture_output=True, timeout=30)
    refused = subprocess.run(
        command, env={**os.environ, "PUBSUB_PASSWORD": "wrong"}, capture_output=True, timeout=30
    )
    assert refused.returncode == 1
    assert b"refused the client" in refused.stderr
