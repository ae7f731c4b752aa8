"""TLS listeners and the protocols that clients negotiate with ALPN (RFC 7301)."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from tests.integration.broker import HOST, PATIENCE, Broker, Start
from tests.integration.clients import frame
from tests.integration.streams import make_certificate


@pytest.fixture
def broker(start: Start, tmp_path: Path) -> Broker:
    """Return a broker that serves cafe and HTTP with TLS alone."""
    key, certificate = make_certificate(tmp_path)
    endpoint = f"ssl:0:interface={HOST}:privateKey={key}:certKey={certificate}"
    return start(f"--listen=cafe={endpoint}", f"--admin-port={endpoint}")


def connect(port: int, offered: list[str]) -> ssl.SSLSocket:
    """Return a connection of a client that offers these protocols."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if offered:
        context.set_alpn_protocols(offered)
    return context.wrap_socket(socket.create_connection((HOST, port), PATIENCE))


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), ([], None)],
)
def test_http(broker: Broker, offered: list[str], chosen: str | None) -> None:
    with connect(broker.port("admin"), offered) as stream:
        assert stream.selected_alpn_protocol() == chosen
        stream.sendall(b"GET /v1/bounds HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert stream.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("offered", "chosen"), [(["other", "cafe"], "cafe"), ([], None)])
def test_a_wire_protocol(broker: Broker, offered: list[str], chosen: str | None) -> None:
    with connect(broker.port("cafe"), offered) as stream:
        assert stream.selected_alpn_protocol() == chosen
        stream.sendall(frame(0x01, b"\x07\x05alice"))
        assert stream.recv(100)[:2] == b"\xfe\xca"


def test_a_client_of_another_protocol_is_refused(broker: Broker) -> None:
    with pytest.raises(ssl.SSLError, match="alert"):
        connect(broker.port("cafe"), ["mqtt"])
    with connect(broker.port("cafe"), []) as stream:
        assert stream.version()
