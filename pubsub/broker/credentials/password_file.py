"""The password file: a line ``USER:HASH`` for each user, written by ``pubsub passwd``.

A hash is Argon2id (RFC 9106) in the PHC string format, with its own salt and parameters, as other
programs write it too. Empty lines and lines that begin with ``#`` are ignored.
"""

from __future__ import annotations

import re
import secrets
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from pubsub.broker.credentials.setting_files import read_file, warn_if_readable
from pubsub.errors import ConfigurationError

MAX_USER = 255
"""Bytes of the longest name."""
MAX_PASSWORD = 1024
"""Bytes of the longest password."""
# The parameters for servers with little memory that OWASP recommends: 19 MiB, two passes.
_MEMORY_KIB, _PASSES, _LANES = 19 * 1024, 2, 1
_SALT, _HASH = 16, 32
# The limit of the memory of a hash: 256 MiB, so that a verification takes less than a second.
_MAX_MEMORY_KIB, _MAX_PASSES = 256 * 1024, 16
_HASHED = re.compile(
    r"\$argon2id\$v=19\$m=(?P<m>\d{1,7}),t=(?P<t>\d{1,3}),p=(?P<p>\d{1,2})"
    r"\$[A-Za-z0-9+/]{11,88}\$[A-Za-z0-9+/]{22,88}"
)


def hash_password(password: bytes) -> str:
    """Return the Argon2id hash of ``password`` with a random salt. Takes about 40 ms.

    Raises ConfigurationError for a password that is empty or longer than MAX_PASSWORD.
    """
    if not password:
        raise ConfigurationError("the password is empty")
    if len(password) > MAX_PASSWORD:
        raise ConfigurationError(f"the password has more than {MAX_PASSWORD} bytes")
    hashing = Argon2id(
        salt=secrets.token_bytes(_SALT),
        length=_HASH,
        iterations=_PASSES,
        lanes=_LANES,
        memory_cost=_MEMORY_KIB,
    )
    return hashing.derive_phc_encoded(password)


def matches(password: bytes, hashed: str) -> bool:
    """Return whether ``hashed`` is the hash of ``password``; releases the interpreter's lock."""
    try:
        Argon2id.verify_phc_encoded(password, hashed)
    except InvalidKey:
        return False
    return True


def check_user(user: str) -> None:
    """Raise ConfigurationError for a name that a password file cannot have."""
    if not user or len(user.encode(errors="replace")) > MAX_USER:
        raise ConfigurationError(f"a user's name has 1 to {MAX_USER} bytes")
    if ":" in user or user.startswith("#") or user != user.strip() or not user.isprintable():
        raise ConfigurationError(
            "a user's name has printable characters without colons and does not begin with #"
        )


def read_password_file(path: str) -> dict[str, str]:
    """Return the hash of each user in the file ``path``.

    Logs a warning if other users of the system can read it. Raises ConfigurationError.
    """
    try:
        text = read_file("password-file", path).decode()
    except UnicodeDecodeError:
        raise ConfigurationError(f"password-file: {path}: the file is not UTF-8") from None
    warn_if_readable("password-file", path)
    return parse_password_file(text, f"password-file: {path}")


def parse_password_file(text: str, where: str) -> dict[str, str]:
    """Return the hash of each user in ``text``; ``where`` begins the messages about errors.

    Raises ConfigurationError, whose text shows no part of a line, as it may be a password.
    """
    found: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        user, colon, hashed = line.partition(":")
        try:
            check_user(user)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: line {number}: {error}") from None
        if not colon or not _is_hash(hashed):
            raise ConfigurationError(
                f"{where}: line {number} has no Argon2id hash; set the password with "
                "`pubsub passwd FILE USER`"
            )
        if user in found:
            raise ConfigurationError(f"{where}: line {number}: the user has two lines")
        found[user] = hashed
    return found


def _is_hash(text: str) -> bool:
    match = _HASHED.fullmatch(text)
    if match is None:
        return False
    memory, passes, lanes = (int(match[name]) for name in "mtp")
    return 8 * max(lanes, 1) <= memory <= _MAX_MEMORY_KIB and 0 < passes <= _MAX_PASSES


def hash_of_nobody(hashes: Mapping[str, str]) -> str:
    """Return a hash that no password has and that costs as much as most of ``hashes``.

    Verified for unknown users, so that the time does not show that they are unknown.
    """
    common = Counter(hashed.split("$")[3] for hashed in hashes.values()).most_common(1)
    parameters = common[0][0] if common else f"m={_MEMORY_KIB},t={_PASSES},p={_LANES}"
    salt, digest = _base64(secrets.token_bytes(_SALT)), _base64(secrets.token_bytes(_HASH))
    return f"$argon2id$v=19${parameters}${salt}${digest}"


def _base64(data: bytes) -> str:
    return b64encode(data).decode().rstrip("=")
