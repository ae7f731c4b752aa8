"""Names of topics as subjects of the engine (NATS).

A subject is a list of tokens with a dot between. ``/`` in a name separates tokens, so that a prefix
of names is a wildcard. In a token, letters, digits, ``-`` and ``_`` stand for themselves, and every
other byte of the name's UTF-8 is ``=`` and two hexadecimal digits; an empty token is ``=``. So
different names have different subjects, of at most 3 * 255 bytes and ``ROOT``.
``docs/scaling.md`` has examples.
"""

from __future__ import annotations

import re
from functools import lru_cache

from pubsub.broker.topic_space.topic_names import topic_name
from pubsub.errors import InvalidTopicName

ROOT = "pubsub.v1.t"
"""The first tokens of every subject; another format of records has others."""
_EMPTY = "="
_OTHER = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED = re.compile(r"=([0-9A-F]{2})")
_TOKEN = re.compile(r"=|(?:[A-Za-z0-9_-]|=[0-9A-F]{2})+")


def _token(part: bytes) -> str:
    return _OTHER.sub(lambda found: b"=%02X" % found[0][0], part).decode() or _EMPTY


@lru_cache(4096)
def subject_of(name: str) -> str:
    """Return the subject of the topic ``name``."""
    return ".".join((ROOT, *map(_token, name.encode().split(b"/"))))


def subject_of_prefix(prefix: bytes) -> str:
    """Return the narrowest subject that has all topics whose names begin with ``prefix``."""
    whole = prefix.split(b"/")[:-1]
    return ".".join((ROOT, *map(_token, whole), ">"))


@lru_cache(4096)
def name_of(subject: str) -> str | None:
    """Return the topic of ``subject``; None if it is not the subject of a topic."""
    if not subject.startswith(f"{ROOT}."):
        return None
    parts = subject[len(ROOT) + 1 :].split(".")
    if not all(map(_TOKEN.fullmatch, parts)):
        return None
    raw = b"/".join([b"" if part == _EMPTY else _unescaped(part) for part in parts])
    try:
        name = topic_name(raw)
    except InvalidTopicName:
        return None
    # Two subjects of one name would be two topics in one.
    return name if subject_of(name) == subject else None


def _unescaped(part: str) -> bytes:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), part).encode("latin-1")


def wildcards_over(subject: str) -> list[str]:
    """Return the wildcards that have every topic of ``subject``, without itself."""
    tokens = subject.split(".")
    least = ROOT.count(".") + 1
    found = [".".join((*tokens[:end], ">")) for end in range(least, len(tokens))]
    return [one for one in found if one != subject]
