"""Queue keys: the topics that are closed to whoever does not hold their key.

A topic with a key is closed to every protocol that cannot present it, unless the listener's
``grant`` setting names the topic. The rotation of a key re-checks every live subscription.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pubsub.broker.audit import AuditLog
    from pubsub.broker.router import Router
    from pubsub.broker.tokens import TokenVerifier
    from pubsub.broker.topics import Topic


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

    def __init__(self, router: Router, tokens: TokenVerifier, audit: AuditLog) -> None:
        self._keys: dict[str, bytes] = {}
        self.exclusive: set[str] = set()
        self._router = router
        self._tokens = tokens
        self._audit = audit

    @property
    def names(self) -> Mapping[str, object]:
        """What is closed."""
        return self._keys

    def __contains__(self, topic: Topic) -> bool:
        return topic.name in self._keys

    def matches(self, topic: Topic, key: bytes) -> bool:
        """Is ``key`` the topic's key? False for a topic without one. Takes constant time."""
        return hmac.compare_digest(self._keys.get(topic.name, b""), key) and bool(key)

    def close(self, topic: Topic, key: bytes, subject: str, client: str) -> None:
        """Close a topic that has no key with one; subscriptions without it end."""
        self._keys[topic.name] = key
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
        self._keys[topic.name] = key
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
        self._keys.pop(topic.name, None)
        self.exclusive.discard(topic.name)


Recheck = Callable[["Topic", KeyChange | None], bool]
"""Asked of a subscriber when what it may read may have changed: does the subscription stay?

It tells its client, in its protocol's terms, before it answers no.
"""
