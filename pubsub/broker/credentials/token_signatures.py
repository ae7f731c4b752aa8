"""The signatures of tokens (RFC 7515), verified with PyJWT.

Clients that sign a token for each request send the same header each time. Of a header with which a
token was verified, the outcome of its checks is remembered, and so is the prepared key of a secret:
these take most of the time of a verification.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable
from typing import Any, NamedTuple

import jwt

from pubsub.broker.credentials.master_secrets import (
    HMACS,
    PUBLIC_ALGORITHMS,
    MasterSecret,
    SecretRing,
)
from pubsub.errors import BadToken

# Headers that are remembered, at most, and the bytes of the longest one.
_HEADERS, _HEADER_BYTES = 64, 512
_WRONG = (jwt.InvalidTokenError, jwt.InvalidKeyError, UnicodeError)


class _KnownHeader(NamedTuple):
    kid: str | None
    algorithm: str


class TokenSignatures:
    """Verifies the signatures of tokens with the secrets of a ring."""

    def __init__(self) -> None:
        self._signatures = _signatures()
        self._headers: dict[bytes, _KnownHeader] = {}
        self._keys: dict[str, tuple[MasterSecret, Any]] = {}
        self.key_missing: Callable[[], object] = lambda: None
        """Called when a token names a public key that is not in the ring. The token is refused."""

    def forget_keys(self) -> None:
        """Forget the prepared keys of secrets."""
        self._keys.clear()

    def verified(self, raw: bytes, ring: SecretRing, now: float) -> tuple[bytes, MasterSecret]:
        """Return the signed bytes of a token, and the secret that verifies it; raises BadToken."""
        decoded = _decoded(raw)
        if decoded is None:
            raise BadToken("malformed token")
        start = raw.partition(b".")[0]
        known = self._headers.get(start) if len(decoded) == 3 else None
        header = known or self._header_of(raw)
        candidates = ring.candidates(header.kid, header.algorithm, now)
        if header.kid is not None and not candidates and header.algorithm in PUBLIC_ALGORITHMS:
            self.key_missing()
        for secret in candidates:
            if known is not None:
                if self._is_signed(raw, decoded[2], secret):
                    return decoded[1], secret
                continue
            try:
                # The secret determines the algorithm; the header must agree with it.
                signed: bytes = self._signatures.decode(raw, secret.key, [secret.algorithm])
            except _WRONG:
                continue
            self._remember(start, header)
            return signed, secret
        raise BadToken("no secret verifies the token")

    def _header_of(self, raw: bytes) -> _KnownHeader:
        try:
            header = self._signatures.get_unverified_header(raw)
        except (jwt.InvalidTokenError, UnicodeError):
            raise BadToken("malformed token") from None
        return _KnownHeader(header.get("kid"), header.get("alg", ""))

    def _is_signed(self, raw: bytes, signature: bytes, secret: MasterSecret) -> bool:
        """Return whether this is the signature by ``secret`` of a token with a known header."""
        algorithm = self._signatures.get_algorithm_by_name(secret.algorithm)
        found = self._keys.get(secret.id)
        if found is None or found[0] is not secret:
            found = self._keys[secret.id] = secret, algorithm.prepare_key(secret.key)
        return algorithm.verify(raw[: raw.rindex(b".")], found[1], signature)

    def _remember(self, start: bytes, header: _KnownHeader) -> None:
        if len(start) <= _HEADER_BYTES:
            if len(self._headers) >= _HEADERS:
                del self._headers[next(iter(self._headers))]
            self._headers[start] = header


def _signatures() -> jwt.PyJWS:
    """Return what verifies signatures, without warnings of short keys.

    Weak secrets are refused when they are read, or allowed with --allow-weak-secret. A filter of
    warnings would hold for the whole process, which may be another program's.
    """
    made = jwt.PyJWS()
    for name in HMACS:
        made.get_algorithm_by_name(name).check_key_length = _accept  # type: ignore[assignment, method-assign]
    return made


def _accept(_key: object) -> str | None:
    """Accept a key of any length."""
    return None


def _decoded(raw: bytes) -> list[bytes] | None:
    """Return the bytes of the parts of a token; None if ``raw`` is not their canonical encoding.

    Decoders accept other encodings of the same token, each of which would take a cache entry.
    """
    parts = raw.split(b".")
    try:
        decoded = [urlsafe_b64decode(part + b"=" * (-len(part) % 4)) for part in parts]
    except ValueError:
        return None
    canonical = [urlsafe_b64encode(part).rstrip(b"=") for part in decoded] == parts
    return decoded if canonical else None
