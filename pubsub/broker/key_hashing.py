"""Hashes of queue keys: the history's file does not contain the keys, and guessing one is slow.

A key is only ever compared, so a hash is sufficient: scrypt with a random salt of the store. The
salt is the same for all keys, so an unknown key costs one hash and not one for each topic.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from hashlib import scrypt

SALT_BYTES = 32
# About 10 ms and 4 MiB a guess. The broker pays it too, once for each key after a restart.
_COST = 2**12
_BLOCK = 8
_CACHED = 1024


class KeyHasher:
    """Hashes keys with ``salt``; may be used in any thread."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self.hash = lru_cache(maxsize=_CACHED)(self._hash)

    def _hash(self, key: bytes) -> bytes:
        return scrypt(key, salt=self._salt, n=_COST, r=_BLOCK, p=1)

    def matches(self, hashed: bytes, key: bytes) -> bool:
        """Return whether ``hashed`` is the hash of ``key``; compares in constant time."""
        return hmac.compare_digest(self.hash(key), hashed)
