"""Queue keys: the topics that are closed to whoever does not hold their key.

A topic with a key is closed to every protocol that cannot present it, unless the listener's
``grant`` setting names the topic. The rotation of a key re-checks every live subscription.

The store keeps keys sealed (see ``sealing``). After a restart a topic's key is not known, only
what it must hash to, until somebody presents it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from pubsub.broker.key_hashing import SALT_BYTES, KeyHasher

if TYPE_CHECKING:
    from pubsub.broker.audit import AuditLog
    from pubsub.broker.router import Router
    from pubsub.broker.tokens import TokenVerifier
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import IStore

KEYS = "queue-keys"
"""The table of the store's metadata with the sealed keys, and ``SALT`` that with their salt."""
SALT = "queue-keys-salt"
_UNKNOWN = b""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """A topic's key was set (``old`` is None) or rotated."""

    old: bytes | None = field(repr=False)
    new: bytes = field(repr=False)


class QueueKeys:
    """The key of each topic that has one.

    ``names`` is a live view of the topics that are closed, ``exclusive`` holds those that only
    their creator may read: both are for the listeners' access rules.
    """

    def __init__(
        self, router: Router, tokens: TokenVerifier, audit: AuditLog, store: IStore
    ) -> None:
        # UNKNOWN where only the seal is known.
        self._keys: dict[str, bytes] = {}
        self._sealed: dict[str, bytes] = {}
        self._seal = KeyHasher(secrets.token_bytes(SALT_BYTES))
        self._store = store
        self.exclusive: set[str] = set()
        self._router = router
        self._tokens = tokens
        self._audit = audit

    def restore(self) -> None:
        """Close the topics that were closed when the store was last written."""
        salt = dict(self._store.items(SALT)).get("")
        if salt is None:
            salt = secrets.token_bytes(SALT_BYTES)
            self._store.put(SALT, "", salt)
        self._seal = KeyHasher(salt)
        self._sealed = dict(self._store.items(KEYS))
        self._keys |= dict.fromkeys(self._sealed, _UNKNOWN)

    @property
    def names(self) -> Mapping[str, object]:
        """What is closed."""
        return self._keys

    def __contains__(self, topic: Topic) -> bool:
        return topic.name in self._keys

    def matches(self, topic: Topic, key: bytes) -> bool:
        """Is ``key`` the topic's key? False for a topic without one. Takes constant time.

        But for the first time after a restart, which takes some 10 ms.
        """
        sealed = self._sealed.get(topic.name)
        if sealed is not None and key and self._seal.matches(sealed, key):
            self._keys[topic.name] = key
            del self._sealed[topic.name]
        return hmac.compare_digest(self._keys.get(topic.name, b""), key) and bool(key)

    def close(self, topic: Topic, key: bytes, subject: str, client: str) -> None:
        """Close a topic that has no key with one; subscriptions without it end."""
        self._set(topic, key)
        kept, removed = self._router.recheck(topic, KeyChange(None, key))
        self._audit.record(
            "create",
            topic=topic.name,
            subject=subject,
            client=client,
            kept=kept,
            removed=removed,
        )

    def rotate(self, topic: Topic, key: bytes, subject: str, client: str) -> tuple[int, int]:
        """Replace the topic's key, at once; returns how many subscriptions stayed and ended."""
        old = self._keys[topic.name]
        self._set(topic, key)
        self._tokens.forget_key(old)
        kept, removed = self._router.recheck(topic, KeyChange(old, key))
        self._audit.record(
            "rotate",
            topic=topic.name,
            subject=subject,
            client=client,
            kept=kept,
            removed=removed,
        )
        return kept, removed

    def forget(self, topic: Topic) -> None:
        """The topic has ended."""
        self.exclusive.discard(topic.name)
        self.drop(topic.name)

    def drop(self, name: str) -> None:
        """The topic ``name`` is open again."""
        if self._keys.pop(name, None) is not None:
            self._sealed.pop(name, None)
            self._store.delete(KEYS, name)

    def _set(self, topic: Topic, key: bytes) -> None:
        self._keys[topic.name] = key
        self._sealed.pop(topic.name, None)
        # Hashed where it holds nobody up.
        self._store.put(KEYS, topic.name, partial(self._seal.of, key))
