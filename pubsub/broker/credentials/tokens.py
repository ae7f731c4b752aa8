"""Tokens: JSON Web Tokens, verified with the master secrets and cached once verified.

Verifying a signature takes tens of microseconds, a look-up in the cache a fraction of one. Only
verified tokens are cached, so forged tokens can neither fill the cache nor evict others from it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

from pubsub.broker.credentials.master_secrets import MasterSecret, SecretRing
from pubsub.broker.credentials.token_signatures import TokenSignatures
from pubsub.errors import BadToken

if TYPE_CHECKING:
    from pubsub.broker.memory_budget import MemoryBudget

CACHED = 10_000
# Bytes of all tokens in the cache: an issuer may sign tokens of many KiB.
_MAX_BYTES = 32 * 1024**2
# Estimated bytes of a token with its entry, beside its text, and of a permission or audience.
_TOKEN_BYTES, _ITEM_BYTES = 1024, 100
TOKEN_START = b"eyJ"
"""The first bytes of every JSON Web Token: an object in JSON, in base64."""
ALL, ADMIN = "*", "admin"
"""Permissions that include the others: all that the issuer may give, and all there are."""


@dataclass(frozen=True, slots=True)
class Token:
    """The claims of a verified token. Times are in seconds since the Unix epoch."""

    subject: str
    queue_key: bytes = field(repr=False)
    permissions: frozenset[str]
    expires: float
    not_before: float
    secret: MasterSecret
    id: str = ""
    issuer: str = ""
    audience: frozenset[str] = frozenset()

    @property
    def holder(self) -> tuple[str, str]:
        """The subject and the id of its issuer: access rules decide by them."""
        return self.subject, self.secret.source

    def permits(self, permission: str) -> bool:
        """Return whether the token grants ``permission``, which its issuer has to be allowed to."""
        claimed, allowed = self.permissions, self.secret.actions
        if allowed is not None and permission not in allowed:
            return False
        if permission in claimed or ALL in claimed:
            return True
        return ADMIN in claimed and (allowed is None or ADMIN in allowed)


class TokenVerifier:
    """Verifies tokens; ``hits`` and ``misses`` count look-ups in the cache.

    With ``memory`` the cache is charged there, and emptied when that is full.
    """

    def __init__(self, ring: SecretRing, memory: MemoryBudget | None = None) -> None:
        self._ring = ring
        self.signatures = TokenSignatures()
        self._verified: dict[bytes, Token] = {}
        self._account = None if memory is None else memory.cache(_MAX_BYTES, self._verified.clear)
        self.version = 0
        """Changes when the secrets do."""
        self.hits = 0
        self.misses = 0

    @property
    def ring(self) -> SecretRing:
        """The current secrets."""
        return self._ring

    def replace(self, ring: SecretRing) -> None:
        """Replace the secrets and clear the cache."""
        self._ring = ring
        self.signatures.forget_keys()
        self.version += 1
        self._forget(tuple(self._verified))

    def __len__(self) -> int:
        return len(self._verified)

    def known(self, raw: bytes) -> bool:
        """Return whether this token is cached, so that ``check`` verifies no signature."""
        return raw in self._verified

    def check(self, raw: bytes, now: float) -> Token:
        """Return the token; raises BadToken if it is forged, malformed or not valid now."""
        token = self._verified.get(raw)
        if token is None:
            self.misses += 1
            signed, secret = self.signatures.verified(raw, self._ring, now)
            token = _token(_claims(signed), secret)
            problem = self._ring.problem(token)
            if problem:
                raise BadToken(problem)
            self._check_time(token, now)
            self._remember(raw, token)
        else:
            self.hits += 1
            self._check_time(token, now)
        return token

    def valid(self, token: Token, now: float) -> bool:
        """Return whether a verified token is still valid."""
        return token.not_before <= now < self.end(token)

    def end(self, token: Token) -> float:
        """Return when a verified token ends, by its own claim or with its secret.

        That is minus infinity if it is not accepted any more.
        """
        if self._ring.problem(token):
            return -inf
        return min(token.expires, self._ring.end(token.secret))

    def forget_key(self, queue_key: bytes) -> None:
        """Remove tokens with a queue key that is no longer used from the cache."""
        self._forget([raw for raw, token in self._verified.items() if token.queue_key == queue_key])

    def _check_time(self, token: Token, now: float) -> None:
        if now >= self.end(token):
            raise BadToken("the token has expired")
        if now < token.not_before:
            raise BadToken("the token is not valid yet")

    def _remember(self, raw: bytes, token: Token) -> None:
        if len(self._verified) >= CACHED:
            self._forget([next(iter(self._verified))])
        self._verified[raw] = token
        if self._account is not None:
            self._account.charge(_nbytes_of(raw, token))

    def _forget(self, stale: Sequence[bytes]) -> None:
        """Remove tokens from the cache. Its account is last: it can release publishers."""
        nbytes = sum([_nbytes_of(raw, self._verified.pop(raw)) for raw in stale])
        if self._account is not None:
            self._account.charge(-nbytes)


def _nbytes_of(raw: bytes, token: Token) -> int:
    items = len(token.permissions) + len(token.audience)
    return _TOKEN_BYTES + 2 * len(raw) + _ITEM_BYTES * items


def _claims(signed: bytes) -> dict[str, Any]:
    """Return the claims of a verified token.

    exp and nbf are checked at every use, with the broker's clock; iss, aud and jti by the ring.
    """
    try:
        claims = json.loads(signed)
    except (ValueError, RecursionError):
        raise BadToken("malformed token") from None
    if not isinstance(claims, dict):
        raise BadToken("malformed token")
    return claims


def _token(claims: dict[str, Any], secret: MasterSecret) -> Token:
    return Token(
        _text(claims, "sub"),
        _text(claims, "queue_key").encode(),
        _permissions(claims.get("permissions", [])),
        _time(claims, "exp", inf),
        _time(claims, "nbf", -inf),
        secret,
        str(claims.get("jti", "")),
        str(claims.get("iss", "")),
        _audience(claims.get("aud", [])),
    )


def _audience(value: object) -> frozenset[str]:
    listed = [value] if isinstance(value, str) else value
    return (
        frozenset(one for one in listed if isinstance(one, str))
        if isinstance(listed, list)
        else frozenset()
    )


def _text(claims: dict[str, Any], claim: str) -> str:
    value = claims.get(claim, "")
    if not isinstance(value, str):
        raise BadToken(f"{claim}: expected text")
    try:
        value.encode()
    except UnicodeError:
        # A lone surrogate, which JSON can express and UTF-8 cannot.
        raise BadToken(f"{claim}: expected valid UTF-8") from None
    return value


def _permissions(value: object) -> frozenset[str]:
    permissions = [value] if isinstance(value, str) else value
    if not isinstance(permissions, list) or not all(isinstance(p, str) for p in permissions):
        raise BadToken("permissions: expected text or a list of text")
    return frozenset(permissions)


def _time(claims: dict[str, Any], claim: str, default: float) -> float:
    value = claims.get(claim, default)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken(f"{claim}: expected a number")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = inf
    if claim in claims and not isfinite(seconds):
        raise BadToken(f"{claim}: expected a number")
    return seconds
