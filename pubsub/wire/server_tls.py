"""The TLS of a listener: its certificate, key and authorities, read from files in PEM.

The files are checked in full, so that a file that cannot be used is an error when the broker
starts or reloads, and not when a client connects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
)
from OpenSSL import SSL
from OpenSSL.crypto import X509, X509StoreFlags

from pubsub.broker.credentials.setting_files import read_file, warn_if_readable
from pubsub.broker.listeners.tls_settings import NONE, REQUIRED
from pubsub.errors import ConfigurationError

_VERSIONS = {"1.2": SSL.TLS1_2_VERSION, "1.3": SSL.TLS1_3_VERSION}
_BEGIN, _END = b"-----BEGIN ", b"-----END "
_SAFE = SSL.OP_NO_COMPRESSION | SSL.OP_NO_RENEGOTIATION | SSL.OP_CIPHER_SERVER_PREFERENCE


class CertificateEnd(NamedTuple):
    """The end of a certificate for ``subject`` in the file of ``setting``."""

    setting: str
    subject: str
    expires: datetime


class ServerTls:
    """The TLS of new connections of a listener. Two are equal if the files and settings are.

    The first of ``ends`` is that of the listener's own certificate. The others are of the
    certificates on which it, or those of clients, depend, if they end earlier. The ``context``
    needs a ``TlsStream`` as the application data of its connections.
    """

    def __init__(self, digest: bytes, ends: Sequence[CertificateEnd], context: SSL.Context) -> None:
        self.digest = digest
        self.ends = ends
        self.context = context

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ServerTls) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __str__(self) -> str:
        """The certificate, and a number that changes with every file and setting."""
        own, number = self.ends[0], self.digest[:4].hex()
        return f"certificate of {own.subject} until {own.expires:%Y-%m-%d %H:%M} UTC, {number}"


def load_tls(settings: Mapping[str, Any]) -> ServerTls | None:
    """Return the TLS of a listener with these settings, or None if it has none.

    Raises ConfigurationError.
    """
    certificate_path, key_path = settings["tls-cert"], settings["tls-key"]
    if not certificate_path:
        _require_no_other(settings)
        return None
    certificates, chain = read_certificates("tls-cert", certificate_path)
    key, key_bytes = read_key("tls-key", key_path or certificate_path, chain[0], certificate_path)
    authorities_bytes, authorities = b"", list[x509.Certificate]()
    if settings["tls-client"] != NONE:
        if not settings["tls-ca"]:
            raise ConfigurationError(
                f"tls-client: {settings['tls-client']} needs tls-ca, a file with the authorities "
                "of the clients' certificates"
            )
        authorities_bytes, authorities = read_certificates("tls-ca", settings["tls-ca"])
    context = _make_context(settings, chain, key, authorities)
    parts = certificates, key_bytes, authorities_bytes, *map(str.encode, _texts(settings))
    digest = sha256(b"".join(sha256(part).digest() for part in parts)).digest()
    return ServerTls(digest, _ends(chain, authorities), context)


def _ends(
    chain: Sequence[x509.Certificate], authorities: Sequence[x509.Certificate]
) -> list[CertificateEnd]:
    """Return the ends of the certificates of a listener, one or two of each file."""
    found = ends_of("tls-cert", chain)
    if authorities:
        found.append(end_of("tls-ca", min(authorities, key=_expiry)))
    return found


def ends_of(setting: str, chain: Sequence[x509.Certificate]) -> list[CertificateEnd]:
    """Return the end of the first certificate, and that of one up to the authority before it."""
    if not chain:
        return []
    own, first = chain[0], min(chain, key=_expiry)
    return [end_of(setting, one) for one in ([own] if own is first else [own, first])]


def _expiry(certificate: x509.Certificate) -> datetime:
    return certificate.not_valid_after_utc


def end_of(setting: str, certificate: x509.Certificate) -> CertificateEnd:
    """Return the end of a certificate in the file of ``setting``."""
    return CertificateEnd(setting, subject_of(certificate), _expiry(certificate))


def _texts(settings: Mapping[str, Any]) -> list[str]:
    return [settings[name] for name in ("tls-client", "tls-min", "tls-ciphers")]


def _require_no_other(settings: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for settings that a listener without TLS cannot have."""
    for name, default in (("tls-key", ""), ("tls-ca", ""), ("tls-client", NONE)):
        if settings[name] != default:
            raise ConfigurationError(f"{name}: needs tls-cert, a file with the certificate")


def read_certificates(name: str, path: str) -> tuple[bytes, list[x509.Certificate]]:
    """Return the content of the file ``path`` and its certificates.

    ``name`` is the setting. Raises ConfigurationError.
    """
    data = read_file(name, path)
    try:
        found = x509.load_pem_x509_certificates(data)
    except ValueError:
        raise ConfigurationError(
            f"{name}: {path} has no certificate in PEM, or a damaged one; such a file has lines "
            "with BEGIN CERTIFICATE"
        ) from None
    if _is_cut_off(data):
        raise ConfigurationError(
            f"{name}: {path} is cut off, its last lines have no END; perhaps it is still being "
            "written"
        )
    return data, found


def _is_cut_off(data: bytes) -> bool:
    """Return whether the end of a file in PEM is missing, which cryptography does not notice."""
    last = data.rstrip().rpartition(b"\n")[2]
    return data.count(_BEGIN) != data.count(_END) or (
        last.startswith(b"-") and not (last.startswith(_END) and last.endswith(b"-----"))
    )


def read_key(
    name: str, path: str, certificate: x509.Certificate, certificate_path: str
) -> tuple[CertificateIssuerPrivateKeyTypes, bytes]:
    """Return the private key of ``certificate`` and the content of its file, ``path``.

    ``name`` is the setting. Raises ConfigurationError.
    """
    data = read_file(name, path)
    try:
        key = load_pem_private_key(data, None)
    except TypeError:
        raise ConfigurationError(
            f"{name}: {path} is encrypted; give a key without a passphrase, which "
            "`openssl pkey -in FILE -out NEW` writes"
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        hint = "; give the file that has it" if path == certificate_path else ", or a damaged one"
        raise ConfigurationError(f"{name}: {path} has no private key in PEM{hint}") from None
    if _public_bytes(key.public_key()) != _public_bytes(certificate.public_key()):
        raise ConfigurationError(
            f"{name}: {path} does not belong to the first certificate in {certificate_path}; give "
            "the key that this certificate was issued for"
        )
    # Its group may be that of all servers with certificates.
    warn_if_readable(name, path, by_group=False)
    return key, data  # type: ignore[return-value]


def _public_bytes(key: Any) -> bytes:
    found: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found


def _make_context(
    settings: Mapping[str, Any],
    chain: Sequence[x509.Certificate],
    key: CertificateIssuerPrivateKeyTypes,
    authorities: Sequence[x509.Certificate],
) -> SSL.Context:
    context = SSL.Context(SSL.TLS_SERVER_METHOD)
    context.set_min_proto_version(_VERSIONS[settings["tls-min"]])
    context.set_options(_SAFE)
    # Sessions are resumed by tickets, which clients keep. Those of clients without tickets would be
    # kept by OpenSSL, up to 20,480 for each listener.
    context.set_session_cache_mode(SSL.SESS_CACHE_OFF)
    # An idle connection then takes no buffers.
    context.set_mode(SSL.MODE_RELEASE_BUFFERS)
    add_callback(context)
    _set_ciphers(context, settings["tls-ciphers"])
    try:
        context.use_certificate(chain[0])
        for one in chain[1:]:
            context.add_extra_chain_cert(one)
        context.use_privatekey(key)  # type: ignore[arg-type]
    except (SSL.Error, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"tls-cert: {settings['tls-cert']} cannot be used: {reason_of(error)}"
        ) from None
    if authorities:
        _verify_clients(context, authorities, settings["tls-client"] == REQUIRED)
    return context


def add_callback(context: SSL.Context) -> None:
    """Let ``context`` choose the protocol of a connection.

    Raises ConfigurationError if the process may not have a callback, which takes memory that is
    writable and executable.
    """
    try:
        context.set_alpn_select_callback(_choose_protocol)
    except MemoryError:
        raise ConfigurationError(
            "TLS: the system refuses memory that is writable and executable, which callbacks of "
            "OpenSSL need; remove MemoryDenyWriteExecute= from the unit of the service"
        ) from None


def _set_ciphers(context: SSL.Context, ciphers: str) -> None:
    try:
        context.set_cipher_list(ciphers.encode())
    except (SSL.Error, ValueError):
        raise ConfigurationError(
            f"tls-ciphers: {ciphers!r} is not a cipher suite of TLS 1.2; `openssl ciphers -v LIST` "
            "shows those of a list"
        ) from None


def _verify_clients(
    context: SSL.Context, authorities: Sequence[x509.Certificate], required: bool
) -> None:
    trust(context, authorities)
    for authority in authorities:
        context.add_client_ca(authority)
    mode = SSL.VERIFY_PEER | (SSL.VERIFY_FAIL_IF_NO_PEER_CERT if required else 0)
    context.set_verify(mode, _note_error)
    # A certificate is verified in each handshake: a resumed session would skip that.
    context.set_options(SSL.OP_NO_TICKET)


def trust(context: SSL.Context, certificates: Sequence[x509.Certificate]) -> None:
    """Accept chains that end with one of ``certificates``, and these certificates themselves.

    An authority among them need not be a root: others that the same root has issued are not
    trusted then.
    """
    store = context.get_cert_store()
    assert store is not None
    for one in certificates:
        store.add_cert(X509.from_cryptography(one))
    store.set_flags(X509StoreFlags.PARTIAL_CHAIN)


def _note_error(connection: SSL.Connection, _certificate: object, number: int, _depth: int,
                is_good: int) -> bool:  # fmt: skip
    """Keep the number of OpenSSL's error, which the error of the handshake does not have."""
    if not is_good:
        connection.get_app_data().verify_error = number
    return bool(is_good)


def _choose_protocol(connection: SSL.Connection, offered: list[bytes]) -> bytes:
    """Return the first of the listener's protocols that the client offers (ALPN, RFC 7301)."""
    for protocol in connection.get_app_data().acceptable_protocols():
        if protocol in offered:
            found: bytes = protocol
            return found
    raise SSL.Error([("SSL routines", "", "no application protocol")])


def reason_of(error: BaseException) -> str:
    """Return OpenSSL's text of ``error``."""
    queue = error.args[0] if error.args else ""
    if isinstance(queue, list):
        return str(queue[-1][-1]) if queue else "unexpected end"
    return str(error.args[-1]) if error.args else type(error).__name__


def subject_of(certificate: x509.Certificate) -> str:
    """Return the first DNS name of ``certificate``, else its subject, on one line."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        found = [str(name) for name in names.get_values_for_type(x509.DNSName)]
    except (x509.ExtensionNotFound, ValueError):
        found = []
    return _shown(found[0] if found else certificate.subject.rfc4514_string())


def _shown(text: str) -> str:
    return text if text.isprintable() else ascii(text)
