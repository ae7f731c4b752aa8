"""Keys of CURVE, the encryption of ZeroMQ, and their text.

A key has 32 bytes, which Z85 writes as 40 printable characters (RFC 32 of ZeroMQ). Pairs are made
by libsodium through PyNaCl, which is the extra ``curve``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)}
KEY_BYTES = 32
KEY_DIGITS = 40


def encode_key(key: bytes) -> str:
    """Return the text of a key of 32 bytes."""
    digits = []
    for at in range(0, KEY_BYTES, 4):
        number = int.from_bytes(key[at : at + 4], "big")
        digits += [_DIGITS[number // 85**power % 85] for power in (4, 3, 2, 1, 0)]
    return "".join(digits)


def decode_key(text: str) -> bytes:
    """Return the 32 bytes of a key; raises ValueError, whose text does not show the key."""
    if len(text) != KEY_DIGITS or not all(digit in _VALUES for digit in text):
        raise ValueError("expected a CURVE key of 40 characters in Z85")
    key = b""
    for at in range(0, KEY_DIGITS, 5):
        number = 0
        for digit in text[at : at + 5]:
            number = number * 85 + _VALUES[digit]
        if number >= 2**32:
            raise ValueError("expected a CURVE key of 40 characters in Z85")
        key += number.to_bytes(4, "big")
    return key


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A key pair of Curve25519; ``repr`` does not show the secret key."""

    public: bytes
    secret: bytes = field(repr=False)


def check_installed() -> None:
    """Raise ImportError if PyNaCl is not installed."""
    import nacl.bindings  # noqa: F401


def new_key_pair() -> KeyPair:
    """Return a random key pair."""
    from nacl.bindings import crypto_box_keypair

    return KeyPair(*crypto_box_keypair())


def key_pair_of(secret: bytes) -> KeyPair:
    """Return the key pair with this secret key."""
    from nacl.bindings import crypto_scalarmult_base

    return KeyPair(crypto_scalarmult_base(secret), secret)
