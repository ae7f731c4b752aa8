"""The master secrets: a ring of several valid secrets, each with an id and an end.

A secret verifies the tokens that were signed with it. A token with a key id (``kid``) is checked
against that secret only, any other token against every secret of its algorithm.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from math import inf
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from twisted.logger import Logger

from pubsub.errors import ConfigurationError

log = Logger()
HMACS = ("HS256", "HS384", "HS512")
ALGORITHMS = (*HMACS, "EdDSA")
MIN_SECRET = 32
_READABLE_BY_OTHERS = stat.S_IRGRP | stat.S_IROTH


@dataclass(frozen=True, slots=True)
class Secret:
    """One master secret. ``key`` is the secret's bytes, or a public key for EdDSA.

    ``ends`` is in seconds since the Unix epoch; infinite by default.
    """

    id: str
    algorithm: str
    key: Any = field(repr=False)
    ends: float = inf


class SecretRing:
    """The configured secrets."""

    def __init__(self, secrets: Iterable[Secret] = ()) -> None:
        self._secrets = {secret.id: secret for secret in secrets}

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def __iter__(self) -> Iterator[Secret]:
        return iter(self._secrets.values())

    def __contains__(self, secret: Secret) -> bool:
        return self._secrets.get(secret.id) == secret

    def end(self, secret: Secret) -> float:
        """Return when ``secret`` ends by the current configuration; minus infinity if removed."""
        current = self._secrets.get(secret.id)
        if current is None or (current.algorithm, current.key) != (secret.algorithm, secret.key):
            return -inf
        return current.ends

    def candidates(self, kid: str | None, algorithm: object, now: float) -> list[Secret]:
        """Return the secrets that can have signed a token with this header."""
        return [
            secret
            for secret in self._secrets.values()
            if secret.algorithm == algorithm
            and now < secret.ends
            and (kid is None or kid == secret.id)
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
    if os.stat(path).st_mode & _READABLE_BY_OTHERS:
        log.warn("secret {id!r}: {path} can be read by others; chmod 600 it", id=id, path=path)
    return Secret(id, algorithm, secret, ends)


def read_public_key(id: str, path: str, ends: float) -> Secret:
    """Return the Ed25519 public key in a PEM file; raises ConfigurationError."""
    try:
        key = load_pem_public_key(_read(id, path))
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(f"secret {id!r}: {path} is not a PEM public key") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigurationError(f"secret {id!r}: {path} is not an Ed25519 key")
    return Secret(id, "EdDSA", key, ends)


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
