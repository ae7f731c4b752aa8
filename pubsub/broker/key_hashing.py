"""Queue keys at rest: what the history's file holds is not the key, and costs work to guess.

A key is only ever compared, so its hash is enough: scrypt with the store's own random salt. One
salt for all keys means that a client whose key is not known yet costs one hash, not one a topic.
"""

from __future__ import annotations

import hmac
from functools import lru_cache
from hashlib import scrypt

SALT_BYTES = 32
# About 10 ms and 4 MiB a guess. It is the broker's own cost too, once a key after a restart.
_COST = 2**12
_BLOCK = 8
_REMEMBERED = 1024


class KeyHasher:
    """Hashes keys with ``salt``. It may be used in any thread."""

    def __init__(self, salt: bytes) -> None:
        self._salt = salt
        self.of = lru_cache(maxsize=_REMEMBERED)(self._hash)

    def _hash(self, key: bytes) -> bytes:
        return scrypt(key, salt=self._salt, n=_COST, r=_BLOCK, p=1)

    def matches(self, sealed: bytes, key: bytes) -> bool:
        """Is ``sealed`` the seal of ``key``?"""
        return hmac.compare_digest(self.of(key), sealed)
