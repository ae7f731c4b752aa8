"""The names of topics: which are valid, and the numbers that protocols derive from them.

A topic's name is canonical: UTF-8 text of 1 to 255 bytes. Its u32 id and its UUID are derived from
the name, so a protocol that addresses topics by number sees the same topic as one that uses names.
"""

from __future__ import annotations

from functools import lru_cache
from uuid import UUID

from pubsub.errors import InvalidTopicName

MAX_NAME = 255
TOPIC_NAMESPACE = UUID("5d1c8a52-2f4e-5a0b-9b8e-0f6a4a3d7c11")
_FNV_OFFSET = 0x811C9DC5
_FNV_PRIME = 0x01000193


def fnv1a32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash of ``data``."""
    value = _FNV_OFFSET
    for byte in data:
        value = (value ^ byte) * _FNV_PRIME & 0xFFFFFFFF
    return value


@lru_cache(maxsize=4096)
def topic_name(raw: bytes | str) -> str:
    """Return the canonical name for ``raw``; raises InvalidTopicName."""
    try:
        text = raw.decode() if isinstance(raw, bytes) else raw
        length = len(text.encode())
    except UnicodeError:
        raise InvalidTopicName("a topic name must be UTF-8") from None
    if not 1 <= length <= MAX_NAME:
        raise InvalidTopicName(f"a topic name has 1 to {MAX_NAME} bytes, not {length}")
    return text
