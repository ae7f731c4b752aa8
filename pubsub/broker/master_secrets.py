"""The master secrets: a ring of several valid secrets, each with an id and an end.

A secret verifies the tokens that were signed with it. A token with a key id (``kid``) is checked
against that secret only, any other token against every secret of its algorithm.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from math import inf
from typing import Any, Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK
from jwt.exceptions import PyJWTError
from twisted.logger import Logger

from pubsub.errors import ConfigurationError
from pubsub.settings import is_credential

log = Logger()
HMACS = ("HS256", "HS384", "HS512")
ALGORITHMS = (*HMACS, "EdDSA")
"""Those of the tokens that this project makes."""
PUBLIC_ALGORITHMS = ("EdDSA", "ES256", "RS256")
MIN_SECRET = 32
REFRESH_SECONDS = 300.0
_MIN_RSA = 2048
# Of one set; each may be tried for a token without a key id.
_MAX_KEYS = 100
_MAX_KID = 256
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


@dataclass(frozen=True, slots=True)
class Secret:
    """One master secret. ``key`` is the secret's bytes, or a public key.

    ``ends`` is in seconds since the Unix epoch; infinite by default. A token of this secret must
    have ``issuer`` as its ``iss``, and one of ``audience`` as its ``aud``, unless these are empty.
    ``kid`` is the key id in tokens, by default the ``id``. ``table`` is the id of the table of
    ``[keys]`` that the secret is from, by default the same. Its tokens permit no other than these
    ``actions``, whatever they claim; None stands for all.
    """

    id: str
    algorithm: str
    key: Any = field(repr=False)
    ends: float = inf
    issuer: str = ""
    audience: frozenset[str] = frozenset()
    kid: str = ""
    table: str = ""
    actions: frozenset[str] | None = None

    @property
    def source(self) -> str:
        """The id of the table of ``[keys]``, which access rules name as the issuer."""
        return self.table or self.id

    def grants_less(self, other: Secret) -> bool:
        """Return whether tokens of ``other`` permit something that those of this one do not."""
        if self.actions is None:
            return False
        return other.actions is None or not other.actions <= self.actions


@dataclass(frozen=True, slots=True)
class KeySource:
    """A JSON Web Key Set (RFC 7517) at ``url``: the table ``[keys.ID]`` with ``jwks-url``.

    ``ca`` is the file with the authorities to trust in place of the system's. The set is fetched
    every ``seconds``. ``ends``, ``issuer``, ``audience`` and ``actions`` are those of each
    ``Secret``.
    """

    id: str
    url: str = field(repr=False)
    ca: str = ""
    seconds: float = REFRESH_SECONDS
    ends: float = inf
    issuer: str = ""
    audience: frozenset[str] = frozenset()
    actions: frozenset[str] | None = None

    def secrets(self, keys: Iterable[Secret]) -> list[Secret]:
        """Return ``keys``, which were fetched, with what is asked of tokens of this source."""
        return [
            replace(
                key,
                ends=self.ends,
                issuer=self.issuer,
                audience=self.audience,
                table=self.id,
                actions=self.actions,
            )
            for key in keys
        ]

    def is_at(self, other: KeySource) -> bool:
        """Return whether the keys come from the same place as those of ``other``."""
        return (self.id, self.url, self.ca) == (other.id, other.url, other.ca)


@dataclass(frozen=True, slots=True)
class DenyList:
    """Tokens that are not accepted any more: by their id (``jti``) or their subject."""

    ids: frozenset[str] = frozenset()
    subjects: frozenset[str] = frozenset()


class TokenClaims(Protocol):
    """What decides whether a token that is signed well is accepted."""

    @property
    def subject(self) -> str: ...

    @property
    def id(self) -> str: ...

    @property
    def issuer(self) -> str: ...

    @property
    def audience(self) -> frozenset[str]: ...

    @property
    def secret(self) -> Secret: ...


class SecretRing:
    """The configured secrets, and the tokens that are ``denied`` all the same.

    ``sources`` are the sets of public keys that are fetched, and ``fetched`` has the keys of those
    that have some, by the id of the source.
    """

    def __init__(
        self,
        secrets: Iterable[Secret] = (),
        denied: DenyList = DenyList(),
        sources: Iterable[KeySource] = (),
        fetched: Mapping[str, tuple[Secret, ...]] | None = None,
    ) -> None:
        self._configured = tuple(secrets)
        self.denied = denied
        self.sources = tuple(sources)
        self.fetched = fetched or {}
        keys = [key for one in self.sources for key in one.secrets(self.fetched.get(one.id, ()))]
        # In this order, so that no key that is fetched takes the id of a configured secret.
        self._secrets = {secret.id: secret for secret in (*keys, *self._configured)}

    @property
    def has_issuers(self) -> bool:
        """Whether a source of tokens is configured, whatever it has issued and for how long."""
        return bool(self._secrets or self.sources)

    def with_keys(self, id: str, keys: tuple[Secret, ...]) -> SecretRing:
        """Return this ring with other keys of the source ``id``."""
        fetched = {**self.fetched, id: keys}
        return SecretRing(self._configured, self.denied, self.sources, fetched)

    def carrying(self, before: SecretRing) -> SecretRing:
        """Return this ring with the keys that ``before`` has of the same sources."""
        known = {source.id: source for source in before.sources}
        fetched = {
            source.id: before.fetched[source.id]
            for source in self.sources
            if source.id in before.fetched and source.is_at(known[source.id])
        }
        return SecretRing(self._configured, self.denied, self.sources, fetched)

    def __iter__(self) -> Iterator[Secret]:
        return iter(self._secrets.values())

    def __contains__(self, secret: Secret) -> bool:
        return self._secrets.get(secret.id) == secret

    def end(self, secret: Secret) -> float:
        """Return when ``secret`` ends by the current configuration.

        That is minus infinity if it was removed, or permits less than it did.
        """
        current = self._secrets.get(secret.id)
        if current is None or (current.algorithm, current.key) != (secret.algorithm, secret.key):
            return -inf
        if current.grants_less(secret):
            return -inf
        return current.ends

    def problem(self, token: TokenClaims) -> str:
        """Return why ``token`` is not accepted, or an empty text; its signature is good."""
        if token.id in self.denied.ids:
            return "the token is denied"
        if token.subject in self.denied.subjects:
            return "the subject is denied"
        secret = self._secrets.get(token.secret.id, token.secret)
        if secret.issuer and token.issuer != secret.issuer:
            return "iss: another issuer"
        if secret.audience and secret.audience.isdisjoint(token.audience):
            return "aud: for another audience"
        return ""

    def candidates(self, kid: str | None, algorithm: object, now: float) -> list[Secret]:
        """Return the secrets that can have signed a token with this header."""
        return [
            secret
            for secret in self._secrets.values()
            if secret.algorithm == algorithm
            and now < secret.ends
            and (kid is None or kid == (secret.kid or secret.id))
        ]


def read_secret(id: str, path: str, algorithm: str, ends: float, allow_weak: bool) -> Secret:
    """Return the HMAC secret in the file ``path``, without a newline at the end.

    Raises ConfigurationError.
    """
    secret = _read(id, path)
    secret = secret.removesuffix(b"\n")
    if len(secret) < MIN_SECRET and not allow_weak:
        raise ConfigurationError(
            f"secret {id!r}: {path} holds {len(secret)} bytes, fewer than {MIN_SECRET}; "
            "make a new one with `pubsub secret FILE`, or give --allow-weak-secret"
        )
    if not secret:
        raise ConfigurationError(f"secret {id!r}: {path} is empty")
    if os.stat(path).st_mode & _READABLE_BY_OTHERS and not is_credential(path):
        log.warn("secret {id!r}: {path} can be read by others; chmod 600 it", id=id, path=path)
    return Secret(id, algorithm, secret, ends)


def read_public_key(id: str, path: str, ends: float) -> Secret:
    """Return the public key in a PEM file: Ed25519, RSA or P-256; raises ConfigurationError."""
    try:
        key = load_pem_public_key(_read(id, path))
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"secret {id!r}: {path} is not a PEM public key") from None
    algorithm = algorithm_of(key)
    if not algorithm:
        raise ConfigurationError(
            f"secret {id!r}: {path} is no key of Ed25519, P-256, or RSA with 2048 bits or more"
        )
    return Secret(id, algorithm, key, ends)


def algorithm_of(key: object) -> str:
    """Return the algorithm of tokens that a public key verifies; empty if there is none."""
    if isinstance(key, Ed25519PublicKey):
        return "EdDSA"
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return "ES256"
    if isinstance(key, RSAPublicKey) and key.key_size >= _MIN_RSA:
        return "RS256"
    return ""


def read_key_set(id: str, path: str, ends: float) -> list[Secret]:
    """Return the public keys of a JSON Web Key Set (RFC 7517) in a file.

    Raises ConfigurationError.
    """
    try:
        return parse_key_set(id, _read(id, path), ends)
    except ValueError as error:
        raise ConfigurationError(f"secret {id!r}: {path}: {error}") from None


def parse_key_set(id: str, content: bytes, ends: float = inf) -> list[Secret]:
    """Return the public keys of a JSON Web Key Set (see ``key_set``); raises ValueError."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return key_set(id, found, ends)


def key_set(id: str, found: object, ends: float = inf) -> list[Secret]:
    """Return the public keys of a JSON Web Key Set; keys for other purposes are left out.

    Raises ValueError.
    """
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list):
        raise ValueError("not a JSON Web Key Set, which has keys")
    secrets = []
    for number, entry in enumerate(listed[:_MAX_KEYS]):
        try:
            key = PyJWK(entry).key if entry.get("use", "sig") == "sig" else None
        except (PyJWTError, AttributeError, TypeError, ValueError):
            key = None
        algorithm = algorithm_of(key)
        if algorithm and entry.get("alg", algorithm) == algorithm:
            kid = str(entry.get("kid", ""))
            if len(kid) > _MAX_KID:
                continue
            secrets.append(Secret(f"{id}/{kid or number}", algorithm, key, ends, kid=kid))
    if not secrets:
        raise ValueError(f"no key for {', '.join(PUBLIC_ALGORITHMS)}")
    return secrets


def read_denied(path: str) -> DenyList:
    """Return the tokens and subjects that the file ``path`` denies.

    Each line is ``jti ID`` or ``sub SUBJECT``; empty lines and those that begin with # have no
    meaning. Raises ConfigurationError.
    """
    found: dict[str, set[str]] = {"jti": set(), "sub": set()}
    try:
        with open(path, encoding="utf-8") as file:
            lines = file.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigurationError(f"token-deny-file: {path}: {reason}") from None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        claim, _, value = line.strip().partition(" ")
        if claim not in found or not value.strip():
            raise ConfigurationError(
                f"token-deny-file: {path}, line {number}: expected jti ID or sub SUBJECT"
            )
        found[claim].add(value.strip())
    return DenyList(frozenset(found["jti"]), frozenset(found["sub"]))


def parse_end(value: object) -> float:
    """Return seconds since the Unix epoch from a TOML date-time or ISO 8601 text.

    The time zone is UTC if none is given.

    Raises ValueError.
    """
    when = datetime.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(when, datetime):
        raise ValueError(f"expected a date and time, not {value!r}")
    return (when if when.tzinfo is not None else when.replace(tzinfo=UTC)).timestamp()


def _read(id: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise ConfigurationError(f"secret {id!r}: {path}: {error.strerror}") from None
