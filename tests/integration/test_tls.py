"""TLS listeners: certificates on both sides, their renewal, ALPN (RFC 7301), foreign clients."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.integration.broker import HOST, TIMEOUT, Broker, Start, listen
from tests.integration.certificates import NAME, Authority, Stream, TlsSocket, connect
from tests.integration.clients import HANDSHAKE_ACK, PING, PONG, frame, handshake_pub, split
from tests.integration.streams import press, read_all

HTTP = f"--admin-port=tcp:0:interface={HOST}"
GET = b"GET /v1/bounds HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def other(tmp_path: Path) -> Authority:
    """Return an authority that is trusted only where it is configured."""
    return Authority(tmp_path, "other")


def serve(start: Start, authority: Authority, *options: str) -> Broker:
    """Return a broker that serves cafe and HTTP with TLS alone, as ``localhost``."""
    certificate = authority.issue("broker", NAME)
    return start(*listen("cafe"), HTTP, f"--tls-cert={certificate}", *options)


def offering(authority: Authority, offered: list[str]) -> ssl.SSLContext:
    """Return a client that offers these protocols."""
    context = authority.client()
    if offered:
        context.set_alpn_protocols(offered)
    return context


def speak(stream: Stream) -> None:
    """Speak cafe, as proof of a connection in both directions."""
    stream.sendall(frame(0x01, b"\x07\x05alice"))
    received = b""
    while len(received) < 16:
        received += stream.recv(16 - len(received))
    assert split(received)[0].opcode == HANDSHAKE_ACK


def refused(broker: Broker, reason: str, protocol: str = "cafe") -> None:
    """Wait until the broker has logged the reason for the only failed handshake."""
    broker.wait_line(rf"refused: 1 on {protocol}: {reason}, last by '127\.0\.0\.1:\d+'$")


# ALPN


@pytest.mark.parametrize(
    ("offered", "chosen"),
    [(["h2", "http/1.1"], "http/1.1"), (["http/1.1"], "http/1.1"), ([], None)],
)
@pytest.mark.modes
def test_http(start: Start, authority: Authority, offered: list[str], chosen: str | None) -> None:
    broker = serve(start, authority)
    with connect(broker.port("http"), offering(authority, offered)) as stream:
        assert stream.selected_alpn_protocol() == chosen
        stream.sendall(GET)
        assert stream.recv(100).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize(("offered", "chosen"), [(["other", "cafe"], "cafe"), ([], None)])
def test_a_wire_protocol(
    start: Start, authority: Authority, offered: list[str], chosen: str | None
) -> None:
    broker = serve(start, authority)
    assert f"cafe on tls {HOST}:" in broker.output
    with connect(broker.port("cafe"), offering(authority, offered)) as stream:
        assert stream.selected_alpn_protocol() == chosen
        speak(stream)


def test_a_client_of_another_protocol_is_refused(start: Start, authority: Authority) -> None:
    broker = serve(start, authority)
    with pytest.raises(ssl.SSLError, match="alert"):
        connect(broker.port("cafe"), offering(authority, ["mqtt"]))
    refused(broker, "tls-alpn")


def test_an_ssl_endpoint_goes_on(start: Start, authority: Authority) -> None:
    pem = authority.issue("broker", NAME)
    endpoint = f"ssl:0:interface={HOST}:privateKey={pem}:certKey={pem}"
    broker = start(f"--listen=cafe={endpoint}", f"--admin-port={endpoint}")
    assert f"cafe on tls {HOST}:" in broker.output
    with connect(broker.port("cafe"), offering(authority, ["cafe"])) as stream:
        assert stream.selected_alpn_protocol() == "cafe"
        speak(stream)
    with socket.create_connection((HOST, broker.port("cafe")), TIMEOUT) as plain:
        plain.sendall(bytes(100))
        plain.recv(100)
    refused(broker, "tls-plaintext")
    with socket.create_connection((HOST, broker.port("http")), TIMEOUT) as plain:
        plain.sendall(GET)
        assert b"this port speaks TLS; use https:" in read_all(plain)
    refused(broker, "tls-plaintext", "http")


# The broker's certificate


def test_clients_verify_the_broker(start: Start, authority: Authority, other: Authority) -> None:
    broker = serve(start, authority)
    port = broker.port("cafe")
    with pytest.raises(ssl.SSLCertVerificationError, match="unable to get local issuer"):
        connect(port, other.client())
    refused(broker, "tls-rejected")
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        connect(port, authority.client(), HOST)
    with connect(port, authority.client()) as stream:
        speak(stream)


def test_an_expired_certificate_of_the_broker(start: Start, authority: Authority) -> None:
    expired = authority.issue("expired", NAME, expired=True)
    broker = start(*listen("cafe"), f"--tls-cert={expired}")
    broker.wait_line(
        r"cafe: the certificate of localhost has expired on \d{4}-\d\d-\d\d; replace it and"
    )
    with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
        connect(broker.port("cafe"), authority.client())


def test_versions_and_ciphers(start: Start, authority: Authority) -> None:
    broker = serve(start, authority)
    old = authority.client()
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    with connect(broker.port("cafe"), old) as stream:
        speak(stream)
        assert stream.version() == "TLSv1.2"
    for weak in ("AES128-GCM-SHA256", "ECDHE-RSA-AES128-SHA:ECDHE-ECDSA-AES128-SHA"):
        old.set_ciphers(weak)
        with pytest.raises(ssl.SSLError, match=r"(?i)handshake.failure"):
            connect(broker.port("cafe"), old)
    broker.wait_line(r"refused: 1 on cafe: tls-cipher, last by ")
    broker.stop()
    newer = serve(start, authority, "--tls-min=1.3")
    with connect(newer.port("cafe"), authority.client()) as stream:
        assert stream.version() == "TLSv1.3"
    with pytest.raises(ssl.SSLError, match=r"(?i)version"):
        connect(newer.port("cafe"), old)
    refused(newer, "tls-version")


# Clients' certificates


@pytest.fixture
def strict(start: Start, authority: Authority) -> Broker:
    """Return a broker that requires certificates of the authority."""
    return serve(start, authority, f"--tls-ca={authority.file}", "--tls-client=required")


def assert_cut(broker: Broker, client: ssl.SSLContext) -> None:
    """Assert that the broker ends the handshake; in TLS 1.3 the client learns that later."""
    with (
        pytest.raises((ssl.SSLError, ConnectionError)),
        connect(broker.port("cafe"), client) as stream,
    ):
        speak(stream)


@pytest.mark.modes
def test_a_certificate_that_is_required(strict: Broker, authority: Authority) -> None:
    with connect(strict.port("cafe"), authority.client(authority.issue("alice", "a"))) as stream:
        speak(stream)


def test_no_certificate(strict: Broker, authority: Authority) -> None:
    assert_cut(strict, authority.client())
    refused(strict, "tls-certificate-missing")


def test_a_certificate_of_another_authority(
    strict: Broker, authority: Authority, other: Authority
) -> None:
    assert_cut(strict, authority.client(other.issue("mallory", "a")))
    refused(strict, "tls-certificate-untrusted")


def test_an_expired_certificate(strict: Broker, authority: Authority) -> None:
    assert_cut(strict, authority.client(authority.issue("late", "a", expired=True)))
    refused(strict, "tls-certificate-expired")


def test_an_optional_certificate(start: Start, authority: Authority, other: Authority) -> None:
    broker = serve(start, authority, f"--tls-ca={authority.file}", "--tls-client=optional")
    for client in (authority.client(), authority.client(authority.issue("alice", "a"))):
        with connect(broker.port("cafe"), client) as stream:
            speak(stream)
    assert_cut(broker, authority.client(other.issue("mallory", "a")))
    refused(broker, "tls-certificate-untrusted")


# Other than TLS


def test_a_client_without_tls_is_cut(start: Start, authority: Authority) -> None:
    broker = serve(start, authority)
    with socket.create_connection((HOST, broker.port("http")), TIMEOUT) as stream:
        stream.sendall(GET)
        answer = read_all(stream)
    assert answer.startswith(b"HTTP/1.1 400 Bad Request\r\n")
    assert b"this port speaks TLS; use https:" in answer
    refused(broker, "tls-plaintext", "http")


@pytest.mark.parametrize("protocol", ["cafe", "http"])
def test_a_client_of_tls_on_a_plain_port(start: Start, authority: Authority, protocol: str) -> None:
    broker = start(*listen("cafe"), HTTP)
    with pytest.raises(ssl.SSLError, match=r"(?i)wrong.version.number"):
        connect(broker.port(protocol), authority.client())
    broker.wait_line(rf"refused: 1 on {protocol}: tls-not-served, last by '127\.0\.0\.1:\d+'")


def test_connections_without_a_byte_are_no_failures(start: Start, authority: Authority) -> None:
    broker = serve(start, authority)
    for _ in range(3):
        socket.create_connection((HOST, broker.port("cafe")), TIMEOUT).close()
    with socket.create_connection((HOST, broker.port("cafe")), TIMEOUT) as half:
        half.sendall(b"\x16\x03\x01")
    refused(broker, "tls-handshake")
    broker.stop()
    assert broker.totals()["refused"] == 1


# Renewal


def reload(broker: Broker, pattern: str) -> None:
    """Send SIGHUP and wait for the line that follows from it."""
    broker.signal(signal.SIGHUP)
    broker.wait_line(pattern)


def serial(stream: ssl.SSLSocket) -> object:
    """Return the number of the broker's certificate."""
    return (stream.getpeercert() or {})["serialNumber"]


@pytest.mark.modes
def test_renewal_keeps_connections(start: Start, authority: Authority) -> None:
    broker = serve(start, authority)
    with connect(broker.port("cafe"), authority.client()) as before:
        speak(before)
        authority.issue("broker", NAME, common_name="renewed")
        reload(broker, "reloaded: ")
        assert re.search("reload: cafe [^ ]+ tls is 'certificate of localhost until", broker.output)
        with connect(broker.port("cafe"), authority.client()) as after:
            speak(after)
            assert serial(after) != serial(before)
        before.sendall(frame(PING))
        assert split(before.recv(7)) == [(PONG, b"")]


def test_a_broken_file_changes_nothing(start: Start, authority: Authority) -> None:
    broker = serve(start, authority)
    path = Path(authority.issue("broker", NAME))
    good = path.read_bytes()
    for broken, error in (
        (b"", "has no certificate in PEM"),
        (good[: good.index(b"-----BEGIN CERT")], "has no certificate in PEM"),
        (good[good.index(b"-----BEGIN CERT") :], "has no private key in PEM"),
    ):
        path.write_bytes(broken)
        reload(broker, f"reload failed, nothing is changed: .*({error})")
        with connect(broker.port("cafe"), authority.client()) as stream:
            speak(stream)


def test_authorities_are_renewed(start: Start, authority: Authority, other: Authority) -> None:
    accepted = Path(authority.file).with_name("accepted.pem")
    accepted.write_text(Path(authority.file).read_text())
    broker = serve(start, authority, f"--tls-ca={accepted}", "--tls-client=required")
    old, new = authority.issue("old", "a"), other.issue("new", "a")
    client = authority.client(old)
    with connect(broker.port("cafe"), client) as before:
        speak(before)
        accepted.write_text(Path(other.file).read_text())
        reload(broker, "reloaded: ")
        with connect(broker.port("cafe"), authority.client(new)) as stream:
            speak(stream)
        assert_cut(broker, client)
        # Nor can a session from before be resumed.
        with (
            pytest.raises((ssl.SSLError, ConnectionError)),
            socket.create_connection((HOST, broker.port("cafe")), TIMEOUT) as sock,
            client.wrap_socket(sock, server_hostname=NAME, session=before.session) as stream,
        ):
            speak(stream)
        before.sendall(frame(PING))
        assert split(before.recv(7)) == [(PONG, b"")]


def test_tls_is_turned_on_by_the_file(start: Start, authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "pubsub.toml"
    plain = f'[[listen]]\nprotocol = "cafe"\nendpoint = "tcp:0:interface={HOST}"\n'
    path.write_text(plain)
    broker = start(f"--config={path}")
    with socket.create_connection((HOST, broker.port("cafe")), TIMEOUT) as before:
        speak(before)
        path.write_text(f'{plain}tls-cert = "{authority.issue("broker", NAME)}"\n')
        reload(broker, "reloaded: ")
        with connect(broker.port("cafe"), authority.client()) as stream:
            speak(stream)
        before.sendall(frame(PING))
        assert before.recv(7)


# Other clients


def test_curl(start: Start, authority: Authority) -> None:
    own = authority.issue("alice", "a")
    broker = serve(start, authority, f"--tls-ca={authority.file}", "--tls-client=required")
    url = f"https://{NAME}:{broker.port('http')}/v1/bounds"
    command = ["curl", "-sS", "--cacert", authority.file, "--resolve",
               f"{NAME}:{broker.port('http')}:{HOST}", url]  # fmt: skip
    found = subprocess.run([*command, "--cert", own], capture_output=True, timeout=TIMEOUT)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout)["next"] == 0
    failed = subprocess.run(command, capture_output=True, timeout=TIMEOUT)
    assert failed.returncode != 0
    refused(broker, "tls-certificate-missing", "http")


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl(start: Start, authority: Authority, version: str) -> None:
    own = authority.issue("alice", "a")
    broker = serve(start, authority, f"--tls-ca={authority.file}", "--tls-client=required")
    with subprocess.Popen(
        ["openssl", "s_client", "-connect", f"{HOST}:{broker.port('cafe')}", "-quiet", version,
         "-servername", NAME, "-verify_hostname", NAME, "-verify_return_error",
         "-CAfile", authority.file, "-cert", own, "-alpn", "cafe"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as client:  # fmt: skip
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(handshake_pub() + frame(PING))
        client.stdin.flush()
        answers = split(client.stdout.read(16 + 7))
        assert [answer.opcode for answer in answers] == [HANDSHAKE_ACK, PONG]
        client.kill()


# Streams of other kinds are in test_leaving.py.


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_end_of_the_output(start: Start, authority: Authority, version: ssl.TLSVersion) -> None:
    """In TLS 1.3 the replies to earlier requests follow it; in TLS 1.2 they need not."""
    broker = serve(start, authority)
    context = authority.client()
    context.maximum_version = version
    for port, request in (
        (broker.port("http"), GET.replace(b"Connection: close\r\n", b"")),
        (broker.port("cafe"), handshake_pub() + frame(PING)),
    ):
        sock = socket.create_connection((HOST, port), TIMEOUT)
        with TlsSocket(sock, context) as stream:
            stream.sendall(request)
            stream.notify_close()
            answer = read_all(stream)
            if version is ssl.TLSVersion.TLSv1_3:
                assert answer.startswith(b"HTTP/1.1 200 ") or split(answer)[1] == (PONG, b"")


def test_backpressure(start: Start, authority: Authority) -> None:
    """Requests whose answers are not read are not read either, and then all are answered."""
    broker = start(*listen("nsd"), f"--tls-cert={authority.issue('broker', NAME)}")
    request = b'{"_class":"Nonsense","text":"%s"}\n' % (b"x" * 150)
    with connect(broker.port("nsd"), authority.client(), receive_buffer=4096) as stream:
        stream.settimeout(1)
        before = broker.memory()
        press(stream.sendall, request * 400)
        assert broker.memory() - before < 48 * 2**20
    with connect(broker.port("nsd"), authority.client()) as stream:
        stream.sendall(b'{"_class":"OpenRequest","identity":"ada"}\n')
        assert stream.recv(100) == b'{"_class":"SuccessResponse"}\n'


def test_unix_sockets(start: Start, authority: Authority, tmp_path: Path) -> None:
    path = tmp_path / "cafe.socket"
    certificate = authority.issue("broker", NAME)
    broker = start(f"--listen=cafe=unix:{path}", f"--tls-cert={certificate}")
    assert f"cafe on tls unix {path}" in broker.output
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(TIMEOUT)
        sock.connect(str(path))
        with authority.client().wrap_socket(sock, server_hostname=NAME) as stream:
            speak(stream)
            stream.sendall(b"garbage" + bytes(100))
            assert read_all(stream)
