"""Proofs by transports: names in certificates, users of UNIX sockets, headers of proxies."""

from __future__ import annotations

import os
import socket
from typing import Any

import trustme
from cryptography import x509
from twisted.internet.address import IPv4Address, UNIXAddress
from twisted.internet.interfaces import ISSLTransport
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.protocols.haproxy._wrapper import HAProxyWrappingFactory
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.trial.unittest import SynchronousTestCase
from zope.interface import implementer

from pubsub.broker.credentials.identity import CERTIFICATE, SOCKET, Identity
from pubsub.wire.proxy_protocol import ProxiedStream
from pubsub.wire.transport_identity import identity_of, name_in
from tests.unit.proxy_headers import header, tls_field

AUTHORITY = trustme.CA()
PEER = IPv4Address("TCP", "192.0.2.7", 4711)


def certificate(*names: str, common_name: str | None = None) -> x509.Certificate:
    issued = AUTHORITY.issue_cert(*names, common_name=common_name)
    return x509.load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())


class NameTests(SynchronousTestCase):
    """``name_in``"""

    def test_each_kind_of_name(self) -> None:
        one = certificate("b.example", "a.example", "ada@example.org", common_name="ada")
        assert name_in(one, "cn") == "ada"
        assert name_in(one, "dns") == "b.example"
        assert name_in(one, "email") == "ada@example.org"
        assert name_in(one, "uri") == ""

    def test_without_the_name(self) -> None:
        one = certificate("192.0.2.1")
        assert [name_in(one, kind) for kind in ("cn", "dns", "email", "uri")] == [""] * 4

    def test_names_that_cannot_be_shown(self) -> None:
        for name in ("a\nb", "a\x00b", "\x1b[1m"):
            assert name_in(certificate("a.example", common_name=name), "cn") == ""


@implementer(ISSLTransport)
class _Tls(ProtocolWrapper):
    """TLS whose client has presented ``certificate``."""

    certificate: x509.Certificate | None = None

    def getPeerCertificate(self) -> Any:
        return None if self.certificate is None else self

    def to_cryptography(self) -> x509.Certificate:
        assert self.certificate is not None
        return self.certificate


class _Unix:
    """The transport of a UNIX socket."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end

    def getPeer(self) -> UNIXAddress:
        return UNIXAddress(None)


class StreamTests(SynchronousTestCase):
    """``identity_of``"""

    def wrap(self, kind: type[ProtocolWrapper], below: object) -> Any:
        factory = HAProxyWrappingFactory if issubclass(kind, ProxiedStream) else WrappingFactory
        wrapper = kind(factory(Factory()), Protocol())
        wrapper.makeConnection(below)
        return wrapper

    def tls(self, below: object, name: str | None = "ada") -> Any:
        stream = self.wrap(_Tls, below)
        stream.certificate = None if name is None else certificate("a.example", common_name=name)
        return stream

    def test_a_plain_connection_proves_nothing(self) -> None:
        assert identity_of(StringTransport(peerAddress=PEER), "cn") == Identity(host="192.0.2.7")

    def test_a_certificate(self) -> None:
        stream = self.tls(StringTransport(peerAddress=PEER))
        assert identity_of(stream, "cn") == Identity("ada", CERTIFICATE, host="192.0.2.7")
        assert identity_of(stream, "dns").name == "a.example"
        assert identity_of(stream, "uri").is_anonymous

    def test_tls_without_a_certificate(self) -> None:
        assert identity_of(self.tls(StringTransport(peerAddress=PEER), None), "cn").is_anonymous

    def test_a_name_in_the_header_of_a_proxy(self) -> None:
        stream = self.wrap(ProxiedStream, StringTransport(peerAddress=PEER))
        assert identity_of(stream, "cn") == Identity(host="192.0.2.7")
        stream.dataReceived(header(tls_field(b"eve")))
        assert identity_of(stream, "cn") == Identity("eve", CERTIFICATE, host="192.0.2.9")

    def test_the_certificate_of_the_proxy_is_not_the_clients(self) -> None:
        stream = self.wrap(ProxiedStream, self.tls(StringTransport(peerAddress=PEER), "proxy"))
        stream.dataReceived(header())
        assert identity_of(stream, "cn") == Identity(host="192.0.2.9")

    def test_tls_behind_a_proxy_is_the_clients(self) -> None:
        proxy = self.wrap(ProxiedStream, StringTransport(peerAddress=PEER))
        proxy.dataReceived(header(tls_field(b"eve")))
        assert identity_of(self.tls(proxy), "cn").name == "ada"

    def test_the_user_at_a_unix_socket(self) -> None:
        near, far = socket.socketpair()
        self.addCleanup(near.close)
        self.addCleanup(far.close)
        found = identity_of(_Unix(near), "cn")
        assert found == Identity(f"uid:{os.getuid()}", SOCKET, host="unix")

    def test_a_unix_socket_that_is_closed(self) -> None:
        near, far = socket.socketpair()
        far.close()
        near.close()
        assert identity_of(_Unix(near), "cn") == Identity(host="unix")

    def test_the_proxy_at_a_unix_socket_is_not_the_client(self) -> None:
        near, far = socket.socketpair()
        self.addCleanup(near.close)
        self.addCleanup(far.close)
        assert identity_of(self.wrap(ProxiedStream, _Unix(near)), "cn").is_anonymous
