"""Brokers that share topics over TLS: names, authorities and certificates are verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.broker import HOST, Broker, Start, listen, run
from tests.integration.certificates import NAME, Authority
from tests.integration.clients import Nsd, message
from tests.integration.cluster import QUICK, free_port
from tests.waiting import until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def serve(start: Start, authority: Authority, port: int, *options: str) -> Broker:
    """Return a broker for ``localhost`` whose spot listener requires certificates."""
    path = Path(authority.file).with_name(f"{port}.toml")
    certificate = authority.issue(f"broker-{port}", NAME)
    path.write_text(
        f'[[listen]]\nprotocol = "spot"\nendpoint = "tcp:{port}:interface={HOST}"\n'
        f'tls-cert = "{certificate}"\ntls-ca = "{authority.file}"\ntls-client = "required"\n'
        f'[[listen]]\nprotocol = "nsd"\nendpoint = "tcp:0:interface={HOST}"\n'
        "[spot]\n"
        f'peer-ca = "{authority.file}"\npeer-cert = "{certificate}"\n'
    )
    return start(f"--config={path}", *QUICK, *options)


def test_topics_are_shared(start: Start, authority: Authority) -> None:
    ports = free_port(), free_port()
    one = serve(start, authority, ports[0], f"--peer=tls://{NAME}:{ports[1]}")
    two = serve(start, authority, ports[1], f"--peer=tls://{NAME}:{ports[0]}")
    for broker in (one, two):
        broker.wait_line(r"tls://localhost:\d+ is connected$")
    with Nsd.to(one) as near, Nsd.to(two) as far:
        near.do("Open", "orders")
        two.wait_line("hosts more topics: 1")
        far.do("Subscribe", "ada", channel="orders")
        near.do("Publish", "orders", message=message("hello"))
        until(lambda: [each["body"] for each in far.get("ada")] == ["hello"], "the message")


def test_a_peer_without_proof_is_not_connected(start: Start, authority: Authority) -> None:
    port = free_port()
    serve(start, authority, port)
    other = Authority(Path(authority.file).parent, "other")
    own = authority.issue("own", NAME)
    for host, ca, certificate, reason in (
        (NAME, other.file, own, "TLS: certificate verify failed: self-signed certificate in"),
        (HOST, authority.file, own, "the certificate is for another name"),
        (NAME, authority.file, "", "TLS: .*certificate required"),
    ):
        given = [f"--peer-cert={certificate}"] if certificate else []
        peer = f"tls://{host}:{port}"
        broker = start(*listen("spot"), *QUICK, f"--peer={peer}", f"--peer-ca={ca}", *given)
        broker.wait_line(f"{peer} is not connected: {reason}")
        assert "is connected" not in broker.output
        broker.stop()


def test_files_of_peers_that_cannot_be_used(tmp_path: Path) -> None:
    for option, error in (
        ("--peer-ca=/none", "peer-ca: /none: No such file or directory; name a file that"),
        ("--peer-key=/none", "peer-key: needs peer-cert"),
    ):
        found = run([*listen("spot"), "--peer=tls://a:1", option], tmp_path)
        assert found.returncode == 1
        assert found.stderr.strip().startswith(f"pubsub: {error}")
        assert found.stderr.count("\n") == 1
