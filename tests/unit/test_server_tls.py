"""The files of a listener's TLS, and the reasons of failed handshakes."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509 import CertificateBuilder, Name, NameAttribute
from cryptography.x509.oid import NameOID
from OpenSSL import SSL
from twisted.trial.unittest import SynchronousTestCase

from pubsub.broker.listeners.tls_settings import TLS_SETTINGS
from pubsub.errors import ConfigurationError
from pubsub.server.certificates import read_tls
from pubsub.settings import read_all
from pubsub.wire.handshake_reasons import handshake_reason
from pubsub.wire.outgoing_tls import ClientFiles
from pubsub.wire.server_tls import CertificateEnd, ServerTls, load_tls
from tests.unit.streams import logged

AUTHORITY = trustme.CA()
ISSUED = AUTHORITY.issue_cert("broker.example", "192.0.2.1")
CHAIN = b"".join(one.bytes() for one in ISSUED.cert_chain_pems)
KEY = ISSUED.private_key_pem.bytes()
OTHER_KEY = AUTHORITY.issue_cert("b").private_key_pem.bytes()


END = datetime(3000, 1, 1, tzinfo=UTC)


def self_signed() -> tuple[bytes, bytes]:
    """Return a certificate that its own short key has signed, and the key."""
    weak = generate_private_key(65537, 1024)
    name = Name([NameAttribute(NameOID.COMMON_NAME, "weak.example")])
    certificate = (
        CertificateBuilder().subject_name(name).issuer_name(name)
        .public_key(weak.public_key()).serial_number(1)
        .not_valid_before(datetime(2020, 1, 1)).not_valid_after(datetime(2030, 1, 1))
        .sign(weak, SHA256())
    )  # fmt: skip
    key = weak.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return certificate.public_bytes(Encoding.PEM), key


SELF_SIGNED, WEAK_KEY = self_signed()


def settings(**given: object) -> dict[str, Any]:
    """Return the settings of TLS; ``cert`` stands for ``tls-cert``."""
    return read_all(TLS_SETTINGS, {f"tls-{name}": value for name, value in given.items()})


class FileTests(SynchronousTestCase):
    """Certificates, keys and authorities"""

    def setUp(self) -> None:
        self.directory = Path(self.enterContext(TemporaryDirectory()))
        self.chain = self.write("chain.pem", CHAIN)
        self.key = self.write("key.pem", KEY)
        self.ca = self.write("ca.pem", AUTHORITY.cert_pem.bytes())

    def write(self, name: str, content: bytes) -> str:
        path = self.directory / name
        path.write_bytes(content)
        path.chmod(0o600)
        return str(path)

    def load(self, **given: object) -> ServerTls:
        found = load_tls(settings(**given))
        assert found is not None
        return found

    def error(self, **given: object) -> str:
        with pytest.raises(ConfigurationError) as caught:
            load_tls(settings(**given))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    def test_no_certificate_is_no_tls(self) -> None:
        assert load_tls(settings()) is None

    def test_the_name_and_the_end(self) -> None:
        found = self.load(cert=self.chain, key=self.key)
        assert found.ends == [CertificateEnd("tls-cert", "broker.example", END)]
        unnamed = AUTHORITY.issue_cert("192.0.2.1", organization_name="o", common_name="cn")
        pem = self.write("unnamed.pem", unnamed.private_key_and_cert_chain_pem.bytes())
        assert "CN=cn" in self.load(cert=pem).ends[0].subject

    def test_the_ends_of_the_certificates_that_it_depends_on(self) -> None:
        between, ends = datetime(2030, 1, 1, tzinfo=UTC), datetime(2029, 1, 1, tzinfo=UTC)
        early = AUTHORITY.issue_cert("early.example", not_after=between).cert_chain_pems[0].bytes()
        first = AUTHORITY.issue_cert("first.example", not_after=ends).cert_chain_pems[0].bytes()
        chain = self.write("long.pem", KEY + CHAIN + early + first)
        authorities = self.write("both.pem", SELF_SIGNED + AUTHORITY.cert_pem.bytes())
        found = self.load(cert=chain, ca=authorities, client="optional")
        assert found.ends == [
            CertificateEnd("tls-cert", "broker.example", END),
            CertificateEnd("tls-cert", "first.example", ends),
            CertificateEnd("tls-ca", "CN=weak.example", datetime(2030, 1, 1, tzinfo=UTC)),
        ]

    def test_authorities_that_are_none(self) -> None:
        """An authority need not be a root, and a certificate of none is accepted as itself."""
        lines = logged(self)
        own = {"cert": self.chain, "key": self.key, "client": "required"}
        for content in (
            CHAIN, AUTHORITY.create_child_ca().cert_pem.bytes(), SELF_SIGNED,
            CHAIN + AUTHORITY.cert_pem.bytes(),
        ):  # fmt: skip
            path = self.write("other.pem", content)
            assert self.load(**own, ca=path).context.get_cert_store() is not None
            ClientFiles("peer", path).check()
        assert lines == []

    def test_the_key_may_be_in_the_file_of_the_certificate(self) -> None:
        pem = self.write("all.pem", KEY + CHAIN)
        assert self.load(cert=pem) == self.load(cert=pem, min="1.2")

    def test_equal_files_and_settings_are_equal(self) -> None:
        first = self.load(cert=self.chain, key=self.key)
        assert first == self.load(cert=self.chain, key=self.key)
        assert first != self.load(cert=self.chain, key=self.key, min="1.3")
        assert first != self.load(cert=self.chain, key=self.key, ca=self.ca, client="optional")

    def test_files_that_cannot_be_used(self) -> None:
        none = str(self.directory / "none.pem")
        der = self.write("der", b"\x30\x82\x01\x00")
        cut = self.write("cut.pem", CHAIN[:200])
        encrypted = generate_private_key(65537, 2048).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"x")
        )
        for given, expected in (
            ({"cert": none}, f"tls-cert: {none}: No such file or directory; name a file that "),
            ({"cert": str(self.directory)}, f"tls-cert: {self.directory}: Is a directory; "),
            ({"cert": der}, f"tls-cert: {der} has no certificate in PEM, or a damaged one"),
            ({"cert": cut}, f"tls-cert: {cut} has no certificate in PEM, or a damaged one"),
            ({"cert": self.chain}, f"tls-key: {self.chain} has no private key in PEM; give the"),
            ({"cert": self.chain, "key": der}, f"tls-key: {der} has no private key in PEM, or a"),
            ({"cert": self.chain, "key": none}, f"tls-key: {none}: No such file"),
            (
                {"cert": self.chain, "key": self.write("encrypted.pem", encrypted)},
                f"tls-key: {self.directory}/encrypted.pem is encrypted; give a key without a pass",
            ),
            (
                {"cert": self.chain, "key": self.write("other.pem", OTHER_KEY)},
                f"tls-key: {self.directory}/other.pem does not belong to the first certificate in "
                f"{self.chain}; give the key that this certificate was issued for",
            ),
        ):
            assert self.error(**given).startswith(expected), given

    def test_a_file_that_is_still_being_written(self) -> None:
        """Certificates may be whole, and those behind them missing in part."""
        one, ends = len(CHAIN), len(CHAIN.rstrip())
        for behind in (1, 12, 200, ends - 30, ends - 1):
            path = self.write("growing.pem", CHAIN + CHAIN[:behind])
            expected = f"{path} is cut off, its last lines have no END; perhaps it is still being"
            assert self.error(cert=path, key=self.key).startswith(f"tls-cert: {expected}"), behind
            given = {"cert": self.chain, "key": self.key, "client": "required", "ca": path}
            assert self.error(**given).startswith(f"tls-ca: {expected}"), behind
        for whole in (CHAIN + CHAIN, (CHAIN * 2)[: one + ends], b"text\n" + CHAIN + b"\n\n"):
            assert self.load(cert=self.write("whole.pem", whole), key=self.key)

    def test_settings_that_do_not_fit(self) -> None:
        own = {"cert": self.chain, "key": self.key}
        for given, expected in (
            ({"key": self.key}, "tls-key: needs tls-cert"),
            ({"ca": self.ca}, "tls-ca: needs tls-cert"),
            ({"client": "required"}, "tls-client: needs tls-cert"),
            ({**own, "client": "required"}, "tls-client: required needs tls-ca, a file"),
            ({**own, "client": "optional", "ca": "/none"}, "tls-ca: /none: No such file"),
            ({**own, "ciphers": "nonsense"}, "tls-ciphers: 'nonsense' is not a cipher suite"),
        ):
            assert self.error(**given).startswith(expected), given
        for version in ("1.1", 2, ""):
            with pytest.raises(ValueError, match=r"tls-min: expected 1\.2 or 1\.3"):
                settings(min=version)
        assert settings(min=1.3)["tls-min"] == "1.3"

    def test_a_key_that_openssl_refuses(self) -> None:
        pem = self.write("weak.pem", WEAK_KEY + SELF_SIGNED)
        assert self.error(cert=pem) == f"tls-cert: {pem} cannot be used: ee key too small"

    def test_a_service_without_executable_memory(self) -> None:
        """As with MemoryDenyWriteExecute= of systemd."""
        files = ClientFiles("peer")
        with patch.object(SSL.Context, "set_alpn_select_callback", side_effect=MemoryError):
            listening = self.error(cert=self.chain, key=self.key)
            with pytest.raises(ConfigurationError) as connecting:
                files.check()
        assert listening == str(connecting.value)
        assert listening.endswith("remove MemoryDenyWriteExecute= from the unit of the service")
        files.check()

    def test_a_key_for_everybody_is_reported(self) -> None:
        lines = logged(self)
        os.chmod(self.key, 0o640)
        self.load(cert=self.chain, key=self.key)
        assert lines == []
        os.chmod(self.key, 0o644)
        self.load(cert=self.chain, key=self.key)
        assert lines == [f"tls-key: {self.key} can be read by others; chmod 600 it"]

    def test_an_endpoint_with_a_certificate_of_its_own(self) -> None:
        own = settings(cert=self.chain, key=self.key)
        for endpoint in ("ssl:0:privateKey=a", "haproxy:ssl:0"):
            with pytest.raises(ConfigurationError, match=r"^cafe: the endpoint '.*' has a cert"):
                read_tls("cafe", endpoint, own)
        assert read_tls("cafe", "ssl:0", settings()) is None
        with pytest.raises(ConfigurationError, match=r"^cafe: tls-key: needs tls-cert"):
            read_tls("cafe", "tcp:0", settings(key=self.key))


class ReasonTests(SynchronousTestCase):
    """Failed handshakes"""

    def test_reasons(self) -> None:
        for text, verify_error, expected in (
            ("http request", 0, "tls-plaintext"),
            ("wrong version number", 0, "tls-plaintext"),
            ("peer did not return a certificate", 0, "tls-certificate-missing"),
            ("certificate verify failed", 20, "tls-certificate-untrusted"),
            ("certificate verify failed", 10, "tls-certificate-expired"),
            ("tlsv1 alert unknown ca", 0, "tls-rejected"),
            ("unsupported protocol", 0, "tls-version"),
            ("no shared cipher", 0, "tls-cipher"),
            ("no application protocol", 0, "tls-alpn"),
            ("something else", 0, "tls-handshake"),
        ):
            error = SSL.Error([("SSL routines", "", text)])
            assert handshake_reason(error, verify_error) == expected
        assert handshake_reason(SSL.Error([])) == "tls-handshake"
        assert handshake_reason(SSL.SysCallError(-1, "Unexpected EOF")) == "tls-handshake"
        assert handshake_reason(SSL.WantReadError()) == "tls-handshake"
