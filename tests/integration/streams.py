"""Streams to a broker: TCP, TLS, a UNIX socket, and TCP behind a proxy."""

from __future__ import annotations

import contextlib
import datetime
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from tests.integration.broker import HOST, TIMEOUT, Broker, Start
from tests.integration.certificates import Stream, TlsSocket

PROXY_HEADER = b"PROXY TCP4 192.0.2.9 192.0.2.1 4711 7070\r\n"
KINDS = ("tcp", "tls", "unix", "proxy", "unix+tls", "proxy+tls")


class Served(NamedTuple):
    """A listener of one kind, and how to connect to it.

    ``raw`` returns a socket whose TLS handshake or header of a proxy has not been sent.
    """

    kind: str
    connect: Callable[[], Stream]
    raw: Callable[[], socket.socket]


def open_sockets(broker: Broker) -> int:
    """Return the number of sockets that the broker has open, of any kind."""
    found = 0
    for entry in Path(f"/proc/{broker.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += str(entry.readlink()).startswith("socket:")
    return found


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """Write a key and a certificate for ``broker.example``; return their paths."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "broker.example")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, SHA256())
    )
    paths = directory / "key.pem", directory / "certificate.pem"
    paths[0].write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    paths[1].write_bytes(certificate.public_bytes(Encoding.PEM))
    return paths


def serve(
    start: Start, protocol: str, directory: Path, kinds: Sequence[str], *options: str
) -> tuple[Broker, list[Served]]:
    """Start a broker with a listener of ``protocol`` for each kind of stream."""
    path = directory / "streams.toml"
    path.write_text("".join(_table(protocol, kind, directory) for kind in kinds))
    broker = start(f"--config={path}", *options)
    ports = iter(broker.ports(protocol))
    served = []
    for kind in kinds:
        address = _socket(kind, directory) if "unix" in kind else (HOST, next(ports))
        raw = partial(_connect_raw, address)
        served.append(Served(kind, partial(_connect, kind, raw), raw))
    return broker, served


def _socket(kind: str, directory: Path) -> str:
    return str(directory / f"{kind}.socket")


def _table(protocol: str, kind: str, directory: Path) -> str:
    """Return the table of a listener for the configuration file."""
    below = kind.removesuffix("+tls")
    endpoint = f"tcp:0:interface={HOST}"
    if below == "unix":
        endpoint = f"unix:{_socket(kind, directory)}"
    elif below == "proxy":
        endpoint = f"haproxy:{endpoint}"
    lines = ["[[listen]]", f'protocol = "{protocol}"', f'endpoint = "{endpoint}"']
    # The header of the proxy names clients of other machines.
    lines += ["allow-anonymous = true"] if below == "proxy" else []
    if kind.endswith("tls"):
        key, certificate = make_certificate(directory)
        lines += [f'tls-cert = "{certificate}"', f'tls-key = "{key}"']
    return "\n".join(lines) + "\n"


def _connect_raw(address: str | tuple[str, int]) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    sock.settimeout(TIMEOUT)
    if not isinstance(address, str):
        # Before connecting, so that the advertised window stays small.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.connect(address)
    return sock


def _connect(kind: str, raw: Callable[[], socket.socket]) -> Stream:
    sock = raw()
    if kind.startswith("proxy"):
        sock.sendall(PROXY_HEADER)
    if kind.endswith("tls"):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return TlsSocket(sock, context)
    return sock


def wait_hang_up(sock: Stream) -> None:
    """Wait until the broker has closed the connection completely, without reading."""
    poll = select.poll()
    poll.register(sock, select.POLLHUP | select.POLLERR)
    assert poll.poll(TIMEOUT * 1000), "the broker does not close the connection"


def press(send: Callable[[bytes], object], data: bytes) -> None:
    """Send ``data`` again and again until its receiver reads no more.

    The time limit of a socket is that of a whole call: ``data`` is so little that a broker which is
    only busy takes it in time.
    """
    with contextlib.suppress(TimeoutError):
        for _ in range(128 * 1024**2 // len(data)):
            send(data)
        raise AssertionError("everything was read")


def read_all(sock: Stream) -> bytes:
    """Return everything up to the end of the stream."""
    data = b""
    while piece := sock.recv(65_536):
        data += piece
    return data
