"""The PROXY header, in which a proxy sends the address of its client at the start of a connection.

Versions 1 and 2 of https://www.haproxy.org/download/2.6/doc/proxy-protocol.txt, to whose sections
the numbers refer. Twisted's own parsers raise various errors for malformed headers, take any text
for an address, and refuse the ``PROXY UNKNOWN`` of health checks. Knows no event loop.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress

from pubsub.wire.foreign_protocols import PROXY_HEADERS

_FIRST, _SECOND = PROXY_HEADERS
_END = b"\r\n"
# Bytes of a header of version 1, and of one of version 2 without its length, at most (§2.1, §2.2).
# The additional fields of version 2 have some hundred bytes, or a certificate.
_MAX_LINE, _MAX_BODY = 107, 16 * 1024
_HEAD = struct.Struct("!12sBBH")
_LOCAL, _PROXY = 0x20, 0x21
# By the family and the transport in version 2 (§2.2): two addresses, and two ports except for UNIX.
_LENGTHS = {0x11: 12, 0x12: 12, 0x21: 36, 0x22: 36, 0x31: 216, 0x32: 216}
_FAMILIES = {1: socket.AF_INET, 2: socket.AF_INET6, 3: socket.AF_UNIX}
_MAX_FAMILY, _MAX_TRANSPORT = 3, 2
_WORDS = {"TCP4": socket.AF_INET, "TCP6": socket.AF_INET6}
# Additional fields of version 2: that of TLS, and the client's common name in it.
_TLS, _COMMON_NAME = 0x20, 0x22
# Bits of the field of TLS: the client has presented a certificate, on this connection or an earlier
# one of the session.
_HAS_CERTIFICATE = 0x02 | 0x04
_FIELD = struct.Struct("!BH")
_CLIENT = struct.Struct("!BI")


class BadHeader(ValueError):
    """A connection does not begin with a PROXY header."""


@dataclass(frozen=True, slots=True)
class ProxyHeader:
    """The addresses of the client and of the proxy that it has connected to; None if the proxy
    does not send them, as in its health checks.

    ``certified_name`` is the common name of the client's certificate, which the proxy has verified;
    or empty.
    """

    source: IPv4Address | IPv6Address | UNIXAddress | None = None
    destination: IPv4Address | IPv6Address | UNIXAddress | None = None
    certified_name: str = ""


def read_header(data: bytes) -> tuple[ProxyHeader, int] | None:
    """Return the header at the beginning of ``data`` and its length, or None if it is incomplete.

    Raises BadHeader if ``data`` does not begin with a header.
    """
    try:
        if data.startswith(_FIRST):
            return _read_line(data)
        if data.startswith(_SECOND):
            return _read_binary(data)
    except (ValueError, OSError):
        raise BadHeader from None
    if _FIRST.startswith(data) or _SECOND.startswith(data):
        return None
    raise BadHeader


def _read_line(data: bytes) -> tuple[ProxyHeader, int] | None:
    """Read version 1."""
    end = data.find(_END, 0, _MAX_LINE)
    if end < 0:
        if len(data) >= _MAX_LINE:
            raise BadHeader
        return None
    family, *words = data[len(_FIRST) : end].decode("ascii").split(" ")
    header = ProxyHeader()
    if family != "UNKNOWN":
        if family not in _WORDS or len(words) != 4:
            raise BadHeader
        kind = _WORDS[family]
        source, destination = (socket.inet_pton(kind, word) for word in words[:2])
        header = ProxyHeader(
            _internet(kind, source, _port(words[2])), _internet(kind, destination, _port(words[3]))
        )
    return header, end + len(_END)


def _port(word: str) -> int:
    port = int(word) if word.isdecimal() else -1
    if not 0 <= port <= 0xFFFF:
        raise BadHeader
    return port


def _read_binary(data: bytes) -> tuple[ProxyHeader, int] | None:
    """Read version 2."""
    if len(data) < _HEAD.size:
        return None
    _, command, kind, length = _HEAD.unpack_from(data)
    if command not in (_LOCAL, _PROXY) or length > _MAX_BODY:
        raise BadHeader
    end = _HEAD.size + length
    if len(data) < end:
        return None
    return ProxyHeader() if command == _LOCAL else _proxied(kind, data[_HEAD.size : end]), end


def _proxied(kind: int, body: bytes) -> ProxyHeader:
    """Return the header with ``kind``, a family and a transport, and the bytes after the length."""
    if kind >> 4 > _MAX_FAMILY or kind & 15 > _MAX_TRANSPORT:
        raise BadHeader
    length = _LENGTHS.get(kind, 0)
    if len(body) < length:
        raise BadHeader
    name = certified_name(body[length:])
    if not length:
        return ProxyHeader(certified_name=name)
    family = _FAMILIES[kind >> 4]
    if family == socket.AF_UNIX:
        return ProxyHeader(_unix(body[:108]), _unix(body[108:216]), name)
    size = (length - 4) // 2
    near, far = struct.unpack_from("!HH", body, 2 * size)
    return ProxyHeader(
        _internet(family, body[:size], near), _internet(family, body[size : 2 * size], far), name
    )


def _unix(path: bytes) -> UNIXAddress:
    return UNIXAddress(path.rstrip(b"\0") or None)


def _internet(family: socket.AddressFamily, host: bytes, port: int) -> IPv4Address | IPv6Address:
    made = IPv4Address if family == socket.AF_INET else IPv6Address
    return made("TCP", socket.inet_ntop(family, host), port)


def certified_name(fields: bytes) -> str:
    """Return the common name in the additional fields of version 2, if the proxy has verified it.

    Empty without such a certificate, and if the fields are malformed (§2.2.6).
    """
    try:
        tls = dict(_fields(fields)).get(_TLS, b"")
        if len(tls) < _CLIENT.size:
            return ""
        flags, failed = _CLIENT.unpack_from(tls)
        if failed or not flags & _HAS_CERTIFICATE:
            return ""
        return dict(_fields(tls[_CLIENT.size :])).get(_COMMON_NAME, b"").decode()
    except ValueError:
        return ""


def _fields(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the type and the value of each field; raises ValueError."""
    at = 0
    while at < len(data):
        if len(data) - at < _FIELD.size:
            raise ValueError
        kind, length = _FIELD.unpack_from(data, at)
        at += _FIELD.size
        if len(data) - at < length:
            raise ValueError
        yield kind, data[at : at + length]
        at += length
