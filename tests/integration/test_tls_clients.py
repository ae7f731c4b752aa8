"""The client library and the command with certificates of their own, and with tokens from files."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import jwt
import pytest

from pubsub.client import ConnectFailed, Level, OutcomeUnknown
from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.certificates import NAME, Authority
from tests.integration.client_shells import SHELLS, Connect, collect, run
from tests.integration.cluster import free_port
from tests.integration.command import PUBSUB, error, output, settings

shells = pytest.mark.parametrize("shell", SHELLS)
WIRES = ("cafe", "rheos", "nsd", "spot", "fast")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


class Secret:
    """A master secret in a file, and the tokens that are signed with it."""

    def __init__(self, directory: Path, name: str = "secret") -> None:
        self._key = secrets.token_hex(32)
        self.path = directory / name
        self.path.write_text(self._key)
        self.path.chmod(0o600)

    def write_token(self, path: Path) -> str:
        """Write a token for everything into the file ``path``; return the path."""
        claims = {"sub": "alice", "permissions": ["*"], "queue_key": "k1"}
        path.write_text(jwt.encode(claims, self._key, "HS256") + "\n")
        return str(path)


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    return Secret(tmp_path)


@pytest.fixture
def strict(start: Start, authority: Authority, secret: Secret) -> Broker:
    """Return a broker of all protocols that requires certificates."""
    return start(
        *listen(*WIRES), f"--admin-port=tcp:0:interface={HOST}", f"--secret-file={secret.path}",
        f"--tls-cert={authority.issue('broker', NAME)}", f"--tls-ca={authority.file}",
        "--tls-client=required",
    )  # fmt: skip


def url(broker: Broker, wire: str) -> str:
    return f"{wire}+tls://{NAME}:{broker.port(wire)}"


@shells
def test_every_wire(
    strict: Broker, shell: str, authority: Authority, secret: Secret, tmp_path: Path
) -> None:
    token = secret.write_token(tmp_path / "token")
    own = authority.issue("alice", "alice")

    async def scenario(connect: Connect) -> None:
        for wire in (*WIRES, "http"):
            options: dict[str, Any] = {"client_id": "alice", "tls_ca": authority.file}
            if wire in ("fast", "http"):
                options["token_file"] = token
            topic = "cafe/9" if wire in ("cafe", "http") else f"{wire}-topic"
            async with (
                connect(url(strict, wire), tls_cert=own, **options) as client,
                client.subscribe(topic) as messages,
            ):
                assert await client.publish(topic, wire.encode(), confirm=True) is not None
                (found,) = await collect(messages, 1)
                assert found.payload == wire.encode()
            async with connect(url(strict, wire), **options) as client:
                # In TLS 1.3 a client learns it after the handshake, and may have published.
                with pytest.raises((ConnectFailed, OutcomeUnknown)):
                    await client.publish(topic, b"", confirm=True)

    run(shell, scenario)


@shells
def test_a_certificate_is_demanded(strict: Broker, shell: str, authority: Authority) -> None:
    async def scenario(connect: Connect) -> None:
        async with connect(url(strict, "cafe"), tls_ca=authority.file) as client:
            with pytest.raises(ConnectFailed, match="TLS failed: the broker demands a certificate"):
                await client.publish("cafe/7", b"", confirm=True)

    run(shell, scenario)


@shells
def test_what_is_wrong_with_a_certificate(
    start: Start, shell: str, authority: Authority, tmp_path: Path
) -> None:
    other = Authority(tmp_path, "other")
    certificates = (
        (authority.issue("expired", NAME, expired=True), "certificate has expired"),
        (other.issue("untrusted", NAME), "unable to get local issuer certificate"),
    )
    brokers = [
        (start(*listen("cafe"), f"--tls-cert={certificate}"), problem)
        for certificate, problem in certificates
    ]

    async def scenario(connect: Connect) -> None:
        for broker, problem in brokers:
            async with connect(url(broker, "cafe"), tls_ca=authority.file) as client:
                with pytest.raises(ConnectFailed, match=f"TLS.*: {problem}"):
                    await client.publish("cafe/7", b"", confirm=True)

    run(shell, scenario)


@pytest.mark.parametrize("wire", ["cafe", "fast", "http"])
def test_the_command(
    strict: Broker, authority: Authority, secret: Secret, tmp_path: Path, wire: str
) -> None:
    where = url(strict, wire)
    env = settings(where, tmp_path, PUBSUB_API=url(strict, "http"))
    certificates = "--tls-ca", authority.file, "--tls-cert", authority.issue("alice", "alice")
    token = "--token-file", secret.write_token(tmp_path / "token")
    options = (*certificates, *token)
    topic = "cafe/7" if wire == "cafe" else "orders"
    with subprocess.Popen(
        [PUBSUB, "sub", topic, "--count", "2", *options],
        env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as subscriber:  # fmt: skip
        while subscriber.poll() is None:
            # Until the subscription is there.
            output("pub", topic, "hello", "--confirm", *options, env=env)
        assert subscriber.stdout is not None
        assert subscriber.stdout.read() == b"hello\nhello\n"
        assert subscriber.wait(TIMEOUT) == 0
    found = output("tail", "-n", "1", "--format", "json", topic, *options, env=env)
    assert json.loads(found)["topic"] == topic
    text = error("pub", topic, "x", "--confirm", "--tls-ca", authority.file, *token, env=env)
    # In TLS 1.3 a client learns it after the handshake, and may have published.
    assert "cannot connect to" in text or "may or may not have been published" in text


@shells
def test_the_token_file_is_read_for_each_connection(
    start: Start, shell: str, secret: Secret, tmp_path: Path
) -> None:
    port, token = free_port(), tmp_path / "token"
    options = (f"--listen=fast=tcp:{port}:interface={HOST}",)
    broker = start(*options, f"--secret-file={secret.path}")
    secret.write_token(token)

    async def scenario(connect: Connect) -> None:
        async with connect(f"fast://{HOST}:{port}", token_file=token) as client:
            assert await client.publish("orders", b"1", confirm=True) is Level.HANDLED
            broker.signal(signal.SIGTERM)
            broker.wait()
            newer = Secret(tmp_path, "newer")
            newer.write_token(token)
            start(*options, f"--secret-file={newer.path}")
            # The client may not have noticed the end of the first broker.
            with suppress(OutcomeUnknown):
                await client.publish("orders", b"2", confirm=True)
            assert await client.publish("orders", b"3", confirm=True) is Level.HANDLED

    run(shell, scenario)
