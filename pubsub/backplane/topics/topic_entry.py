"""Topics in the shared state: the key of each, and its value.

The key is ``t.`` and the tokens of the topic's subject (``subjects.py``). The value is a JSON
object; ``docs/scaling.md`` has its members. A topic that has ended leaves a value that says so, so
that a broker that was away ends it too.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from dataclasses import dataclass
from typing import Any

from pubsub.backplane.messages.subjects import ROOT, name_of, subject_of
from pubsub.backplane.state.entry_format import MalformedEntry, decode_members, encode_members

_PREFIX = "t."
_VERSION = 1
# Larger than any value of a broker.
_MAX_VALUE = 4096
DELETED, UNUSED, CLOSED = "deleted", "unused", "closed"
_ENDS = ("", DELETED, UNUSED, CLOSED)


@dataclass(frozen=True, slots=True)
class TopicEntry:
    """The properties of a topic that the brokers agree upon.

    ``id`` is another one for each topic that had the name. ``key`` is empty, or the hash of the
    queue key (``QueueKeyHasher.make``); ``sealed`` is the key, readable with the one before.
    ``owner`` is the broker whose client alone may read the topic, if it is exclusive. ``end`` is
    why the topic has ended: it was DELETED, has expired UNUSED, or its owner's connection is
    CLOSED.
    """

    id: str
    sync: bool = False
    key: bytes = b""
    sealed: bytes = b""
    owner: str = ""
    end: str = ""

    def ended(self, end: str) -> TopicEntry:
        """Return the entry that is left of this one."""
        return TopicEntry(self.id, end=end)


def key_of(name: str) -> str:
    """Return the key of the topic ``name``."""
    return _PREFIX + subject_of(name)[len(ROOT) + 1 :]


def topic_of(key: str) -> str | None:
    """Return the topic of ``key``; None if it is not the key of a topic."""
    return name_of(f"{ROOT}.{key[len(_PREFIX) :]}") if key.startswith(_PREFIX) else None


def encode(entry: TopicEntry) -> bytes:
    """Return the value."""
    members: dict[str, object] = {"id": entry.id}
    if entry.end:
        members["end"] = entry.end
    if entry.sync:
        members["sync"] = True
    for name, data in (("key", entry.key), ("sealed", entry.sealed)):
        if data:
            members[name] = b64encode(data).decode()
    if entry.owner:
        members["owner"] = entry.owner
    return encode_members(_VERSION, members)


def decode(value: bytes) -> TopicEntry:
    """Return the entry; raises MalformedEntry."""
    found = decode_members(value, _VERSION, _MAX_VALUE)
    entry = TopicEntry(
        _text(found, "id"),
        found.get("sync") is True,
        _bytes(found, "key"),
        _bytes(found, "sealed"),
        _text(found, "owner"),
        _text(found, "end"),
    )
    if not entry.id or entry.end not in _ENDS:
        raise MalformedEntry
    return entry


def _text(found: dict[str, Any], name: str) -> str:
    text = found.get(name, "")
    if not isinstance(text, str):
        raise MalformedEntry
    return text


def _bytes(found: dict[str, Any], name: str) -> bytes:
    try:
        return b64decode(_text(found, name), validate=True)
    except (binascii.Error, ValueError):
        raise MalformedEntry from None
