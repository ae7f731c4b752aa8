"""TLS of connections that the broker makes: the other end's name and chain are always verified."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cryptography import x509
from OpenSSL import SSL, crypto
from service_identity import VerificationError
from twisted.internet._sslverify import IOpenSSLTrustRoot
from twisted.internet.defer import Deferred, fail
from twisted.internet.endpoints import wrapClientTLS
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.internet.ssl import optionsForClientTLS, platformTrust
from twisted.protocols.tls import TLSMemoryBIOProtocol
from twisted.python.failure import Failure
from zope.interface import implementer

from pubsub.errors import ConfigurationError
from pubsub.wire.connect_errors import NOT_TLS
from pubsub.wire.server_tls import (
    add_callback,
    read_certificates,
    read_key,
    reason_of,
    trust,
)


@implementer(IOpenSSLTrustRoot)
class _TrustedCertificates:
    """Those of a file, for Twisted, whose own class takes roots alone."""

    def __init__(self, certificates: Sequence[x509.Certificate]) -> None:
        self._certificates = certificates

    def _addCACertsToContext(self, context: SSL.Context) -> None:
        trust(context, self._certificates)


@dataclass(frozen=True, slots=True)
class ClientFiles:
    """The files, in PEM, with which the broker connects to others over TLS.

    ``ca`` has the authorities to trust in place of the system's. ``certificate`` and ``key`` prove
    this broker's identity; the key is in the file of the certificate if ``key`` is empty.
    ``prefix`` is that of the settings, for errors. The files are read for each connection, so that
    renewed ones are used.
    """

    prefix: str
    ca: str = ""
    certificate: str = ""
    key: str = ""

    def check(self) -> None:
        """Raise ConfigurationError if a file is unusable."""
        self.options("localhost", "")

    def options(self, host: str, protocol: str) -> Any:
        """Return Twisted's options for a connection to ``host``; raises ConfigurationError."""
        # Twisted adds callbacks when it connects, and would show a traceback.
        add_callback(SSL.Context(SSL.TLS_METHOD))
        trusted = platformTrust()
        if self.ca:
            trusted = _TrustedCertificates(read_certificates(f"{self.prefix}-ca", self.ca)[1])
        try:
            return optionsForClientTLS(
                host,
                trusted,
                acceptableProtocols=[protocol.encode()] if protocol else None,
                extraCertificateOptions=self._own(),
            )
        except (SSL.Error, ValueError) as error:
            raise ConfigurationError(
                f"{self.prefix}-cert: {self.certificate or host} cannot be used: {reason_of(error)}"
            ) from None

    def _own(self) -> dict[str, Any]:
        """Return the options with this broker's certificate, if it has one."""
        if not self.certificate:
            if self.key:
                raise ConfigurationError(f"{self.prefix}-key: needs {self.prefix}-cert")
            return {}
        _, chain = read_certificates(f"{self.prefix}-cert", self.certificate)
        name, path = f"{self.prefix}-key", self.key or self.certificate
        key, _ = read_key(name, path, chain[0], self.certificate)
        return {
            "privateKey": crypto.PKey.from_cryptography_key(key),  # type: ignore[arg-type]
            "certificate": _old(chain[0]),
            "extraCertChain": [_old(one) for one in chain[1:]],
        }


# OpenSSL's text for a reply that is not TLS.
_NOT_TLS = "wrong version number"
NOT_VERIFIED = "certificate verify failed"
"""OpenSSL's text for a certificate that is not accepted; it does not say why."""
OTHER_NAME = "the certificate is for another name"

NO_FILES = ClientFiles("tls")
"""The system's authorities, and no certificate of one's own."""


def _old(certificate: Any) -> crypto.X509:
    """Return a certificate of cryptography as Twisted takes it."""
    return crypto.X509.from_cryptography(certificate)


@implementer(IStreamClientEndpoint)
class TlsEndpoint:
    """Connects to ``endpoint`` over TLS, as to ``host``."""

    def __init__(
        self, endpoint: IStreamClientEndpoint, host: str, protocol: str, files: ClientFiles
    ) -> None:
        self._endpoint = endpoint
        self._host = host
        self._protocol = protocol
        self._files = files

    def connect(self, factory: IProtocolFactory) -> Deferred[IProtocol]:
        """See IStreamClientEndpoint. It fails with ConfigurationError if a file is unusable."""
        try:
            options = self._files.options(self._host, self._protocol)
        except ConfigurationError as error:
            return fail(error)
        connecting: Deferred[IProtocol] = wrapClientTLS(options, self._endpoint).connect(factory)
        return connecting


def tls_trouble(reason: Failure | None, transport: object = None) -> str:
    """Return why TLS has ended a connection, or an empty text if it was not TLS.

    ``transport`` is that of the connection: it knows what is wrong with a certificate.
    """
    error = None if reason is None else reason.value
    if isinstance(error, VerificationError):
        return OTHER_NAME
    if isinstance(error, SSL.Error):
        text = reason_of(error)
        if text == NOT_VERIFIED:
            text = ": ".join(filter(None, (text, _result_of_verification(transport))))
        return NOT_TLS if text == _NOT_TLS else f"TLS: {text}"
    return ""


def _result_of_verification(transport: object) -> str:
    """Return OpenSSL's text for the result, as Python's own errors have it."""
    if not isinstance(transport, TLSMemoryBIOProtocol):
        return ""
    try:
        # pyOpenSSL has no method for it, and another version may have other names inside.
        inside: Any = SSL
        number = inside._lib.SSL_get_verify_result(transport.getHandle()._ssl)
        text = inside._ffi.string(inside._lib.X509_verify_cert_error_string(number))
        return str(text, "ascii")
    except AttributeError:
        return ""
