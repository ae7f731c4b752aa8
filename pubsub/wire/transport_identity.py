"""The identity that a transport proves: a certificate, a user of this machine, an address."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from cryptography import x509
from cryptography.x509.oid import NameOID
from twisted.internet.interfaces import ISSLTransport
from twisted.protocols.policies import ProtocolWrapper

from pubsub.broker.credentials.identity import CERTIFICATE, SOCKET, Identity
from pubsub.wire.peer_address import UNIX, host_of
from pubsub.wire.proxy_protocol import ProxiedStream

MAX_NAME = 255
"""Bytes of a name, in UTF-8."""
# Linux's struct ucred: process, user and group.
_CREDENTIALS = struct.Struct("3i")


def identity_of(stream: Any, tls_identity: str) -> Identity:
    """Return the identity that ``stream`` proves; anonymous at its address if it proves none.

    ``tls_identity`` says which name of a certificate counts (see ``name_in``). Call this when the
    handshakes below the protocol are done.
    """
    host = host_of(stream.getPeer())
    while isinstance(stream, ProtocolWrapper):
        if isinstance(stream, ProxiedStream):
            # The lower layers belong to the proxy: its certificate, its process.
            return _certified(_usable(stream.certified_name), host)
        if ISSLTransport.providedBy(stream):
            return _certified(_certified_name(stream, tls_identity), host)
        stream = stream.transport
    if host == UNIX:
        user = _peer_user(stream)
        if user is not None:
            return Identity(f"uid:{user}", SOCKET, host=host)
    return Identity(host=host)


def _certified(name: str, host: str) -> Identity:
    return Identity(name, CERTIFICATE, host=host) if name else Identity(host=host)


def _certified_name(stream: Any, kind: str) -> str:
    """Return the name in the certificate that the client has proved to own; empty if none."""
    certificate = stream.getPeerCertificate()
    if certificate is None:
        return ""
    with suppress(ValueError):
        return name_in(certificate.to_cryptography(), kind)
    return ""


def name_in(certificate: x509.Certificate, kind: str) -> str:
    """Return the common name for ``cn``, or the first alternative name of ``kind``.

    Empty if there is none, or if it is too long or not printable, so that it could not be shown.
    Raises ValueError if the certificate cannot be parsed.
    """
    if kind == "cn":
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        names = [one.value for one in common if isinstance(one.value, str)]
    else:
        names = _alternative_names(certificate, kind)
    return _usable(names[0]) if names else ""


_KINDS: dict[str, Callable[[x509.SubjectAlternativeName], list[str]]] = {
    "dns": lambda names: names.get_values_for_type(x509.DNSName),
    "email": lambda names: names.get_values_for_type(x509.RFC822Name),
    "uri": lambda names: names.get_values_for_type(x509.UniformResourceIdentifier),
}


def _alternative_names(certificate: x509.Certificate, kind: str) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return _KINDS[kind](found.value)


def _usable(name: str) -> str:
    return name if name.isprintable() and len(name.encode()) <= MAX_NAME else ""


def _peer_user(transport: Any) -> int | None:
    """Return the user id of the process at the other end of a UNIX socket, if it can be known."""
    option = getattr(socket, "SO_PEERCRED", None)
    bottom = getattr(transport, "socket", None)
    if option is None or bottom is None:
        return None
    with suppress(OSError):
        raw = bottom.getsockopt(socket.SOL_SOCKET, option, _CREDENTIALS.size)
        user: int = _CREDENTIALS.unpack(raw)[1]
        # No user is known for a pair of sockets that was never connected.
        return user if user >= 0 else None
    return None
