"""Secrets and tokens made by hand, because libraries refuse to sign some of them."""

from __future__ import annotations

import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from pubsub.broker.credentials.master_secrets import MasterSecret

KEY = bytes(range(32))
OTHER_KEY = bytes(range(64, 96))
PRIVATE = Ed25519PrivateKey.from_private_bytes(KEY)
PUBLIC_PEM = PRIVATE.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)

_HASHES = {"HS256": hashlib.sha256, "HS384": hashlib.sha384, "HS512": hashlib.sha512}
Sign = Callable[[bytes], bytes]


def hmac_secret(
    id: str = "main", key: bytes = KEY, algorithm: str = "HS256", ends: float = float("inf")
) -> MasterSecret:
    """Return an HMAC secret."""
    return MasterSecret(id, algorithm, key, ends)


def public_secret(id: str = "public") -> MasterSecret:
    """Return the public key of ``PRIVATE``."""
    return MasterSecret(id, "EdDSA", PRIVATE.public_key())


def with_hmac(key: bytes = KEY, algorithm: str = "HS256") -> Sign:
    """Return a function that signs with ``key``."""
    return lambda data: hmac.new(key, data, _HASHES[algorithm]).digest()


def part(data: bytes) -> bytes:
    """Return ``data`` as a part of a token."""
    return urlsafe_b64encode(data).rstrip(b"=")


def put_together(header: bytes, claims: bytes, sign: Sign) -> bytes:
    """Return a signed token of exactly these bytes."""
    signed = part(header) + b"." + part(claims)
    return signed + b"." + part(sign(signed))


def token(
    claims: Mapping[str, Any],
    sign: Sign | None = None,
    algorithm: str = "HS256",
    **header: object,
) -> bytes:
    """Return a token with these claims; ``header`` is added to the algorithm."""
    return put_together(
        json.dumps({"alg": algorithm, "typ": "JWT", **header}).encode(),
        json.dumps(claims).encode(),
        sign or with_hmac(),
    )
