"""PROXY headers, as proxies send them."""

from __future__ import annotations

import struct

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
"""The first bytes of version 2."""
LOCAL, PROXY = 0x20, 0x21
"""Commands of version 2."""
ADDRESSES = bytes((192, 0, 2, 9, 192, 0, 2, 1)) + struct.pack("!HH", 4000, 7070)
"""Addresses of IPv4 and their ports: the client, and the proxy."""


def field(kind: int, value: bytes) -> bytes:
    """Return an additional field of version 2."""
    return struct.pack("!BH", kind, len(value)) + value


def tls_field(name: bytes, flags: int = 0x07, failed: int = 0) -> bytes:
    """Return the field of TLS, with the common name of the client's certificate."""
    return field(
        0x20, struct.pack("!BI", flags, failed) + field(0x21, b"TLSv1.3") + field(0x22, name)
    )


def header(
    *fields: bytes, command: int = PROXY, family: int = 0x11, addresses: bytes = ADDRESSES
) -> bytes:
    """Return a header of version 2 with these fields."""
    body = addresses + b"".join(fields)
    return SIGNATURE + bytes((command, family)) + struct.pack("!H", len(body)) + body
