"""KeyUpdate messages of TLS 1.3, which Python's ``ssl`` cannot send (RFC 8446 §4.6.3)."""

from __future__ import annotations

import struct

from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

REQUESTED = b"\x18\x00\x00\x01\x01"
"""KeyUpdate that asks the other end to update its keys too."""
_HANDSHAKE, _APPLICATION = 22, 23


def _expand(secret: bytes, label: bytes, length: int) -> bytes:
    """HKDF-Expand-Label (RFC 8446 §7.1)."""
    label = b"tls13 " + label
    info = struct.pack("!HB", length, len(label)) + label + b"\0"
    return HKDFExpand(SHA384(), length, info).derive(secret)


class Sender:
    """The records of a client with TLS_AES_256_GCM_SHA384 from its first application data on.

    ``secret`` is CLIENT_TRAFFIC_SECRET_0 of the client's key log. The client itself must not have
    sent any application data, and must not send more.
    """

    def __init__(self, secret: bytes) -> None:
        self._use(secret)

    def _use(self, secret: bytes) -> None:
        self._secret = secret
        self._cipher = AESGCM(_expand(secret, b"key", 32))
        self._iv = int.from_bytes(_expand(secret, b"iv", 12), "big")
        self._number = 0

    def _record(self, kind: int, data: bytes) -> bytes:
        head = struct.pack("!BHH", _APPLICATION, 0x0303, len(data) + 1 + 16)
        nonce = (self._iv ^ self._number).to_bytes(12, "big")
        self._number += 1
        return head + self._cipher.encrypt(nonce, data + bytes([kind]), head)

    def data(self, data: bytes) -> bytes:
        """Return the record of application data."""
        return self._record(_APPLICATION, data)

    def update(self) -> bytes:
        """Return the record of a KeyUpdate; later records use the next keys."""
        record = self._record(_HANDSHAKE, REQUESTED)
        self._use(_expand(self._secret, b"traffic upd", 48))
        return record
