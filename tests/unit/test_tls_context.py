"""The handshakes of a listener: versions, chains, certificates of clients, ALPN, resumption."""

from __future__ import annotations

import contextlib
import ssl
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trustme
from OpenSSL import SSL
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.tls_settings import TLS_SETTINGS
from pubsub.settings import read_all
from pubsub.wire.server_tls import ServerTls, load_tls
from tests.unit.tls_streams import V12, V13

NAME, OWN = "broker.example", "own"


@cache
def authority(name: str) -> trustme.CA:
    """Return an authority; one of another name is not trusted by the others' clients."""
    return trustme.CA(organization_name=name)


@cache
def certificate(host: str = NAME, by: str = OWN, expired: bool = False) -> trustme.LeafCert:
    ends = datetime.now(UTC) - timedelta(days=1) if expired else None
    return authority(by).issue_cert(host, not_after=ends)


class Listener:
    """The application data of a connection, as ``TlsStream`` is."""

    verify_error = 0

    def __init__(self, *protocols: bytes) -> None:
        self._protocols = protocols

    def acceptable_protocols(self) -> list[bytes]:
        return list(self._protocols)


class HandshakeTests(SynchronousTestCase):
    """Between a client of Python and the context of a listener"""

    def setUp(self) -> None:
        self.directory = Path(self.enterContext(TemporaryDirectory()))
        self.listener = Listener()

    def serve(self, issued: trustme.LeafCert | None = None, **given: object) -> ServerTls:
        """Return the TLS of a listener with this certificate; ``ca`` is the list of authorities."""
        pem = (issued or certificate()).private_key_and_cert_chain_pem.bytes()
        files = {"cert": pem}
        if "ca" in given:
            files["ca"] = b"".join(authority(one).cert_pem.bytes() for one in given["ca"])  # type: ignore[attr-defined]
        for name, content in files.items():
            path = self.directory / name
            path.touch(mode=0o600)
            path.write_bytes(content)
            given[name] = str(path)
        found = load_tls(read_all(TLS_SETTINGS, {f"tls-{k}": v for k, v in given.items()}))
        assert found is not None
        return found

    def client(
        self,
        presents: trustme.LeafCert | None = None,
        version: ssl.TLSVersion = V13,
        offers: tuple[str, ...] = (),
    ) -> ssl.SSLContext:
        """Return the context of a client that trusts the root of our authority alone."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = context.maximum_version = version
        context.load_verify_locations(cadata=authority(OWN).cert_pem.bytes().decode())
        if presents is not None:
            presents.configure_cert(context)
        if offers:
            context.set_alpn_protocols(offers)
        return context

    def shake(
        self, tls: ServerTls, client: ssl.SSLContext, session: ssl.SSLSession | None = None
    ) -> ssl.SSLObject:
        """Return the client's end after a handshake; raises the errors of both ends."""
        server = SSL.Connection(tls.context, None)
        server.set_app_data(self.listener)
        server.set_accept_state()
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        end = client.wrap_bio(incoming, outgoing, server_hostname=NAME, session=session)
        for _ in range(6):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
            if data := outgoing.read():
                server.bio_write(data)
            with contextlib.suppress(SSL.WantReadError):
                server.do_handshake()
            with contextlib.suppress(SSL.WantReadError):
                incoming.write(server.bio_read(2**16))
        with contextlib.suppress(ssl.SSLWantReadError):
            end.read(1)
        self.server = server
        return end

    def refused(self, tls: ServerTls, client: ssl.SSLContext) -> str:
        with pytest.raises((SSL.Error, ssl.SSLError)) as caught:
            self.shake(tls, client)
        return str(caught.value).lower()

    def test_a_chain_of_authorities(self) -> None:
        issued = authority(OWN).create_child_ca().create_child_ca().issue_cert(NAME)
        assert len(issued.cert_chain_pems) == 3
        for version in (V12, V13):
            self.shake(self.serve(issued), self.client(version=version))

    def test_the_lowest_version(self) -> None:
        tls = self.serve(min="1.3")
        assert self.shake(tls, self.client()).version() == "TLSv1.3"
        assert "unsupported protocol" in self.refused(tls, self.client(version=V12))
        assert self.shake(self.serve(), self.client(version=V12)).version() == "TLSv1.2"

    def test_certificates_of_clients(self) -> None:
        ada = certificate("ada.example")
        strangers = (certificate("eve.example", "other"), certificate("old.example", expired=True))
        for version in (V12, V13):
            for mode in ("optional", "required"):
                tls = self.serve(ca=(OWN, "second"), client=mode)
                for good in (ada, certificate("bob.example", "second")):
                    self.shake(tls, self.client(good, version))
                    assert self.server.get_peer_certificate() is not None
                for bad, number in zip(strangers, (20, 10), strict=True):
                    self.listener.verify_error = 0
                    assert "verify failed" in self.refused(tls, self.client(bad, version))
                    assert self.listener.verify_error in (number, 19, 21)
                anonymous = self.client(version=version)
                if mode == "required":
                    assert "did not return a certificate" in self.refused(tls, anonymous)
                else:
                    self.shake(tls, anonymous)
                    assert self.server.get_peer_certificate() is None
            self.shake(self.serve(), self.client(strangers[0], version))
            assert self.server.get_peer_certificate() is None

    def test_clients_learn_which_authorities_are_accepted(self) -> None:
        self.shake(self.serve(ca=(OWN, "second"), client="optional"), self.client())
        names = [dict(name.get_components())[b"O"] for name in self.server.get_client_ca_list()]
        assert names == [b"own", b"second"]

    def test_a_session_with_a_certificate_cannot_be_resumed(self) -> None:
        """Its certificate would not be verified again."""
        for version in (V12, V13):
            for given, is_resumed in (
                ({}, True),
                ({"ca": (OWN,), "client": "optional"}, False),
            ):
                tls = self.serve(**given)  # type: ignore[arg-type]
                client = self.client(certificate("ada.example"), version)
                session = self.shake(tls, client).session
                again: Any = self.shake(tls, client, session)
                assert again.session_reused == is_resumed, (version, given)

    def test_the_broker_keeps_no_sessions(self) -> None:
        """A client without tickets could fill the memory with them."""
        tls = self.serve()
        client = self.client(version=V12)
        client.options |= ssl.OP_NO_TICKET
        session = self.shake(tls, client).session
        again: Any = self.shake(tls, client, session)
        assert not again.session_reused

    def test_the_first_protocol_of_the_listener_that_the_client_offers(self) -> None:
        tls = self.serve()
        self.listener = Listener(b"cafe", b"http/1.1")
        for offers, chosen in (
            (("http/1.1", "cafe"), "cafe"), (("h2", "http/1.1"), "http/1.1"), ((), None),
        ):  # fmt: skip
            end = self.shake(tls, self.client(offers=offers))
            assert end.selected_alpn_protocol() == chosen
        assert "no application protocol" in self.refused(tls, self.client(offers=("h2",)))

    def test_renegotiation_is_refused(self) -> None:
        for tls in (self.serve(), self.serve(ca=(OWN,), client="required")):
            assert tls.context.set_options(0) & SSL.OP_NO_RENEGOTIATION
            assert tls.context.set_options(0) & SSL.OP_NO_COMPRESSION
