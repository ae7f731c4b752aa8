"""Queue keys: topics that only clients with the right key may use.

A topic with a key is closed on every protocol that cannot present keys, unless the listener's
``grant`` setting names the topic. Rotating a key rechecks every live subscription.

The store has only hashes of the keys (see ``queue_key_hashing``). After a restart a topic's key is
unknown, apart from its hash, until a client presents it.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred

from pubsub.broker.credentials.queue_key_hashing import SALT_BYTES, QueueKeyHasher
from pubsub.broker.delivery.history_reads import all_on_disk
from pubsub.broker.topic_space.publishing_state import state_changes
from pubsub.broker.topic_space.topics import KeyChange
from pubsub.errors import HistoryUnavailable, WrongKey

if TYPE_CHECKING:
    from pubsub.broker.audit_log.audit import AuditLog
    from pubsub.broker.credentials.tokens import TokenVerifier
    from pubsub.broker.routing.router import Router
    from pubsub.broker.topic_space.topics import Topic
    from pubsub.interfaces import IStore, Value

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
        # The topics whose new key is being written; each has a value of its own, which is taken
        # away if the key changes in another way meanwhile.
        self._rotations: dict[str, object] = {}
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
        self._keep(topic.name, key)
        # The store hashes it in a thread.
        self._store.put(KEYS, topic.name, partial(self._hasher.hash, key))
        return self._recheck("create", topic, KeyChange(None, key), subject, client)

    def rotate(
        self, topic: Topic, key: bytes, subject: str, client: str, agreed: bool = False
    ) -> Deferred[tuple[int, int]]:
        """Replace the topic's key as soon as the new one is on disk.

        So no subscriber is told a key that the broker does not know after a crash. Messages that
        are published from then on are only for subscriptions that stay. The result is how many do
        and how many end, when all are rechecked.

        Fails with WrongKey if another change is first, and with HistoryUnavailable if the key
        cannot be written; nothing is changed then. Other brokers may have ``agreed`` upon the key:
        it does not fail then, and a topic that has another key or has ended is left as it is.
        """
        hashed = partial(self._hasher.hash, key)
        rotated = self._rotate(topic, key, hashed, agreed)
        return Deferred.fromCoroutine(self._report(rotated, topic, subject, client))

    def adopt(self, topic: Topic, hashed: bytes, key: bytes) -> Deferred[tuple[int, int]]:
        """Another broker has set or replaced the topic's key: ``hashed``, with its salt.

        ``key`` is empty if only the hash is known; the subscriptions with the old key end then. An
        open topic is closed at once, and a key is replaced as by ``rotate``.
        """
        if topic in self:
            rotated = self._rotate(topic, key, hashed, True)
            return Deferred.fromCoroutine(self._report(rotated, topic, "", "backplane"))
        self._keep(topic.name, key, hashed)
        self._store.put(KEYS, topic.name, hashed)
        return self._recheck("create", topic, KeyChange(None, key), "", "backplane")

    async def _rotate(
        self, topic: Topic, key: bytes, hashed: Value, agreed: bool
    ) -> KeyChange | None:
        """Write the key, then use it; None if the topic has another key by then or has ended."""
        name, mark = topic.name, object()
        if name in self._rotations and not agreed:
            raise WrongKey("another request replaces the queue key")
        self._rotations[name] = mark
        self._store.put(KEYS, name, hashed)
        is_stored = await all_on_disk(self._store)
        if self._rotations.get(name) is not mark:
            if agreed:
                return None
            raise WrongKey("the topic has another queue key, or has ended")
        old = self._keys[name]
        if not (is_stored or agreed):
            del self._rotations[name]
            self._store.put(KEYS, name, self._hashes.get(name) or partial(self._hasher.hash, old))
            raise HistoryUnavailable("the queue key cannot be written")
        self._keep(name, key, hashed)
        if old:
            self._tokens.forget_key(old)
        return KeyChange(old if old and key else None, key)

    async def _report(
        self,
        rotated: Coroutine[Any, Any, KeyChange | None],
        topic: Topic,
        subject: str,
        client: str,
    ) -> tuple[int, int]:
        """Recheck the subscriptions after a rotation; the result is as ``rotate``'s."""
        change = await rotated
        if change is None:
            return 0, 0
        return await self._recheck("rotate", topic, change, subject, client)

    async def settle(self) -> None:
        """Wait until no key is being written."""
        while self._rotations:
            await all_on_disk(self._store)

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
            self._keep(name, secrets.token_bytes(SALT_BYTES))

    def forget(self, name: str) -> None:
        """Remove the topic ``name``, which has ended."""
        self.exclusive.discard(name)
        self.drop(name)

    def drop(self, name: str) -> None:
        """Delete the key of the topic ``name``, which opens it."""
        if self._keys.pop(name, None) is not None:
            self._changed()
            self._hashes.pop(name, None)
            self._rotations.pop(name, None)
            self._store.delete(KEYS, name)

    def _keep(self, name: str, key: bytes, hashed: Value = b"") -> None:
        """The topic ``name`` has this key from now on; of an empty one only ``hashed`` is known."""
        self._keys[name] = key or _UNKNOWN
        self._changed()
        self._rotations.pop(name, None)
        if key:
            self._hashes.pop(name, None)
        elif isinstance(hashed, bytes):
            self._hashes[name] = hashed

    def _changed(self) -> None:
        self.version += 1
        # A client that has no key may not publish to a topic any more, or may again.
        state_changes.count += 1
