"""Hashes of queue keys: the history's file does not contain the keys, and guessing one is slow.

A key is only ever compared, so a hash is sufficient: scrypt with a random salt of the store. The
salt is the same for all keys of a store, so an unknown key costs one hash and not one for each
topic. Brokers that share topics have the hashes of one another, with their salts.

A key that replaces another one is passed on to brokers that know the old one by ``seal``.
"""

from __future__ import annotations

import hmac
import secrets
from functools import lru_cache
from hashlib import scrypt

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

SALT_BYTES = 32
HASH_BYTES = 64
# About 10 ms and 4 MiB a guess. The broker pays it too, once for each key after a restart.
_COST = 2**12
_BLOCK = 8
_CACHED = 1024
_SEAL = b"pubsub seal: "
_NONCE_BYTES = 12


class QueueKeyHasher:
    """Hashes keys with ``salt``; may be used in any thread."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self._hash = lru_cache(maxsize=_CACHED)(_scrypt)

    def hash(self, key: bytes) -> bytes:
        """Return the hash of ``key`` with this store's salt, without it."""
        return self._hash(self._salt, key)

    def make(self, key: bytes) -> bytes:
        """Return the salt and the hash of ``key``."""
        return self._salt + self.hash(key)

    def with_salt(self, hashed: bytes) -> bytes:
        """Return the salt and the hash, for one that ``hash`` or ``make`` has returned."""
        return self._salt + hashed if len(hashed) <= HASH_BYTES else hashed

    def matches(self, hashed: bytes, key: bytes) -> bool:
        """Return whether ``hashed`` is the hash of ``key``; compares in constant time."""
        whole = self.with_salt(hashed)
        salt, expected = whole[:SALT_BYTES], whole[SALT_BYTES:]
        return hmac.compare_digest(self._hash(salt, key), expected)

    def after(self, hashed: bytes, before: bytes, sealed: bytes, topic: str) -> bytes:
        """Return the key with the hash ``hashed`` if that before or ``sealed`` shows it, or b""."""
        if self.matches(hashed, before):
            return before
        key = unseal(before, sealed, topic) if sealed else None
        return key if key is not None and self.matches(hashed, key) else b""


def _scrypt(salt: bytes, key: bytes) -> bytes:
    return scrypt(key, salt=salt, n=_COST, r=_BLOCK, p=1)


def seal(old: bytes, new: bytes, topic: str) -> bytes:
    """Return the key ``new`` of ``topic``, encrypted with the key ``old``; as slow as a hash."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return nonce + AESGCM(_sealing_key(old, nonce)).encrypt(nonce, new, topic.encode())


def unseal(old: bytes, sealed: bytes, topic: str) -> bytes | None:
    """Return the key that ``seal`` was given; None if ``old`` is not the key before."""
    nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
    try:
        return AESGCM(_sealing_key(old, nonce)).decrypt(nonce, rest, topic.encode())
    except (InvalidTag, ValueError):
        return None


def _sealing_key(old: bytes, nonce: bytes) -> bytes:
    return _scrypt(_SEAL + nonce, old)[:32]
