"""The files of master secrets, of public keys, and of tokens that are denied."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from math import inf

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from jwt import PyJWK
from jwt.exceptions import PyJWTError

from pubsub.broker.credentials.master_secrets import PUBLIC_ALGORITHMS, DenyList, MasterSecret
from pubsub.broker.credentials.setting_files import read_file, warn_if_readable
from pubsub.errors import ConfigurationError
from pubsub.small_file import read_regular

MIN_SECRET = 32
_MIN_RSA = 2048
# Of one set; each may be tried for a token without a key id.
_MAX_KEYS = 100
_MAX_KID = 256


def read_secret(id: str, path: str, algorithm: str, ends: float, allow_weak: bool) -> MasterSecret:
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
    warn_if_readable(f"secret {id!r}", path)
    return MasterSecret(id, algorithm, secret, ends)


def read_public_key(id: str, path: str, ends: float) -> MasterSecret:
    """Return the public key in a PEM file: Ed25519, RSA or P-256; raises ConfigurationError."""
    try:
        key = load_pem_public_key(_read(id, path))
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"secret {id!r}: {path} is not a PEM public key") from None
    algorithm = algorithm_of(key)
    if not algorithm:
        raise ConfigurationError(
            f"secret {id!r}: {path} is not a key of Ed25519, P-256, or RSA with 2048 bits or more"
        )
    return MasterSecret(id, algorithm, key, ends)


def algorithm_of(key: object) -> str:
    """Return the algorithm of tokens that a public key verifies; empty if there is none."""
    if isinstance(key, Ed25519PublicKey):
        return "EdDSA"
    if isinstance(key, EllipticCurvePublicKey) and isinstance(key.curve, SECP256R1):
        return "ES256"
    if isinstance(key, RSAPublicKey) and key.key_size >= _MIN_RSA:
        return "RS256"
    return ""


def read_key_set(id: str, path: str, ends: float) -> list[MasterSecret]:
    """Return the public keys of a JSON Web Key Set (RFC 7517) in a file.

    Raises ConfigurationError.
    """
    try:
        return parse_key_set(id, _read(id, path), ends)
    except ValueError as error:
        raise ConfigurationError(f"secret {id!r}: {path}: {error}") from None


def parse_key_set(id: str, content: bytes, ends: float = inf) -> list[MasterSecret]:
    """Return the public keys of a JSON Web Key Set (see ``key_set``); raises ValueError."""
    try:
        found = json.loads(content)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return key_set(id, found, ends)


def key_set(id: str, found: object, ends: float = inf) -> list[MasterSecret]:
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
            secrets.append(MasterSecret(f"{id}/{kid or number}", algorithm, key, ends, kid=kid))
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
        lines = read_regular(path).decode().splitlines()
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
    return read_file(f"secret {id!r}", path)
