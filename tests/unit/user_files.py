"""Password files for tests: bob has the password sesame, ann has other."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.kdf.argon2 import Argon2id


def cheap_hash(password: bytes) -> str:
    """Return a hash whose verification takes no noticeable time."""
    made = Argon2id(salt=b"x" * 16, length=32, iterations=1, lanes=1, memory_cost=32)
    return made.derive_phc_encoded(password)


def user_file(directory: Path) -> str:
    """Write the file; return its path."""
    path = directory / "users"
    path.write_text(f"bob:{cheap_hash(b'sesame')}\nann:{cheap_hash(b'other')}\n")
    path.chmod(0o600)
    return str(path)
