"""Queue keys: topics that only clients with the right key may use.

A topic with a key is closed on every protocol that cannot present keys, unless the listener's
``grant`` setting names the topic. Rotating a key rechecks every live subscription.

The store has only hashes of the keys (see ``queue_key_hashing``). After a restart a topic's key is
unknown, apart from its hash, until a client presents it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from pubsub.broker.queue_key_hashing import SALT_BYTES, QueueKeyHasher
from pubsub.broker.topics import KeyChange

if TYPE_CHECKING:
    from twisted.internet.defer import Deferred

    from pubsub.broker.audit import AuditLog
    from pubsub.broker.router import Router
    from pubsub.broker.tokens import TokenVerifier
    from pubsub.broker.topics import Topic
    from pubsub.interfaces import IStore

KEYS = "queue-keys"
"""The table of the store's metadata with the hashed keys; ``SALT`` has their salt."""
SALT = "queue-keys-salt"
_UNKNOWN = b""
_PROOF = b"pubsub backplane: "


class QueueKeys:
    """The key of each topic that has one.

    ``names`` is a live view of the closed topics, ``exclusive`` has those that only their creator
    may read. The listeners' access rules use both. ``version`` changes when a key does.
    """

    def __init__(
        self, router: Router, tokens: TokenVerifier, audit: AuditLog, store: IStore
    ) -> None:
        # UNKNOWN if only the hash is known.
        self._keys: dict[str, bytes] = {}
        self._hashes: dict[str, bytes] = {}
        self._hasher = QueueKeyHasher(secrets.token_bytes(SALT_BYTES))
        self._store = store
        self.exclusive: set[str] = set()
        self.version = 0
        self._router = router
        self._tokens = tokens
        self._audit = audit

    def restore(self) -> None:
        """Close the topics that were closed in the previous run."""
        salt = dict(self._store.items(SALT)).get("")
        if salt is None:
            salt = secrets.token_bytes(SALT_BYTES)
            self._store.put(SALT, "", salt)
        self._hasher = QueueKeyHasher(salt)
        self._hashes = dict(self._store.items(KEYS))
        self._keys |= dict.fromkeys(self._hashes, _UNKNOWN)

    @property
    def hasher(self) -> QueueKeyHasher:
        """Hashes keys with the salt of the store."""
        return self._hasher

    def plain(self, name: str) -> bytes:
        """Return the key of the topic ``name``; empty if it has none, or only the hash is known."""
        return self._keys.get(name, b"")

    def hashed(self, name: str) -> bytes | None:
        """Return the salt and the hash of a key that is not known otherwise."""
        found = self._hashes.get(name)
        return None if found is None else self._hasher.with_salt(found)

    @property
    def names(self) -> Mapping[str, object]:
        """The names of the closed topics."""
        return self._keys

    def __contains__(self, topic: Topic) -> bool:
        return topic.name in self._keys

    def matches(self, topic: Topic, key: bytes) -> bool:
        """Return whether ``key`` is the topic's key; False for a topic without one.

        Takes constant time, except for the first time after a restart, which takes some 10 ms.
        """
        hashed = self._hashes.get(topic.name)
        if hashed is not None and key and self._hasher.matches(hashed, key):
            self._keys[topic.name] = key
            del self._hashes[topic.name]
        return hmac.compare_digest(self._keys.get(topic.name, b""), key) and bool(key)

    def proof(self, topic: str) -> bytes | None:
        """Return a proof for another broker that it has the same key for ``topic``, without the
        key.

        Empty for a topic without a key; None if the key is unknown, or the topic exclusive: its
        messages are for no other client.
        """
        if topic in self.exclusive:
            return None
        key = self._keys.get(topic)
        if key is None:
            return b""
        return hmac.digest(key, _PROOF + topic.encode(), "sha256") if key else None

    def close(
        self, topic: Topic, key: bytes, subject: str, client: str
    ) -> Deferred[tuple[int, int]]:
        """Set the key of a topic that has none; subscriptions without it end. See ``rotate``."""
        self._set(topic, key)
        return self._recheck("create", topic, KeyChange(None, key), subject, client)

    def rotate(
        self, topic: Topic, key: bytes, subject: str, client: str
    ) -> Deferred[tuple[int, int]]:
        """Replace the topic's key at once.

        Messages that are published afterwards are only for subscriptions that stay. The result is
        how many do and how many end, when all are rechecked.
        """
        old = self._keys[topic.name]
        self._set(topic, key)
        self._tokens.forget_key(old)
        return self._recheck("rotate", topic, KeyChange(old, key), subject, client)

    def adopt(self, topic: Topic, hashed: bytes, key: bytes) -> Deferred[tuple[int, int]]:
        """Another broker has set or replaced the topic's key: ``hashed``, with its salt.

        ``key`` is empty if only the hash is known; the subscriptions with the old key end then.
        """
        old = self._keys.get(topic.name)
        self._keys[topic.name] = key or _UNKNOWN
        self.version += 1
        if key:
            self._hashes.pop(topic.name, None)
        else:
            self._hashes[topic.name] = hashed
        self._store.put(KEYS, topic.name, hashed)
        if old:
            self._tokens.forget_key(old)
        record = "create" if old is None else "rotate"
        change = KeyChange(old if old and key else None, key)
        return self._recheck(record, topic, change, "", "backplane")

    def _recheck(
        self, record: str, topic: Topic, change: KeyChange, subject: str, client: str
    ) -> Deferred[tuple[int, int]]:
        """Recheck the subscriptions, then write the audit record; the result is as ``rotate``'s."""

        def write(counts: tuple[int, int]) -> tuple[int, int]:
            kept, removed = counts
            self._audit.record(
                record,
                topic=topic.name,
                subject=subject,
                client=client,
                kept=kept,
                removed=removed,
            )
            return counts

        return self._router.recheck(topic, change).addCallback(write)

    def lock(self, name: str) -> None:
        """Have no key open the topic ``name``, which is about to end, if it has one.

        The store has its key until ``forget``: the topic is closed also after a crash meanwhile.
        """
        if name in self._keys:
            self._keys[name] = secrets.token_bytes(SALT_BYTES)
            self._hashes.pop(name, None)
            self.version += 1

    def forget(self, name: str) -> None:
        """Remove the topic ``name``, which has ended."""
        self.exclusive.discard(name)
        self.drop(name)

    def drop(self, name: str) -> None:
        """Delete the key of the topic ``name``, which opens it."""
        if self._keys.pop(name, None) is not None:
            self.version += 1
            self._hashes.pop(name, None)
            self._store.delete(KEYS, name)

    def _set(self, topic: Topic, key: bytes) -> None:
        self._keys[topic.name] = key
        self.version += 1
        self._hashes.pop(topic.name, None)
        # The store hashes it in a thread.
        self._store.put(KEYS, topic.name, partial(self._hasher.hash, key))
